"""Norms beyond Frobenius and nuclear, soft margins and flat queries, against Clarabel on the plain formulation."""

from __future__ import annotations

import numpy as np
import pytest
from oracles import rows_of

import attsvm
from attsvm import InputError, Status, verify

NORMS = ["fro", "nuc", "spec", "max", 1.75, 3]
PRICES = [None, 0.05, 5.0]


def _instance(seed, n=3, T=4, d=4):
    data = attsvm.datasets.make("sphere", n=n, T=T, d=d, seed=seed)
    rng = np.random.default_rng(seed)
    sets = np.zeros((n, T), dtype=bool)
    for i in range(n):
        sets[i, rng.choice(T, rng.integers(1, 3), replace=False)] = True
    return data, sets


def _clarabel(data, sets, norm, price, flat=None):
    """The objective's optimum on the plain formulation, or None where infeasible."""
    import cvxpy as cp

    rows = rows_of(data, sets[:, None, :])
    target = np.array([0.0 if flat is not None and flat[row] else 1.0 for row in _examples(data, sets)])
    W, free = cp.Variable((data.d_k, data.d_q)), ~rows.equal
    xi = cp.Variable(int(free.sum()), nonneg=True) if price else np.zeros(int(free.sum()))
    margins = cp.sum(cp.multiply(rows.delta @ W, rows.z), axis=1)
    constraints = [margins[np.flatnonzero(free)] + xi >= target[free]]
    if rows.equal.any():
        constraints.append(margins[np.flatnonzero(rows.equal)] == 0)
    size = {"fro": cp.sum_squares(W) / 2, "nuc": cp.normNuc(W), "spec": cp.sigma_max(W), "max": cp.max(cp.abs(W))}
    objective = size[norm] if norm in size else cp.sum(cp.power(cp.abs(W), norm)) / norm
    problem = cp.Problem(cp.Minimize(objective + (price or 0.0) * cp.sum(xi)), constraints)
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    return problem.value if problem.status.startswith("optimal") else None


def _examples(data, sets):
    """The example of each row, in the order of `rows_of`."""
    return [i for i in range(data.n) for _ in range(data.T - 1)]


def _objective(solution, norm, price):
    """`f(W) + CΣξ` of the result, summed here."""
    W, problem = solution.W, solution.problem
    sigma = np.linalg.svd(W)[1]
    size = {"fro": np.sum(W**2) / 2, "nuc": sigma.sum(), "spec": sigma[0], "max": np.abs(W).max()}
    part = size[norm] if norm in size else np.sum(np.abs(W) ** norm) / norm
    short = np.maximum(problem.target - problem.margins(W), 0.0)[~problem.equality].sum()
    return part + (price or 0.0) * short


@pytest.mark.parametrize("price", PRICES)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("several", [False, True], ids=["one token", "sets"])
def test_agrees_with_clarabel(norm, price, several):
    data, sets = _instance(7)
    chosen = sets if several else np.arange(4) == attsvm.selection.optimal(data).indices
    solution = attsvm.solve(data, chosen, norm=norm, slack=price, throw=False)
    expected = _clarabel(data, chosen, norm, price)
    if expected is None:
        assert solution.status is Status.INFEASIBLE
        return
    assert solution.status is Status.OPTIMAL, solution.message
    assert _objective(solution, norm, price) == pytest.approx(expected, rel=2e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_soft_margins_on_inseparable_data(norm):
    data = attsvm.datasets.make("sphere", n=12, T=4, d=2, seed=3)
    assert not attsvm.is_separable(data)
    chosen = np.arange(4) == attsvm.selection.optimal(data).indices
    solution = attsvm.solve(data, chosen, norm=norm, slack=0.7)
    assert solution.certificate.holds(1e-8)
    assert _objective(solution, norm, 0.7) == pytest.approx(_clarabel(data, chosen, norm, 0.7), rel=1e-6)
    assert (solution.dual >= -1e-12).all()
    assert (solution.dual <= 0.7 * (1 + 1e-9)).all()


@pytest.mark.parametrize("norm", ["fro", "nuc", "spec", "max", 3])
def test_a_dear_slack_is_a_hard_margin(norm):
    data, _ = _instance(5)
    hard, soft = attsvm.solve(data, norm=norm), attsvm.solve(data, norm=norm, slack=1e4)
    assert soft.value == pytest.approx(hard.value, rel=1e-7)


@pytest.mark.parametrize("norm", NORMS)
def test_flat_queries_ask_for_no_margin(norm):
    data, _ = _instance(11)
    flat = np.array([True, False, False])
    chosen = np.arange(4) == attsvm.selection.optimal(data).indices
    solution = attsvm.solve(data, chosen, norm=norm, flat=flat)
    reach = solution.problem.margins(solution.W)
    of_flat = flat[solution.problem.rows[:, 0]]
    assert reach[of_flat].min() >= -1e-8
    assert reach[~of_flat].min() == pytest.approx(1.0, abs=1e-7)
    assert _objective(solution, norm, None) == pytest.approx(_clarabel(data, chosen, norm, None, flat), rel=2e-6)
    assert solution.value <= attsvm.solve(data, chosen, norm=norm).value * (1 + 1e-9)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("scale", [1e-5, 1e4])
def test_scaling_the_tokens_scales_the_answer(norm, scale):
    data, _ = _instance(2)
    scaled = attsvm.TokenData(scale * data.tokens, data.queries, labels=data.labels, value=data.value)
    one, other = attsvm.solve(data, norm=norm), attsvm.solve(scaled, norm=norm)
    assert other.value == pytest.approx(one.value / scale, rel=1e-6)


def test_two_is_the_frobenius_norm_and_names_are_kept():
    data, _ = _instance(4)
    assert attsvm.solve(data, norm=2).norm == "fro"
    cubic = attsvm.solve(data, norm=3)
    assert cubic.norm == "p=3"
    assert verify.certify(cubic.problem, cubic.W, cubic.dual, "p=3").holds(1e-8)


def test_a_solution_of_a_soft_and_flat_problem_comes_back_from_its_file(tmp_path):
    data, _ = _instance(6)
    solution = attsvm.solve(data, norm=3, slack=0.5, flat=np.array([True, False, False]))
    again = attsvm.load_solution(solution.save(tmp_path / "s.npz"))
    assert (again.norm, again.slack) == ("p=3", 0.5)
    assert np.array_equal(again.problem.target, solution.problem.target)


def test_a_certificate_sees_multipliers_outside_their_box():
    data, _ = _instance(8)
    solution = attsvm.solve(data, slack=0.1)
    worse = verify.certify(solution.problem, solution.W, solution.dual * 50, "fro", 0.1)
    assert worse.dual_violation > 0.5
    assert not worse.holds(1e-8)


@pytest.mark.parametrize("norm", ["l2", 1.0, 0.5, 40, "p=", True])
def test_norms_that_are_not_offered(norm):
    with pytest.raises(InputError, match="norm must be one of"):
        attsvm.solve(_instance(1)[0], norm=norm)


@pytest.mark.parametrize("options", [{"slack": 0.0}, {"slack": -1}, {"slack": np.inf}])
def test_slack_is_a_positive_price(options):
    with pytest.raises(InputError, match="slack is the price"):
        attsvm.solve(_instance(1)[0], **options)


def test_flat_is_checked():
    data = _instance(1)[0]
    with pytest.raises(InputError, match="flat must be booleans"):
        attsvm.solve(data, flat=[0, 1, 0])
    with pytest.raises(InputError, match="flat: W = 0 meets all rows"):
        attsvm.solve(data, flat=[True, True, True])
