"""Frobenius norm: planted optima, closed forms, KKT conditions written apart, and two external solvers."""

from __future__ import annotations

import daqp
import numpy as np
import oracles
import pytest

import attsvm
from attsvm import Status, TokenData

PLANTED = {
    "small": {"n": 3, "T": 4, "d_k": 5, "d_q": 5, "rank": 2},
    "paper size": {"n": 6, "T": 8, "d_k": 10, "d_q": 10, "rank": 4},
    "wide keys": {"n": 4, "T": 6, "d_k": 12, "d_q": 5, "rank": 3},
    "wide queries": {"n": 5, "T": 6, "d_k": 4, "d_q": 15, "rank": 3},
    "one example": {"n": 1, "T": 9, "d_k": 6, "d_q": 3, "rank": 1},
    "several queries": {"n": 3, "m": 2, "T": 5, "d_k": 8, "d_q": 9, "rank": 4},
    "chosen sets": {"n": 4, "T": 7, "d_k": 9, "d_q": 6, "rank": 3, "chosen": 3},
    "chosen sets, several queries": {"n": 2, "m": 3, "T": 6, "d_k": 11, "d_q": 7, "rank": 3, "chosen": 2},
    "tight rows without multiplier": {"n": 4, "T": 7, "d_k": 9, "d_q": 6, "rank": 3, "degenerate": True},
}


@pytest.mark.parametrize("case", PLANTED)
@pytest.mark.parametrize("seed", range(3))
def test_finds_the_planted_optimum(case, seed):
    problem = oracles.planted(np.random.default_rng(seed), "fro", **PLANTED[case])
    solution = attsvm.solve(problem.data, problem.sets)
    assert solution.status is Status.OPTIMAL
    assert solution.value == pytest.approx(problem.value, rel=1e-11)
    np.testing.assert_allclose(solution.W, problem.W, atol=1e-9 * problem.value)


def random_data(seed, n, T, d_k, d_q, causal=False):
    rng = np.random.default_rng(seed)
    if causal:
        return TokenData.self_attention(rng.standard_normal((n, T, d_k)), query="all", causal=True)
    return TokenData(rng.standard_normal((n, T, d_k)), rng.standard_normal((n, d_q)))


def random_sets(seed, data, size):
    """`size` visible tokens for each query, fewer where it would leave nothing unchosen."""
    order = np.argsort(np.where(data.mask, np.random.default_rng(seed).random(data.mask.shape), 2.0)).argsort()
    return (order < np.minimum(size, np.maximum(data.mask.sum(-1) - 1, 1))[:, :, None]) & data.mask


RANDOM = {
    "paper size": (6, 8, 10, 10, False, 1),
    "more rows than dimensions": (2, 15, 3, 5, False, 1),
    "wide": (10, 10, 40, 25, False, 1),
    "causal": (3, 6, 20, 20, True, 1),
    "sets": (5, 8, 12, 9, False, 3),
    "causal sets": (2, 5, 16, 16, True, 2),
}


@pytest.mark.parametrize("case", RANDOM)
@pytest.mark.parametrize("seed", range(3))
def test_kkt_conditions(case, seed):
    n, T, d_k, d_q, causal, size = RANDOM[case]
    data = random_data(seed, n, T, d_k, d_q, causal)
    sets = random_sets(seed, data, size)
    solution = attsvm.solve(data, sets, throw=False)
    if solution.status is Status.INFEASIBLE:
        assert oracles.farkas_residual(oracles.rows_of(data, sets), solution.farkas.u) < 1e-12
        return
    rows = oracles.rows_of(data, sets)
    assert oracles.kkt(rows, solution.W, solution.dual, "fro").worst() < 1e-11
    np.testing.assert_allclose(rows.combine(solution.dual), solution.W, atol=1e-10 * solution.value)
    assert solution.value**2 == pytest.approx(solution.dual[~rows.equal].sum(), rel=1e-10)


