"""Regularisation paths: the objective against its definition, closed forms, an independent minimiser, the SVM set."""

import cvxpy as cp
import jax
import numpy as np
import pytest
import scipy.optimize

import attsvm
from attsvm import TokenData, datasets
from attsvm.attention import gradient
from attsvm.errors import InputError
from attsvm.paths import nearest_nuclear_optimum, regularization_path
from attsvm.paths.descent import stationarity
from attsvm.paths.objective import Objective
from attsvm.prediction import LinearHead

DATA = datasets.sphere(3, 4, 4, seed=1)


def causal():
    rng = np.random.default_rng(3)
    mask = np.array([[True] * 4, [True] * 3 + [False]])
    x, labels = rng.normal(size=(2, 4, 3)), rng.choice([-1.0, 1.0], (2, 4))
    return TokenData.self_attention(x, query="all", causal=True, mask=mask, labels=labels, value=rng.normal(size=3))


def columns(objective, scale, seed=0, count=3):
    return scale * np.random.default_rng(seed).normal(size=(objective.size, count))


def weight(objective, V):
    matrices = objective.split(V)
    return (
        np.moveaxis(matrices[0], -1, 0).swapaxes(1, 2) if len(matrices) == 1 else np.einsum("kil,qil->lkq", *matrices)
    )


@pytest.mark.parametrize(
    ("data", "loss"),
    [
        (DATA, "logistic"),
        (DATA, "correlation"),
        (causal(), "exponential"),
        (causal(), lambda x: jax.nn.softplus(-2 * x)),
    ],
    ids=["one query, logistic", "one query, correlation", "causal, exponential", "causal, callable"],
)
def test_objective_is_the_log_of_the_excess_loss(data, loss):
    """Where the difference of the two losses still has digits."""
    with jax.enable_x64(True):
        objective = Objective(data, "W", loss, None)
        V = columns(objective, 2.0)
        point = objective(V)
        scores = np.where(data.mask, data.labels[:, :, None] * (data.tokens @ data.value)[:, None], -np.inf)
        best = np.where(data.active, scores.max(-1), 0.0)
        least = np.where(data.active, objective.loss.value(best), 0.0).sum() / data.n
        probabilities = attsvm.attention.probabilities(data, weight(objective, V))
        h = (probabilities @ data.tokens @ data.value).transpose(1, 2, 0)
        losses = objective.loss.value(data.labels[..., None] * h)
    expected = np.where(data.active[..., None], losses, 0.0).sum((0, 1)) / data.n
    np.testing.assert_allclose(point.loss, expected, rtol=1e-12)
    np.testing.assert_allclose(point.value, np.log(expected - least), rtol=1e-9)


@pytest.mark.parametrize("form", ["W", "KQ"])
@pytest.mark.parametrize("scale", [0.1, 3000.0])
def test_gradient_by_finite_differences_and_against_the_exact_one(form, scale):
    """At the largest scale the loss has long rounded to its infimum, and the gradient to zero."""
    with jax.enable_x64(True):
        objective = Objective(DATA, form, "logistic", None)
        V = columns(objective, scale if form == "W" else np.sqrt(scale))
        E = columns(objective, 1.0, seed=1)
        h = 1e-6 * np.abs(V).max()
        point = objective(V)
        difference = (objective(V + h * E).value - objective(V - h * E).value) / (2 * h)
        np.testing.assert_allclose((point.gradient * E).sum(0), difference, rtol=2e-4, atol=1e-9)
    matrices = [np.moveaxis(part, -1, 0) for part in objective.split(V)]
    weights = matrices[0].swapaxes(1, 2) if form == "W" else tuple(matrices)
    direction, _ = gradient(DATA, weights)
    flat = direction.swapaxes(1, 2).reshape(3, -1) if form == "W" else np.hstack([d.reshape(3, -1) for d in direction])
    ours = point.relative.T
    cosine = (ours * flat).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(flat, axis=1)
    np.testing.assert_allclose(cosine, 1.0, rtol=1e-10)
    assert (np.linalg.norm(point.relative, axis=0) <= 1 + 1e-12).all()


@pytest.mark.parametrize("form", ["W", "KQ"])
def test_one_row_has_its_closed_form_at_every_radius(form):
    """With one constraint `W̄_R = R δzᵀ/(‖δ‖‖z‖)`, which is the SVM direction in both norms."""
    rng = np.random.default_rng(0)
    data = TokenData(rng.normal(size=(1, 2, 3)), rng.normal(size=(1, 2)), value=rng.normal(size=3))
    svm = attsvm.solve(data, norm="fro" if form == "W" else "nuc")
    path = regularization_path(data, [0.1, 3.0, 1e4], form=form, starts=3)
    np.testing.assert_allclose(path.distance(svm), 0.0, atol=1e-6)
    assert path.residual[np.arange(3), path.best].max() < 1e-6


