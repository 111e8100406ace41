"""The log-domain gradient against autodiff where softmax is alive, and against 60-digit decimals where it is not."""

from decimal import Decimal, localcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attsvm.attention import gradient, logits, probabilities
from attsvm.data import TokenData
from attsvm.errors import InputError


def random_data(seed, n=3, m=1, T=5, d_k=4, d_q=3, **rest):
    rng = np.random.default_rng(seed)
    tokens, queries = rng.normal(size=(n, T, d_k)), rng.normal(size=(n, m, d_q))
    labels = rng.choice([-1.0, 1.0], size=(n, m))
    rest = {"value": rng.normal(size=d_k)} | rest
    return TokenData(tokens, queries, labels=labels, **rest)


def causal_data(seed):
    """Causal, and one example shorter than the others, so that some queries are padding."""
    rng = np.random.default_rng(seed)
    mask = np.ones((3, 5), dtype=bool)
    mask[1, 3:] = False
    tokens = rng.normal(size=(3, 5, 4))
    return TokenData.self_attention(
        tokens, query="all", causal=True, mask=mask, value=rng.normal(size=4), labels=[1.0, -1.0, 1.0]
    )


def direct_loss(data, head, loss, W):
    """What one would write without thinking of saturation."""
    a = jnp.einsum("ntk,kq,nmq->nmt", data.tokens, W, data.queries)
    s = jax.nn.softmax(jnp.where(data.mask | ~data.active[..., None], a, -jnp.inf), axis=-1)
    h = jax.vmap(jax.vmap(head))(jnp.einsum("nmt,ntk->nmk", s, data.tokens))
    return jnp.where(data.active, jax.vmap(jax.vmap(loss))(data.labels * h), 0.0).sum() / data.n


def bent(a):
    return jnp.tanh(a).sum() - 0.3 * (a * a).sum()


LOSSES = {
    "logistic": lambda x: jnp.logaddexp(0.0, -x),
    "exponential": lambda x: jnp.exp(-x),
    "correlation": lambda x: -x,
}


def bowl(x):
    return jnp.exp(-0.5 * x) + 0.1 * (x - 1) ** 2


@pytest.mark.parametrize(
    ("make", "head", "loss"),
    [
        (random_data, None, "logistic"),
        (causal_data, None, "exponential"),
        (causal_data, bent, "correlation"),
        (random_data, bent, bowl),
    ],
)
def test_agrees_with_autodiff_where_unsaturated(make, head, loss):
    data = make(0)
    rng = np.random.default_rng(1)
    K, Q = rng.normal(size=(data.d_k, 2)), rng.normal(size=(data.d_q, 2))
    direction, log_scale = gradient(data, K @ Q.T, head=head, loss=loss)
    (gK, gQ), log_scale_kq = gradient(data, (K, Q), head=head, loss=loss)
    with jax.enable_x64(True):
        plain_head = head or (lambda a: a @ data.value)
        expected = np.asarray(
            jax.grad(lambda W: direct_loss(data, plain_head, LOSSES.get(loss, loss), W))(jnp.asarray(K @ Q.T))
        )
    np.testing.assert_allclose(np.exp(log_scale) * direction, expected, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(np.exp(log_scale_kq) * gK, expected @ Q, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(np.exp(log_scale_kq) * gQ, expected.T @ K, rtol=1e-11, atol=1e-13)


def test_agrees_with_finite_differences():
    data = random_data(3, m=2)
    W = np.random.default_rng(4).normal(size=(data.d_k, data.d_q))
    direction, log_scale = gradient(data, W)

    def loss(W):
        return (np.logaddexp(0, -data.labels * (probabilities(data, W) @ data.tokens @ data.value))).sum() / data.n

    step = 1e-6
    for i, j in np.ndindex(W.shape):
        E = np.zeros_like(W)
        E[i, j] = step
        assert (loss(W + E) - loss(W - E)) / (2 * step) == pytest.approx(np.exp(log_scale) * direction[i, j], abs=1e-9)


def decimal_gradient(data, W):
    """The pairwise formula `ℓ' Y s_t Σ_τ s_τ (g_t - g_τ)` for the logistic loss, in 60 digits and scaled."""
    D = np.vectorize(Decimal, otypes=[object])
    with localcontext() as context:
        context.prec, context.Emin, context.Emax = 60, -(10**9), 10**9
        X, Z, v, W = D(data.tokens), D(data.queries), D(data.value), D(W)
        total = np.zeros(W.shape, dtype=object) + Decimal(0)
        for i, j in np.argwhere(data.active):
            seen = np.flatnonzero(data.mask[i, j])
            x, z = X[i, seen], Z[i, j]
            a = x @ (W @ z)
            e = np.array([(value - max(a)).exp() for value in a])
            s, g, y = e / e.sum(), x @ v, Decimal(data.labels[i, j])
            slope = -1 / (1 + (y * (s @ g)).exp())
            pairwise = np.array([s[t] * (s @ (g[t] - g)) for t in range(len(seen))])
            total = total + slope * y * np.outer(pairwise @ x, z)
        size = max(abs(value) for value in total.ravel())
        if size == 0:
            return total.astype(float), -np.inf
        return (total / size).astype(float), float((size / data.n).ln())


def assert_exact(data, W, tolerance):
    direction, log_scale = gradient(data, W)
    expected, log_size = decimal_gradient(data, W)
    size = np.abs(direction).max()
    np.testing.assert_allclose(direction / size, expected, atol=tolerance)
    assert log_scale + np.log(size) == pytest.approx(log_size, rel=1e-12, abs=1e-9)


@pytest.mark.parametrize("gap", [1e1, 1e3, 1e5])
@pytest.mark.parametrize("make", [random_data, causal_data])
def test_exact_direction_under_saturation(make, gap):
    """Logits carry a relative rounding of about 1e-16, hence an absolute one of about 1e-15 times the gap."""
    for seed in range(3):
        data = make(seed)
        assert_exact(data, gap * np.random.default_rng(seed + 10).normal(size=(data.d_k, data.d_q)), 1e-14 * (10 + gap))


def test_a_twin_of_the_chosen_token_does_not_hide_the_others():
    """Two copies of the best token; the third token's weight, e^-1500, underflows beside theirs."""
    tokens = np.array([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-0.5, 0.2]]])
    data = TokenData(tokens, [[1.0, 0.5]], value=[1.0, -2.0])
    W = np.array([[1500.0, 0.0], [0.0, 0.0]])
    assert_exact(data, W, 1e-12)
    assert gradient(data, W)[1] == pytest.approx(-1500, abs=5)


