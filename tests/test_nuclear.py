"""Nuclear norm: planted optima, closed forms, KKT conditions, Clarabel, rank certificates and `max_rank`.

The optimum need not be unique: values are compared, not weights.
"""

from __future__ import annotations

import itertools

import numpy as np
import oracles
import pytest

import attsvm
from attsvm import Status, TokenData

PLANTED = {
    "small": {"n": 3, "T": 4, "d_k": 5, "d_q": 5, "rank": 2},
    "paper size": {"n": 6, "T": 8, "d_k": 10, "d_q": 10, "rank": 3},
    "rank one": {"n": 5, "T": 6, "d_k": 7, "d_q": 6, "rank": 1},
    "full rank": {"n": 4, "T": 6, "d_k": 6, "d_q": 4, "rank": 4},
    "wide keys": {"n": 4, "T": 6, "d_k": 12, "d_q": 5, "rank": 2},
    "wide queries": {"n": 5, "T": 6, "d_k": 4, "d_q": 15, "rank": 2},
    "one example": {"n": 1, "T": 9, "d_k": 6, "d_q": 3, "rank": 1},
    "several queries": {"n": 3, "m": 2, "T": 5, "d_k": 8, "d_q": 9, "rank": 3},
    "chosen sets": {"n": 4, "T": 7, "d_k": 9, "d_q": 6, "rank": 2, "chosen": 3},
    "chosen sets, several queries": {"n": 2, "m": 3, "T": 6, "d_k": 11, "d_q": 7, "rank": 3, "chosen": 2},
    "tight rows without multiplier": {"n": 4, "T": 7, "d_k": 9, "d_q": 6, "rank": 2, "degenerate": True},
}


@pytest.mark.parametrize("case", PLANTED)
@pytest.mark.parametrize("seed", range(3))
def test_finds_the_planted_value_and_bounds_the_planted_rank(case, seed):
    problem = oracles.planted(np.random.default_rng(seed), "nuc", **PLANTED[case])
    solution = attsvm.solve(problem.data, problem.sets, norm="nuc")
    assert solution.status is Status.OPTIMAL
    assert solution.value == pytest.approx(problem.value, rel=2e-8)
    assert solution.rank_bound >= np.linalg.matrix_rank(problem.W)
    assert solution.rank <= solution.rank_bound


def sphere(seed, n, T, d_k, d_q=None):
    rng = np.random.default_rng(seed)
    x, z = rng.standard_normal((n, T, d_k)), rng.standard_normal((n, d_q or d_k))
    return TokenData(x / np.linalg.norm(x, axis=-1, keepdims=True), z / np.linalg.norm(z, axis=-1, keepdims=True))


def causal(seed, n, T, d):
    return TokenData.self_attention(np.random.default_rng(seed).standard_normal((n, T, d)), query="all", causal=True)


def first_tokens(data, size=1):
    """The first tokens of every query, fewer where it would leave nothing unchosen."""
    return (np.arange(data.T) < np.minimum(size, np.maximum(data.mask.sum(-1) - 1, 1))[:, :, None]) & data.mask


RANDOM = {
    "paper size": (sphere(0, 6, 8, 10), 1),
    "fifteen examples": (sphere(1, 15, 5, 20), 1),
    "wide queries": (sphere(2, 5, 15, 20, 31), 1),
    "narrow keys": (sphere(3, 4, 4, 3, 9), 1),
    "causal": (causal(4, 2, 6, 16), 1),
    "sets": (sphere(5, 5, 8, 12), 3),
    "causal sets": (causal(6, 2, 5, 16), 2),
}


@pytest.mark.parametrize("case", RANDOM)
def test_kkt_conditions(case):
    data, size = RANDOM[case]
    sets = first_tokens(data, size)
    solution = attsvm.solve(data, sets, norm="nuc")
    kkt = oracles.kkt(oracles.rows_of(data, sets), solution.W, solution.dual, "nuc")
    assert kkt.worst() <= 1e-8
    assert kkt.gap == pytest.approx(solution.certificate.gap, abs=1e-12)