def test_the_best_start_is_no_worse_than_another_minimiser():
    """SciPy's SLSQP from 4 starts, on the plain loss at a moderate radius."""
    radius = 6.0
    path = regularization_path(DATA, [radius], starts=3)
    labels, tokens, queries = DATA.labels[:, 0], DATA.tokens, DATA.queries[:, 0]

    def loss(w):
        logits = np.einsum("ntk,kq,nq->nt", tokens, w.reshape(4, 4), queries)
        s = np.exp(logits - logits.max(1, keepdims=True))
        h = np.einsum("nt,ntk,k->n", s / s.sum(1, keepdims=True), tokens, DATA.value)
        return np.logaddexp(0, -labels * h).mean()

    ball = {"type": "ineq", "fun": lambda w: radius**2 - w @ w}
    rng = np.random.default_rng(0)
    found = [scipy.optimize.minimize(loss, rng.normal(size=16), constraints=ball).fun for _ in range(4)]
    assert path.loss.min() <= min(found) + 1e-7
    assert path.loss.min() == pytest.approx(loss(path.W[0].ravel()), rel=1e-12)
    assert np.linalg.norm(path.W[0]) <= radius * (1 + 1e-12)


@pytest.mark.parametrize("form", ["W", "KQ"])
def test_distance_to_the_svm_falls(form):
    svm = attsvm.solve(DATA, norm="fro" if form == "W" else "nuc")
    path = regularization_path(DATA, svm.value * np.array([3.0, 20.0, 60.0]), form=form, starts=3)
    distance = path.distance(svm)
    assert (np.diff(distance) < 0).all()
    assert distance[-1] < 0.07
    table = path.table(svm)
    assert table.columns[-1] == "distance"
    assert table["residual"].max() < 1e-5
    assert table["norm"].to_numpy() == pytest.approx(1.0, rel=1e-6)
    assert (table["agreeing"] >= 1).all()
    assert (path.spread >= 0).all()
    assert "residual" in repr(path)


def test_the_start_does_not_leak_between_scales_and_seeds_repeat():
    """Queries 1e5 times as long: W̄_R of radius R / 1e5 is the same direction."""
    long = TokenData(DATA.tokens, 1e5 * DATA.queries, labels=DATA.labels, value=DATA.value)
    a, b = (regularization_path(d, [r], starts=3) for d, r in ((DATA, 20.0), (long, 20.0 / 1e5)))
    np.testing.assert_allclose(b.W * 1e5, a.W, atol=1e-4)
    np.testing.assert_array_equal(regularization_path(DATA, [20.0], starts=3).W, a.W)


def test_a_callable_head_takes_the_plain_loss():
    value = DATA.value
    own = regularization_path(DATA, [2.0], starts=3)
    called = regularization_path(DATA, [2.0], starts=3, head=lambda a: a @ value)
    linear = regularization_path(DATA.with_value(-value), [2.0], starts=3, head=LinearHead(value))
    np.testing.assert_allclose(called.W, own.W, atol=1e-5)
    np.testing.assert_allclose(linear.W, own.W, atol=1e-12)
    np.testing.assert_array_equal(called.objective, called.loss)


def diagonal(d, extra=None):
    """Rows `W_ii >= 1`: every positive semidefinite matrix with unit diagonal is a nuclear optimum, of norm d."""
    tokens = np.zeros((d, 2 if extra is None else 3, d))
    tokens[np.arange(d), 0, np.arange(d)] = 1.0
    if extra is not None:
        tokens[:, 2] = extra
    return TokenData(tokens, np.eye(d), value=np.ones(d))


def test_nearest_optimum_of_a_set_that_is_no_point():
    A = np.random.default_rng(0).normal(size=(3, 3))
    svm = attsvm.solve(diagonal(3), [0, 0, 0], norm="nuc")
    M = cp.Variable((3, 3), symmetric=True)
    cp.Problem(cp.Minimize(cp.norm(M - A, "fro")), [M >> 0, cp.diag(M) == 1]).solve(solver="CLARABEL")
    nearest = nearest_nuclear_optimum(svm, A)
    assert np.linalg.norm(nearest - A) == pytest.approx(np.linalg.norm(M.value - A), rel=1e-6)
    np.testing.assert_allclose(nearest, M.value, atol=1e-5)
    np.testing.assert_allclose(nearest_nuclear_optimum(svm, nearest), nearest, atol=1e-6)


