"""The certificate catches what is wrong, and accepts what is right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attsvm
from attsvm import Certificate, TokenData, verify
from attsvm.problem import build
from attsvm.selection import as_selection

NORMS = ("fro", "nuc")


def make(seed=0, n=5, T=6, d=8, size=1):
    rng = np.random.default_rng(seed)
    data = TokenData(rng.standard_normal((n, T, d)), rng.standard_normal((n, d)))
    return data, np.broadcast_to(np.arange(T) < size, (n, 1, T)).copy()


def solved(norm, size=1):
    data, sets = make(size=size)
    return attsvm.solve(data, sets, norm=norm)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("norm", NORMS)
def test_agrees_with_the_second_implementation(norm, size):
    data, sets = make(size=size)
    rows = oracles.rows_of(data, sets)
    problem = build(data, as_selection(data, sets))
    rng = np.random.default_rng(0)
    np.testing.assert_allclose(problem.delta, rows.delta)
    np.testing.assert_allclose(problem.queries[problem.pair], rows.z)
    np.testing.assert_array_equal(problem.equality, rows.equal)
    solution = attsvm.solve(data, sets, norm=norm)
    for noise in (0.0, 1e-6, 1e-3):
        W = solution.W + noise * rng.standard_normal(solution.W.shape)
        u = solution.dual + noise * rng.standard_normal(solution.dual.shape)
        u = np.where(rows.equal, u, np.maximum(u, 0.0))
        ours, theirs = verify.certify(problem, W, u, norm), oracles.kkt(rows, W, u, norm)
        assert ours.gap == pytest.approx(theirs.gap, abs=1e-13)
        assert ours.violation == pytest.approx(theirs.violation, abs=1e-13)


def negative(u):
    return np.where(np.arange(len(u)) == np.argmin(u), -1e-3 * u.max(), u)


MUTATIONS = {
    "W too small": lambda W, u: ((1 - 1e-7) * W, u),
    "W too large": lambda W, u: ((1 + 1e-7) * W, u),
    "W turned": lambda W, u: (W + 1e-3 * np.abs(W).max() * np.eye(*W.shape), u),
    "W zero": lambda W, u: (0.0 * W, u),
    "W negative": lambda W, u: (-W, u),
    "one multiplier dropped": lambda W, u: (W, np.where(np.arange(len(u)) == np.argmax(u), 0.0, u)),
    "multipliers mixed up": lambda W, u: (W, np.roll(u, 1)),
    "multipliers equal": lambda W, u: (W, np.ones_like(u)),
    "multipliers zero": lambda W, u: (W, 0.0 * u),
    "a negative multiplier": lambda W, u: (W, negative(u)),
    "multipliers of the other sign": lambda W, u: (W, -u),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize("norm", NORMS)
def test_catches(norm, mutation):
    solution = solved(norm)
    assert solution.certificate.holds(1e-8)
    W, u = MUTATIONS[mutation](solution.W, solution.dual)
    assert not verify.certify(solution.problem, W, u, norm).holds(1e-8)


@pytest.mark.parametrize("norm", NORMS)
def test_catches_a_broken_equality(norm):
    solution = solved(norm, size=3)
    problem = solution.problem
    row = int(np.flatnonzero(problem.equality)[0])
    push = np.outer(problem.delta[row], problem.queries[problem.pair[row]])
    W = solution.W + 1e-6 * push / np.sum(push**2)
    assert verify.certify(problem, W, solution.dual, norm).violation == pytest.approx(1e-6, rel=1e-3)
    flipped = np.where(problem.equality, -solution.dual, solution.dual)
    assert not verify.certify(problem, solution.W, flipped, norm).holds(1e-8)


def test_nothing_that_is_nan_holds():
    good = {"primal": 1.0, "bound": 1.0, "gap": 0.0, "violation": 0.0, "dual_violation": 0.0}
    assert Certificate(**good).holds(0.0)
    for name in ("gap", "violation", "dual_violation"):
        assert not replace(Certificate(**good), **{name: np.nan}).holds(1e-2), name
        assert not replace(Certificate(**good), **{name: np.inf}).holds(1e-2), name


def test_the_certificate_of_one_norm_is_none_in_the_other():
    solution = solved("fro")
    assert not verify.certify(solution.problem, solution.W, solution.dual, "nuc").holds(1e-3)


@given(seed=st.integers(0, 2**32 - 1), norm=st.sampled_from(NORMS), size=st.sampled_from([1, 2]))
def test_weak_duality(seed, norm, size):
    """Any multipliers bound any feasible W: the gap is never negative."""
    data, sets = make(size=size)
    problem = build(data, as_selection(data, sets))
    rng = np.random.default_rng(seed)
    feasible = attsvm.solve(data, sets).W + 0.0
    if size == 1:
        feasible = feasible + rng.uniform(0, 0.3) * rng.standard_normal(feasible.shape)
        reach = problem.margins(feasible).min()
        if reach <= 0:
            return
        feasible = feasible / reach
    u = rng.exponential(size=problem.n_rows) ** 3 * np.where(problem.equality, rng.choice([-1, 1], problem.n_rows), 1)
    certificate = verify.certify(problem, feasible, u, norm)
    assert certificate.bound <= certificate.primal * (1 + 1e-12)
    assert certificate.gap >= -1e-12


def infeasible(sets=False):
    """Two examples alike that choose differently; with sets also an equality against a separation."""
    x = np.random.default_rng(0).standard_normal((1, 3, 4))
    data = TokenData(np.repeat(x, 2, axis=0), np.ones((2, 3)))
    chosen = [[True, False, False], [True, True, False]] if sets else [[True, False, False], [False, True, False]]
    return build(data, as_selection(data, np.array(chosen)))


def test_farkas_accepts_a_proof():
    problem = infeasible()
    u = np.where((problem.rows[:, 2:] == [0, 1]).all(1) | (problem.rows[:, 2:] == [1, 0]).all(1), 3.0, 0.0)
    farkas = verify.check_farkas(problem, u)
    assert farkas.residual <= 1e-15
    assert farkas.u.sum() == pytest.approx(1.0)
    assert farkas.norm_bound > 1e10


def test_farkas_takes_either_sign_on_equalities():
    problem = infeasible(sets=True)
    separation = ~problem.equality & (problem.rows[:, 3] == 1)
    for sign in (-1.0, 1.0):
        u = np.where(separation, 1.0, np.where(problem.equality, sign, 0.0))
        assert (verify.check_farkas(problem, u) is not None) == (sign == -1.0)


def test_farkas_rejects():
    problem = infeasible()
    proof = np.where((problem.rows[:, 2:] == [0, 1]).all(1) | (problem.rows[:, 2:] == [1, 0]).all(1), 1.0, 0.0)
    for wrong in (0.0 * proof, -proof, proof * np.nan, np.roll(proof, 1), np.ones_like(proof), proof + 1e-6):
        assert verify.check_farkas(problem, wrong) is None
    off = np.where(np.arange(len(proof)) == np.argmax(proof), 1.0 + 1e-7, proof)
    assert verify.check_farkas(problem, off) is None


@given(seed=st.integers(0, 2**32 - 1))
def test_no_vector_proves_a_separable_problem_infeasible(seed):
    data, sets = make()
    problem = build(data, as_selection(data, sets))
    u = np.random.default_rng(seed).exponential(size=problem.n_rows) ** 4
    assert verify.check_farkas(problem, u) is None


def test_rank_counts_singular_values():
    rng = np.random.default_rng(0)
    U, V = np.linalg.qr(rng.standard_normal((7, 7)))[0], np.linalg.qr(rng.standard_normal((5, 5)))[0]
    for sigma, expected in (([1, 1, 1, 1, 1], 5), ([1, 1e-3, 1e-5, 1e-7, 0], 3), ([1e-9, 1e-10, 0, 0, 0], 2)):
        assert verify.rank((U[:, :5] * sigma) @ V) == expected


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_dual_rank_bound_of_a_planted_optimum(rank):
    planted = oracles.planted(np.random.default_rng(rank), "nuc", n=5, T=5, d_k=8, d_q=6, rank=rank)
    solution = attsvm.solve(planted.data, planted.sets, norm="nuc")
    sigma = np.linalg.svd(solution.problem.combine(solution.dual))[1]
    assert sigma[0] == pytest.approx(1.0)
    assert verify.dual_rank_bound(solution.problem, solution.dual) == np.sum(sigma > 1 - 1e-6) >= rank


@pytest.mark.parametrize("norm", NORMS)
def test_support_tokens_are_the_tight_ones(norm):
    solution = solved(norm)
    problem = solution.problem
    tight = {
        (int(i), int(k), int(t))
        for i, k, a, t in problem.rows
        if (problem.data.tokens[i, a] - problem.data.tokens[i, t]) @ solution.W @ problem.data.queries[i, k] <= 1 + 1e-6
    }
    assert {tuple(map(int, row)) for row in solution.support} == tight
    carrying = problem.rows[solution.dual > 1e-5 * solution.dual.max()][:, [0, 1, 3]]
    assert {tuple(map(int, row)) for row in carrying} <= tight


@pytest.mark.parametrize("norm", NORMS)
def test_nan_in_a_weight_is_never_feasible(norm):
    solution = solved(norm)
    W = np.where(np.eye(*solution.W.shape) > 0, np.nan, solution.W)
    assert np.isnan(verify.violation(solution.problem, W))