@pytest.mark.parametrize("case", [c for c in RANDOM if c != "fifteen examples"])
def test_agrees_with_clarabel(case):
    data, size = RANDOM[case]
    sets = first_tokens(data, size)
    answer = oracles.clarabel(oracles.rows_of(data, sets), "nuc")
    assert answer.status in ("optimal", "optimal_inaccurate")
    assert attsvm.solve(data, sets, norm="nuc").value == pytest.approx(answer.value, rel=1e-7)


@pytest.mark.parametrize("seed", range(4))
def test_one_constraint(seed):
    rng = np.random.default_rng(seed)
    x, z = rng.standard_normal((1, 2, 7)), rng.standard_normal((1, 4))
    solution = attsvm.solve(TokenData(x, z), [1], norm="nuc")
    delta = x[0, 1] - x[0, 0]
    np.testing.assert_allclose(solution.W, np.outer(delta, z[0]) / (delta @ delta * (z[0] @ z[0])), rtol=1e-12)
    assert solution.rank == solution.rank_bound == 1


def test_examples_in_orthogonal_spaces_add_up():
    n, T = 3, 5
    tokens = np.zeros((n, T, n * T))
    for i in range(n):
        tokens[i, :, i * T : (i + 1) * T] = np.eye(T)
    solution = attsvm.solve(TokenData(tokens, 2.0 * np.eye(n)), [0, 1, 4], norm="nuc")
    assert solution.value == pytest.approx(n * np.sqrt((T - 1) / T) / 2.0, rel=1e-8)
    assert solution.rank == solution.rank_bound == n


def test_one_query_makes_both_norms_agree():
    data = sphere(0, 1, 6, 8)
    assert attsvm.solve(data, [2], norm="nuc").value == pytest.approx(attsvm.solve(data, [2]).value, rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_between_the_frobenius_norms(seed):
    data = sphere(seed, 6, 8, 10)
    fro, nuc = (attsvm.solve(data, [0] * 6, norm=norm) for norm in ("fro", "nuc"))
    assert fro.value <= nuc.value * (1 + 1e-9)
    assert nuc.value <= np.linalg.norm(fro.W, "nuc") * (1 + 1e-9)
    assert nuc.rank <= nuc.rank_bound <= fro.rank_bound == 6


@pytest.mark.parametrize("seed", range(3))
def test_max_rank(seed):
    data = sphere(seed, 6, 8, 10)
    free = attsvm.solve(data, [0] * 6, norm="nuc")
    assert free.rank > 1
    values = []
    for rank in range(1, free.rank + 2):
        solution = attsvm.solve(data, [0] * 6, norm="nuc", max_rank=rank)
        assert solution.rank <= rank
        assert np.linalg.matrix_rank(solution.W, tol=1e-9 * solution.value) <= rank or rank >= free.rank
        assert oracles.rows_of(data, first_tokens(data)).margins(solution.W).min() >= 1 - 1e-8
        values.append(solution.value)
        if rank < free.rank:
            assert solution.status is Status.UNKNOWN
            assert "non-convex" in solution.message
            assert solution.certificate.gap == pytest.approx(1 - free.value / solution.value, rel=1e-4)
        else:
            assert solution.status is Status.OPTIMAL
    assert all(a >= b * (1 - 1e-9) for a, b in itertools.pairwise(values))
    assert values[-1] == values[-2] == free.value


def test_max_rank_keeps_equalities():
    data = sphere(5, 5, 8, 12)
    sets = first_tokens(data, 2)
    free = attsvm.solve(data, sets, norm="nuc")
    solution = attsvm.solve(data, sets, norm="nuc", max_rank=free.rank - 1)
    assert solution.rank == free.rank - 1
    assert solution.certificate.violation <= 1e-8


def test_max_rank_too_small_says_so():
    rng = np.random.default_rng(0)
    data = TokenData(np.tile(np.eye(6), (6, 1, 1)), np.eye(6) + 0.01 * rng.standard_normal((6, 6)))
    solution = attsvm.solve(data, np.arange(6), norm="nuc", max_rank=1, throw=False)
    assert solution.status is Status.UNKNOWN
    assert solution.W is None
    assert "rank at most 1" in solution.message
    assert "non-convex" in solution.message
    with pytest.raises(attsvm.NotSolvedError):
        attsvm.solve(data, np.arange(6), norm="nuc", max_rank=1)
