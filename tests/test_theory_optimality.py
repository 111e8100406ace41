"""Locally optimal choices and the direction of a weight, against exhaustive loops and examples solved by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import attsvm
from attsvm import InputError, NotSeparableError, Status, TieError, TokenData, datasets, solve
from attsvm.theory import local_optimality, locally_optimal_choices, nearest_direction

# For α = 0 and z = (1, 0): W_mm z = (1/2, -1/2), token 1 is tight and token 2 has margin 4.5.
TOKENS = [[[1.0, 0.0], [0.0, 1.0], [-5.0, 3.0]]]


@pytest.fixture(scope="module")
def small():
    return datasets.make("sphere", n=3, T=3, d=3, seed=2)


@pytest.fixture(scope="module")
def choices(small):
    return locally_optimal_choices(small)


def test_tokens_are_solved_and_a_solution_is_taken_as_it_is(small):
    ours, given = local_optimality(small, [0, 1, 2], norm="nuc"), solve(small, [0, 1, 2], norm="nuc")
    theirs = local_optimality(small, given)
    assert ours.solution.norm == "nuc"
    assert theirs.solution is given
    np.testing.assert_allclose(ours.margins, theirs.margins)
    assert ours.alpha.ravel().tolist() == [0, 1, 2]


def test_margins_are_differences_of_scores_at_the_tight_rows(small):
    found = local_optimality(small, [2, 0, 1])
    gamma = small.labels * (small.tokens @ small.value)
    alpha = [2, 0, 1]
    for (i, _, t), gap in zip(found.tokens, found.margins, strict=True):
        assert gap == pytest.approx(gamma[i, alpha[i]] - gamma[i, t])
        row = (small.tokens[i, alpha[i]] - small.tokens[i, t]) @ found.solution.W @ small.queries[i, 0]
        assert row == pytest.approx(1.0, abs=1e-6)


def test_tokens_that_cannot_be_separated_raise():
    with pytest.raises(NotSeparableError, match="identical"):
        local_optimality(TokenData([[[1.0, 0.0], [1.0, 0.0]]], [[1.0, 0.0]], value=[1.0, 0.0]), [0])


def test_a_solution_of_other_data_is_refused(small):
    with pytest.raises(InputError, match="other data"):
        local_optimality(small, solve(datasets.make("sphere", n=3, T=3, d=3, seed=3)))


def test_every_choice_is_tried_when_there_are_few(small, choices):
    expected = set()
    for alpha in product(range(3), repeat=3):
        solution = solve(small, list(alpha), throw=False)
        if solution.status is Status.OPTIMAL and local_optimality(small, solution):
            expected.add(alpha)
    assert {tuple(one.alpha.ravel().tolist()) for one in choices.found} == expected
    assert choices.exhaustive
    assert choices.seed is None
    assert (choices.total, choices.tried, choices.coverage) == (27, 27, 1.0)
    assert choices.separable == 27  # d >= max(T - 1, n)
    assert choices.found[0].globally_optimal
    assert "27 in total" in repr(choices)


def test_a_locally_optimal_choice_that_is_not_optimal_is_found():
    data = TokenData(TOKENS, [[1.0, 0.0]], value=[-1.0, -1.5])  # scores -1, -1.5, 0.5
    found = locally_optimal_choices(data).found
    assert [one.alpha.item() for one in found] == [2, 0]
    assert [one.globally_optimal for one in found] == [True, False]


def test_choices_that_cannot_be_separated_are_counted_apart():
    data = TokenData([[[2.0], [1.0], [0.0]]], [[1.0]], value=[1.0])  # on a line, only the ends can be separated
    choices = locally_optimal_choices(data)
    assert (choices.tried, choices.separable, choices.unsettled) == (3, 2, 0)
    assert [one.alpha.item() for one in choices.found] == [0]


def test_a_sample_says_what_it_covers_and_can_be_repeated(small, choices):
    first, second = (locally_optimal_choices(small, limit=1, samples=9, seed=4) for _ in range(2))
    assert first.tried == 9
    assert first.total == 27
    assert not first.exhaustive
    assert first.seed == 4
    assert first.found[0].globally_optimal
    assert [one.alpha.tolist() for one in first.found] == [one.alpha.tolist() for one in second.found]
    everywhere = {one.alpha.tobytes() for one in choices.found}
    assert {one.alpha.tobytes() for one in first.found} <= everywhere
    assert "seed 4" in repr(first)


def test_hidden_tokens_and_padding_are_no_choices():
    rng = np.random.default_rng(0)
    mask = np.ones((2, 2, 3), dtype=bool)
    mask[0, 0, 2] = False
    mask[1, 1] = False
    data = TokenData(rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 2, 4)), mask=mask, value=np.ones(4))
    choices = locally_optimal_choices(data)
    assert choices.total == 2 * 3 * 3
    assert all(one.alpha[1, 1] == -1 for one in choices.found)


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"samples": 0}, {"limit": 1, "samples": 2, "seed": -1}])
def test_counts_are_checked(small, wrong):
    with pytest.raises(InputError, match="integer"):
        locally_optimal_choices(small, **wrong)


def test_a_weight_near_a_direction_is_assigned_to_it(small, choices):
    for j, one in enumerate(choices.found):
        nudge = np.random.default_rng(j).standard_normal((3, 3))
        W = 7.0 * (one.solution.W + 1e-3 * nudge)
        went = nearest_direction(small, W, among=choices)
        assert went
        assert (went.alpha == one.alpha).all()
        assert went.order[0] == j
        assert went.correlations[j] == pytest.approx(went.correlation)
        assert went.correlation > 1 - 1e-4
        assert 0.9 < went.efficiency <= 1 + 1e-9
        assert (np.diff(went.correlations[went.order]) <= 0).all()


def test_training_ends_at_one_of_the_enumerated_directions(small, choices):
    W = attsvm.train(small, steps=2000, seeds=1, progress=False).final[0]
    went = nearest_direction(small, W, among=[one.solution for one in choices.found])
    assert went
    assert went.correlation > 0.98
    assert went.correlations.max() == pytest.approx(went.correlation)


def test_a_weight_without_a_direction_is_a_tie(small):
    with pytest.raises(TieError):
        nearest_direction(small, np.zeros((3, 3)))


def test_directions_without_a_weight_cannot_be_ranked(small):
    line = TokenData([[[2.0], [1.0], [0.0]]], [[1.0]], value=[1.0])
    with pytest.raises(InputError, match=r"among\[0\]"):
        nearest_direction(small, np.eye(3), among=[solve(line, [1], throw=False)])