def test_rows_that_are_not_tight_bind_too():
    """A third token adds `W_11 + 2 W_21 >= 1`, so that the off-diagonal entry cannot be negative."""
    extra = np.zeros((2, 2))
    extra[0] = [0.0, -2.0]
    svm = attsvm.solve(diagonal(2, extra), [0, 0], norm="nuc")
    assert svm.value == pytest.approx(2.0)
    nearest = nearest_nuclear_optimum(svm, np.array([[1.0, -0.5], [-0.7, 1.0]]))
    np.testing.assert_allclose(nearest, np.eye(2), atol=1e-5)
    nearest = nearest_nuclear_optimum(svm, np.array([[1.0, 0.5], [0.1, 1.0]]))
    np.testing.assert_allclose(nearest, [[1.0, 0.3], [0.3, 1.0]], atol=1e-5)


def test_a_single_optimum_is_its_own_nearest():
    data = datasets.sphere(6, 8, 10, seed=0)
    svm = attsvm.solve(data, norm="nuc")
    nearest = nearest_nuclear_optimum(svm, np.ones((10, 10)))
    np.testing.assert_allclose(nearest, svm.W, atol=1e-7)


def test_path_to_a_set_of_optima():
    data = diagonal(2)
    svm = attsvm.solve(data, [0, 0], norm="nuc")
    path = regularization_path(data, [100.0], form="KQ", starts=3)
    assert path.distance(svm)[0] < 1e-2
    assert path.K.shape == path.Q.shape == (1, 2, 2)
    np.testing.assert_allclose(path.K[0] @ path.Q[0].T, path.W[0])
    assert (path.K**2).sum() + (path.Q**2).sum() <= 200 * (1 + 1e-12)


def test_tokens_of_equal_scores_are_at_the_infimum_everywhere():
    data = TokenData(np.array([[[1.0, 0.0], [1.0, 2.0]]]), np.array([[1.0, 0.5]]), value=np.array([1.0, 0.0]))
    path = regularization_path(data, [1.0, 2.0], starts=3)
    assert (path.objective == -np.inf).all()
    assert (path.residual == 0).all()


def test_stationarity_tells_a_faded_gradient_from_a_stationary_point():
    """Everywhere here the gradient is below 1e-300; only the point that lies along it is stationary."""
    data = TokenData(np.array([[[1.0, 0.0], [0.0, 0.0]]]), np.array([[1.0, 0.0]]), value=np.array([1.0, 0.0]))
    with jax.enable_x64(True):
        objective = Objective(data, "W", "logistic", None)
        V = 2000.0 * np.array([[1.0, 0.6], [0.0, 0.8], [0.0, 0.0], [0.0, 0.0]])
        residual = stationarity(V, objective(V), 2000.0)
    assert residual[0] < 1e-14
    assert residual[1] > 0.1


def test_plot(tmp_path):
    svm = attsvm.solve(DATA)
    path = regularization_path(DATA, [5.0, 20.0], starts=3)
    path.plot(svm, tmp_path / "path.svg")
    assert (tmp_path / "path.svg").stat().st_size > 1000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"radii": []}, "rising"),
        ({"radii": [2.0, 1.0]}, "rising"),
        ({"radii": [0.0, 1.0]}, "positive"),
        ({"radii": ["a"]}, "positive"),
        ({"form": "QK"}, "form"),
        ({"starts": 0}, "starts"),
        ({"steps": 1.5}, "steps"),
        ({"seed": -1}, "seed"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"loss": "hinge"}, "loss"),
    ],
)
def test_bad_arguments(options, message, untyped):
    with pytest.raises(InputError, match=message):
        regularization_path(DATA, **({"radii": [1.0]} | options))


def test_bad_solutions():
    path = regularization_path(DATA, [1.0], starts=3)
    with pytest.raises(InputError, match="norm"):
        path.distance(attsvm.solve(DATA, norm="nuc"))
    with pytest.raises(InputError, match="same data"):
        path.distance(attsvm.solve(datasets.sphere(3, 4, 4, seed=2)))
    with pytest.raises(InputError, match="nuc"):
        nearest_nuclear_optimum(attsvm.solve(DATA), np.zeros((4, 4)))
    with pytest.raises(InputError, match="shape"):
        nearest_nuclear_optimum(attsvm.solve(DATA, norm="nuc"), np.zeros((2, 2)))
