"""Local optimality on an example small enough to solve by hand."""

from __future__ import annotations

import numpy as np
import pytest

import attsvm
from attsvm import InputError, TokenData, solve
from attsvm.theory import local_optimality

# For α = 0 and z = (1, 0): W_mm z = (1/2, -1/2), token 1 is tight and token 2 has margin 4.5.
TOKENS = [[[1.0, 0.0], [0.0, 1.0], [-5.0, 3.0]]]


def _found(value: list[float], norm: str = "fro"):
    data = TokenData(TOKENS, [[1.0, 0.0]], value=value)
    return local_optimality(data, solve(data, [0], norm=norm))


@pytest.mark.parametrize("norm", ["fro", "nuc"])
def test_a_better_support_token_is_a_violation_with_its_number(norm):
    found = _found([0.0, 1.0], norm)
    assert not found
    assert found.tokens.tolist() == [[0, 0, 1]]
    assert found.smallest == pytest.approx(-1.0)
    assert found.violated.tolist() == [[0, 0, 1]]


def test_a_better_token_that_is_no_support_token_does_not_matter():
    found = _found([-1.0, -1.5])  # scores -1, -1.5, 0.5
    assert found
    assert not found.globally_optimal
    assert found.smallest == pytest.approx(0.5)
    assert len(found.violated) == 0


def test_the_optimal_tokens_are_locally_and_globally_optimal():
    found = _found([1.0, -1.0])
    assert found
    assert found.globally_optimal


def test_equal_scores_do_not_count_as_higher():
    assert not _found([1.0, 1.0])


def test_labels_and_padding_queries_are_respected():
    rng = np.random.default_rng(0)
    mask = np.ones((3, 2, 4), dtype=bool)
    mask[1, 1] = False
    data = TokenData(
        rng.standard_normal((3, 4, 16)),
        rng.standard_normal((3, 2, 16)),
        mask=mask,
        labels=[1.0, -1.0, 1.0],
        value=rng.standard_normal(16),
    )
    found = attsvm.local_optimality(data, solve(data))
    assert found
    assert found.globally_optimal
    assert not any(i == 1 and k == 1 for i, k, _ in found.tokens)


def test_tokens_that_cannot_be_separated_have_no_support_tokens():
    data = TokenData([[[1.0, 0.0], [1.0, 0.0]]], [[1.0, 0.0]], value=[1.0, 0.0])
    with pytest.raises(InputError, match="support tokens"):
        local_optimality(data, solve(data, [0], throw=False))