def test_queries_of_very_different_scale():
    """One query at a gap of 800, one at 900: only the first matters, and a flat one sets no scale."""
    tokens = np.array([[[1.0, 0.0], [0.0, 1.0]]] * 2 + [[[1.0, 0.0], [1.0, 0.0]]])
    data = TokenData(tokens, [[800.0, 0.0], [0.0, 900.0], [1.0, 1.0]], value=[1.0, 0.0])
    assert_exact(data, np.array([[1.0, 1.0], [0.0, 0.0]]), 1e-12)


def test_ties_at_zero_weights():
    data = random_data(5)
    assert_exact(data, np.zeros((data.d_k, data.d_q)), 1e-13)


def test_zero_gradient_is_zero_not_nan():
    one_token = random_data(6, T=1)
    dead = random_data(6, value=None, head=lambda a: jax.nn.relu(a.sum() - 1e6))
    for data in (one_token, dead, random_data(6, value=np.zeros(4))):
        direction, log_scale = gradient(data, np.ones((data.d_k, data.d_q)))
        assert log_scale == -np.inf
        assert (direction == 0).all()


def test_a_head_undefined_at_padding_does_no_harm():
    data = causal_data(7)
    direction, log_scale = gradient(data, np.zeros((4, 4)), head=lambda a: jnp.log(1e-30 + (a * a).sum()))
    assert np.isfinite(direction).all()
    assert np.isfinite(log_scale)
    direction, log_scale = gradient(data, np.zeros((4, 4)), head=lambda a: 1 / (a * a).sum())
    assert np.isfinite(direction).all()
    assert np.isfinite(log_scale)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_scale_and_shift_of_the_data(scale):
    data = random_data(8, m=2)
    W = 100 * np.random.default_rng(9).normal(size=(data.d_k, data.d_q))
    direction, _ = gradient(data, W)
    scaled = TokenData(scale * data.tokens, data.queries, labels=data.labels, value=data.value / scale)
    np.testing.assert_allclose(gradient(scaled, W / scale)[0] / scale, direction, rtol=1e-9, atol=1e-12)
    shift = np.random.default_rng(10).normal(size=(data.n, 1, data.d_k))
    h0 = shift[:, 0] @ data.value
    moved = TokenData(data.tokens + shift, data.queries, labels=data.labels, head=None, value=data.value)
    margin_moved = gradient(moved, W, loss="correlation")[0]
    assert np.abs(h0).max() > 0.1
    np.testing.assert_allclose(margin_moved, gradient(data, W, loss="correlation")[0], rtol=1e-9, atol=1e-11)


def test_runs_share_nothing():
    data = random_data(11)
    W = np.random.default_rng(12).normal(size=(20, data.d_k, data.d_q)) * np.geomspace(0.1, 1e4, 20)[:, None, None]
    direction, log_scale = gradient(data, W)
    for r in (0, 7, 19):
        alone, alone_scale = gradient(data, W[r])
        np.testing.assert_allclose(direction[r], alone, rtol=1e-9, atol=1e-11)
        assert log_scale[r] == pytest.approx(alone_scale, rel=1e-12)


def test_probabilities():
    data = causal_data(13)
    W = np.random.default_rng(14).normal(size=(2, 3, 4, 4))
    s = probabilities(data, W)
    assert s.shape == (2, 3, 3, 5, 5)
    np.testing.assert_allclose(s.sum(-1), np.broadcast_to(data.active, (2, 3, 3, 5)), rtol=1e-14)
    assert (s[..., ~data.mask] == 0).all()
    i, j, t = 2, 3, 1
    assert logits(data, W[1, 2])[i, j, t] == pytest.approx(data.tokens[i, t] @ W[1, 2] @ data.queries[i, j])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.zeros((3, 4)), "expected \\(4, 3\\)"),
        (np.full((4, 3), np.nan), "NaN"),
        ((np.zeros((4, 2)), np.zeros((3, 1))), "K: got"),
        ((np.zeros((4, 2)),) * 3, "tuple of 3"),
        ((np.zeros((5, 4, 2)), np.zeros((3, 2))), "must agree"),
        ("W", "array"),
    ],
)
def test_bad_weights(weights, message):
    with pytest.raises(InputError, match=message):
        gradient(random_data(15), weights)