@pytest.mark.parametrize("seed", range(4))
def test_one_constraint(seed):
    rng = np.random.default_rng(seed)
    x, z = rng.standard_normal((1, 2, 7)), rng.standard_normal((1, 4))
    solution = attsvm.solve(TokenData(x, z), [1])
    delta = x[0, 1] - x[0, 0]
    np.testing.assert_allclose(solution.W, np.outer(delta, z[0]) / (delta @ delta * (z[0] @ z[0])), rtol=1e-13)
    assert solution.support.tolist() == [[0, 0, 0]]
    assert solution.rank == solution.rank_bound == 1
    assert solution.margin == pytest.approx(np.linalg.norm(delta) * np.linalg.norm(z), rel=1e-13)


def test_orthonormal_tokens_and_queries():
    n, T = 4, 6
    data = TokenData(np.tile(np.eye(T), (n, 1, 1)), np.eye(n))
    chosen = np.array([0, 2, 2, 5])
    solution = attsvm.solve(data, chosen)
    expected = np.full((T, n), -1.0 / T)
    expected[chosen, np.arange(n)] = (T - 1) / T
    np.testing.assert_allclose(solution.W, expected, atol=1e-14)
    assert len(solution.support) == n * (T - 1)


@pytest.mark.parametrize("seed", range(4))
def test_all_tokens_support_closed_form(seed):
    data = random_data(seed, 3, 4, 60, 60)
    rows = oracles.rows_of(data, np.arange(4) == np.zeros((3, 1, 1)))
    u = np.linalg.solve(rows.matrix @ rows.matrix.T, np.ones(len(rows.delta)))
    assert (u >= 0).all(), "in 60 dimensions every row of these data is tight"
    solution = attsvm.solve(data, [0, 0, 0])
    np.testing.assert_allclose(solution.dual, u, rtol=1e-9)
    assert len(solution.support) == len(u)


@pytest.mark.parametrize("case", RANDOM)
def test_agrees_with_an_active_set_solver(case):
    n, T, d_k, d_q, causal, size = RANDOM[case]
    data = random_data(11, n, T, d_k, d_q, causal)
    sets = random_sets(11, data, size)
    solution = attsvm.solve(data, sets, throw=False)
    rows = oracles.rows_of(data, sets)
    A, width = np.ascontiguousarray(rows.matrix), d_k * d_q
    upper = np.where(rows.equal, 0.0, 1e30)
    sense = np.where(rows.equal, 5, 0).astype(np.int32)
    x, _, flag, _ = daqp.solve(np.eye(width), np.zeros(width), A, upper, rows.target, sense)
    assert (flag > 0) == (solution.status is Status.OPTIMAL)
    if flag > 0:
        np.testing.assert_allclose(solution.W.ravel(), x, atol=1e-6 * solution.value)


@pytest.mark.parametrize("size", [1, 2])
def test_agrees_with_clarabel(size):
    data = random_data(5, 6, 8, 10, 7)
    sets = random_sets(5, data, size)
    answer = oracles.clarabel(oracles.rows_of(data, sets), "fro")
    assert attsvm.solve(data, sets).value == pytest.approx(answer.value, rel=1e-8)


@pytest.mark.parametrize("nearness", [1e-2, 1e-4, 1e-6])
def test_correlated_tokens_and_queries(nearness):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(12) + nearness * rng.standard_normal((6, 8, 12))
    z = rng.standard_normal(12) + max(nearness, 1e-3) * rng.standard_normal((6, 12))
    certificate = attsvm.solve(TokenData(x, z), [0] * 6).certificate
    assert certificate.holds(1e-8)


def test_padding_query_and_short_example():
    rng = np.random.default_rng(0)
    x, z = rng.standard_normal((2, 3, 5)), rng.standard_normal((2, 2, 5))
    mask = np.ones((2, 2, 3), dtype=bool)
    mask[0, 1], mask[1, :, 2] = False, False
    data = TokenData(x, z, mask=mask)
    solution = attsvm.solve(data, np.array([[1, 0], [0, 1]]))
    assert solution.problem.rows.tolist() == [[0, 0, 1, 0], [0, 0, 1, 2], [1, 0, 0, 1], [1, 1, 1, 0]]
    assert solution.certificate.holds(1e-12)
