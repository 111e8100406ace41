"""Cones, feasibility, support tokens without a solver, ranks: against planted cases and the solved problems."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm import InputError, TokenData, attention, correlation, datasets, solve
from attsvm.theory import (
    all_support_vectors,
    all_support_vectors_many,
    cone,
    feasible_by_dimension,
    gradient_in_cone,
    largest_cone,
    rank_bounds,
)


@pytest.fixture(scope="module")
def data():
    return datasets.make("sphere", n=4, T=5, d=5, seed=0)


@pytest.fixture(scope="module")
def solution(data):
    return solve(data)


# Cones


def test_a_planted_angle_is_measured(solution):
    rng = np.random.default_rng(0)
    A = solution.W / np.linalg.norm(solution.W)
    B = rng.standard_normal(A.shape)
    B -= (A * B).sum() * A
    B /= np.linalg.norm(B)
    for mu in (1e-12, 1e-4, 0.3, 1.7):
        W = 5.0 * ((1 - mu) * A + np.sqrt(mu * (2 - mu)) * B)
        found = cone(W, solution.W, mu=1.01 * mu, radius=4.9)
        assert found
        assert found.smallest_mu == pytest.approx(mu, rel=1e-3)
        assert found.norm == pytest.approx(5.0)
        assert not cone(W, solution.W, mu=0.99 * mu)
        assert not cone(W, solution.W, mu=2.0, radius=5.1)


@pytest.mark.parametrize(("mu", "radius"), [(-0.1, 1.0), (2.1, 1.0), (np.nan, 1.0), (0.1, -1.0), (0.1, np.inf)])
def test_cones_are_checked(mu, radius):
    with pytest.raises(InputError, match=r"mu|radius"):
        cone(np.eye(2), np.eye(2), mu=mu, radius=radius)
    with pytest.raises(InputError, match="direction"):
        cone(np.zeros((2, 2)), np.eye(2), mu=0.1)


def test_the_gradient_agrees_inside_a_narrow_cone_and_its_numbers_are_true(data, solution):
    found = gradient_in_cone(data, solution, mu=0.01, radius=100.0, samples=50)
    assert found
    assert found.share == 1.0
    assert found.smallest > 0
    assert (found.depths <= 0.01).all()
    inside = cone(found.worst, solution.W, mu=0.0101, radius=99.9)
    assert inside
    direction, _ = attention.gradient(data, found.worst)
    assert float(correlation(-direction, solution.W)) == pytest.approx(found.smallest)


def test_the_largest_cone_ends_where_the_gradient_turns(data, solution):
    found = largest_cone(data, solution, radius=100.0, samples=50)
    assert found
    assert 0.01 < found.mu < 1.0
    assert found.failure is not None
    assert cone(found.failure, solution.W, mu=2.0).smallest_mu == pytest.approx(found.mu, rel=1e-6)
    direction, _ = attention.gradient(data, found.failure)
    assert float(correlation(-direction, solution.W)) <= 0
    assert gradient_in_cone(data, solution, mu=0.99 * found.mu, radius=100.0, samples=50)


def test_with_all_tokens_support_vectors_the_cone_is_the_whole_space():
    data = datasets.make("sphere", n=3, T=4, d=80, seed=0)
    assert all_support_vectors(data)
    found = largest_cone(data, solve(data), radius=30.0, samples=50)
    assert found.mu == 2.0
    assert found.failure is None


def test_a_direction_that_is_not_locally_optimal_has_no_cone():
    tokens = [[[1.0, 0.0], [0.0, 1.0], [-5.0, 3.0]]]
    data = TokenData(tokens, [[1.0, 0.0]], value=[0.0, 1.0])  # token 1 scores more than 0, and is tight
    found = largest_cone(data, solve(data, [0]), radius=50.0, samples=10)
    assert not found
    assert np.isnan(found.smallest)


def test_cone_checks_refuse_what_they_cannot_use(data, solution):
    line = TokenData([[[2.0], [1.0], [0.0]]], [[1.0]], value=[1.0])
    with pytest.raises(InputError, match="no weight"):
        largest_cone(line, solve(line, [1], throw=False), radius=1.0)
    with pytest.raises(InputError, match="radius"):
        gradient_in_cone(data, solution, mu=0.1, radius=0.0)
    with pytest.raises(InputError, match="samples"):
        gradient_in_cone(data, solution, mu=0.1, radius=1.0, samples=0)


# Feasibility


@pytest.mark.parametrize(("n", "T", "d"), [(3, 4, 3), (4, 2, 4), (2, 5, 4)])
def test_wide_enough_data_are_in_general_position_and_separable(n, T, d):
    for seed in range(5):
        data = datasets.make("sphere", n=n, T=T, d=d, seed=seed)
        found = feasible_by_dimension(data, np.random.default_rng(seed).integers(0, T, n))
        assert found
        assert found.by_dimension
        assert found.general_position
        assert (found.tokens_needed, found.queries_needed) == (T - 1, n)


def test_narrow_data_are_decided_by_the_exact_test():
    answers = []
    for seed in range(10):
        found = feasible_by_dimension(datasets.make("sphere", n=6, T=4, d=2, seed=seed))
        assert not found.by_dimension
        assert not found.general_position
        answers.append(bool(found))
    assert not all(answers)


def test_wide_data_in_special_position_are_found_out():
    data = TokenData([[[1.0, 0, 0], [0.5, 0, 0], [0, 0, 0]]], [[1.0, 0, 0]], value=[1.0, 0, 0])
    found = feasible_by_dimension(data, [1])  # three tokens on a line, the middle one chosen
    assert found.by_dimension
    assert not found.general_position
    assert not found
    assert found.separable.farkas is not None


# All tokens as support vectors


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_linear_system_agrees_with_the_solved_problem(scale):
    answers = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        n, T, d = int(rng.integers(1, 5)), int(rng.integers(2, 5)), int(rng.integers(1, 40))
        law = datasets.make("sphere", n=n, T=T, d=d, seed=seed)
        data = TokenData(scale * law.tokens, law.queries, value=law.value, labels=law.labels)
        chosen = rng.integers(0, T, n)  # in one dimension the scores of the law tie
        found, solved = all_support_vectors(data, chosen), solve(data, chosen, throw=False)
        expected = solved.support is not None and len(solved.support) == solved.problem.n_rows
        assert bool(found) == expected, (n, T, d, found)
        answers.append(expected)
        if expected and not found.singular:
            np.testing.assert_allclose(found.multipliers, solved.dual, rtol=1e-6, atol=1e-9 / scale**2)
    assert 10 < sum(answers) < 50


def test_a_batch_gives_what_each_gives_alone():
    sets = [datasets.make("sphere", n=n, T=4, d=30, seed=n) for n in (2, 3, 2, 4, 3)]
    for one, data in zip(all_support_vectors_many(sets), sets, strict=True):
        alone = all_support_vectors(data)
        assert bool(one) == bool(alone)
        np.testing.assert_allclose(one.multipliers, alone.multipliers, rtol=1e-9)
    assert all_support_vectors_many([]) == []
    with pytest.raises(InputError, match="3 entries"):
        all_support_vectors_many(sets, ["optimal"] * 3)


def test_one_row_is_always_tight_and_its_multiplier_known():
    data = TokenData([[[2.0, 1.0], [0.0, 1.0]]], [[0.0, 3.0]], value=[1.0, 0.0])
    found = all_support_vectors(data)
    assert found
    assert found.multipliers == pytest.approx([1 / 36])  # 1 / (‖δ‖² ‖z‖²)


def test_orthogonal_tokens_have_a_closed_form():
    """n = 1, orthonormal tokens: M = I + 11ᵀ, so u = 1/T for all rows."""
    T = 6
    data = TokenData(np.eye(T)[None], np.ones((1, 1)), value=np.arange(T, 0.0, -1.0))
    found = all_support_vectors(data)
    assert found
    assert found.multipliers == pytest.approx(np.full(T - 1, 1 / T), rel=1e-12)
    assert found.condition == pytest.approx(T)


@pytest.mark.parametrize(
    ("tokens", "expected", "residual"),
    [
        ([[2.0, 0.0], [1.0, 0.0], [1.0, 0.0]], True, 0.0),  # two equal rows
        ([[2.0, 0.0], [1.0, 0.0], [0.0, 0.0]], False, np.inf),  # rows δ and 2δ: inconsistent
        # rows on the line δ_1 = 1: all tight at W z = (1, 0), which lies between (1, 1) and (1, -1) but not below 1
        ([[0.0, 0.0], [-1.0, -1.0], [-1.0, 1.0], [-1.0, 0.5]], True, 0.0),
        ([[0.0, 0.0], [-1.0, -1.0], [-1.0, -2.0], [-1.0, -3.0]], False, None),
        ([[0.0, 0.0], [0.0, 0.0], [-1.0, -2.0]], False, np.inf),  # 0 >= 1
    ],
)
def test_singular_systems_are_decided(tokens, expected, residual):
    data = TokenData([tokens], [[1.0]])
    found = all_support_vectors(data, [0])
    assert found.singular
    assert bool(found) is expected
    if residual is None:
        assert 0.01 < found.residual < np.inf
    else:
        assert found.residual == pytest.approx(residual, abs=1e-9)
    solved = solve(data, [0], throw=False)
    assert expected == (solved.support is not None and len(solved.support) == len(tokens) - 1)


def test_sets_have_no_such_system():
    with pytest.raises(InputError, match="several"):
        all_support_vectors(TokenData([np.eye(3)], [[1.0]]), np.array([[True, True, False]]))


# Ranks


@pytest.mark.parametrize("norm", ["fro", "nuc"])
def test_ranks_keep_to_their_bounds(data, norm):
    found = rank_bounds(solve(data, norm=norm))
    assert found
    assert found.by_dimension == 4
    assert found.by_spans == 4
    assert found.by_dual == (found.rank if norm == "nuc" else None)
    assert found.smallest == found.rank == (4 if norm == "fro" else 2)
    assert abs(found.gap) < 1e-8


def test_dependent_queries_bound_the_rank():
    law = datasets.make("sphere", n=3, T=3, d=6, seed=1)
    data = TokenData(law.tokens, np.repeat(law.queries[:1, 0], 3, axis=0), value=law.value)
    found = rank_bounds(solve(data))
    assert (found.rank, found.by_spans, found.by_dimension) == (1, 1, 3)


def test_no_weight_no_rank():
    line = TokenData([[[2.0], [1.0], [0.0]]], [[1.0]])
    with pytest.raises(InputError, match="no rank"):
        rank_bounds(solve(line, [1], throw=False))
