"""Conditions for global convergence and stationary points, against loops, finite differences and planted cases."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from attsvm import InputError, TieError, TokenData, attention, datasets
from attsvm.theory import all_support_vectors, favourable_start, score_spread, stationary_points

# Two examples on a line that pull in opposite directions: W = 0 is stationary, and no W separates.
TUG = TokenData([[[1.0], [-1.0]], [[1.0], [-1.0]]], [[1.0], [1.0]], labels=[1.0, -1.0], value=[1.0])


@pytest.fixture(scope="module")
def data():
    return datasets.make("sphere", n=3, T=4, d=5, seed=1)


def test_spread_and_gap_are_those_of_the_scores(data):
    found = score_spread(data)
    gamma = np.sort(data.labels * (data.tokens @ data.value), axis=-1)
    np.testing.assert_allclose(found.spread[:, 0], gamma[:, -2] - gamma[:, 0])
    np.testing.assert_allclose(found.gap[:, 0], gamma[:, -1] - gamma[:, -2])
    assert found.largest == pytest.approx(((gamma[:, -2] - gamma[:, 0]) / (gamma[:, -1] - gamma[:, -2])).max())
    assert not found
    assert score_spread(data, tolerance=1.01 * found.largest)


def test_equal_scores_have_no_spread():
    tokens = np.random.default_rng(0).standard_normal((2, 4, 3))
    tokens[:, :, 0] = [2.0, 0.5, 0.5, 0.5]
    found = score_spread(TokenData(tokens, np.ones((2, 2)), value=[1.0, 0.0, 0.0]))
    assert found
    assert found.largest == 0.0
    assert found.gap == pytest.approx(1.5)


def test_padding_and_single_tokens_have_nothing_to_spread():
    mask = np.array([[[True, True, True], [True, False, False], [False, False, False]]])
    data = TokenData([[[3.0], [1.0], [1.0]]], np.ones((1, 3, 1)), mask=mask, value=[1.0])
    found = score_spread(data)
    assert found
    np.testing.assert_array_equal(found.spread, [[0.0, 0.0, np.nan]])
    assert found.gap[0, 1] == np.inf


def test_spread_needs_a_unique_best_score_and_a_tolerance(data):
    with pytest.raises(TieError):
        score_spread(TokenData([[[1.0], [1.0], [0.0]]], [[1.0]], value=[1.0]))
    with pytest.raises(InputError, match="tolerance"):
        score_spread(data, tolerance=-1.0)


def _loss(data: TokenData, W: np.ndarray) -> float:
    s = attention.probabilities(data, W)
    h = np.einsum("nmt,ntk,k->nm", s, data.tokens, data.value)
    return float(np.logaddexp(0.0, -data.labels * h).mean())


def _numerical_gradient(data: TokenData, W: np.ndarray) -> np.ndarray:
    G = np.zeros_like(W)
    for index in np.ndindex(W.shape):
        step = np.zeros_like(W)
        step[index] = 1e-5
        G[index] = (_loss(data, W + step) - _loss(data, W - step)) / 2e-5
    return G


def test_the_start_is_judged_by_the_gradient_there(data):
    W0 = np.random.default_rng(0).uniform(-0.4, 0.4, (5, 5))
    found, G = favourable_start(data, W0), _numerical_gradient(data, W0)
    opt = (data.labels * (data.tokens @ data.value)).argmax(-1)
    for value, (i, _, t) in zip(found.values, found.rows, strict=True):
        expected = (data.tokens[i, opt[i]] - data.tokens[i, t]) @ -G @ data.queries[i, 0] / np.linalg.norm(G)
        assert value == pytest.approx(expected, abs=1e-6)
    assert found.log_norm == pytest.approx(np.log(np.linalg.norm(G)), abs=1e-6)
    assert found.smallest == found.values.min()
    assert list(found.where) in found.rows.tolist()


def test_one_example_of_equal_other_scores_starts_well_and_may_be_saturated():
    data = TokenData([np.eye(3)], [[1.0]], value=[1.0, 0.0, 0.0])
    assert favourable_start(data, np.zeros((3, 1)))
    found = favourable_start(data, np.array([[-2000.0], [0.0], [0.0]]))
    assert found
    assert found.log_norm < -1000
    assert not favourable_start(data, np.zeros((3, 1)), chosen=[1])


def test_a_vanishing_gradient_is_no_favourable_start():
    found = favourable_start(TUG, np.zeros((1, 1)))
    assert not found
    assert found.smallest == 0.0
    assert found.log_norm == -np.inf


def test_a_planted_stationary_point_is_found_with_its_curvature():
    found = stationary_points(TUG, starts=6)
    assert found
    assert found.smallest < 1e-9
    assert found.count >= 1
    assert not found.at_boundary
    direction, log_scale = attention.gradient(TUG, found.W)
    assert np.linalg.norm(direction) * np.exp(log_scale) < 1e-8
    assert found.hessian.shape == (1,)
    assert "ended at a stationary point" in repr(found)


def test_a_stationary_point_away_from_zero_is_found():
    """`h(a) = -(a - c)²` pulls the pooled token to c = 0.6, where the softmax of ±1 is (0.8, 0.2): logit gap ln 4."""
    data = TokenData([[[1.0], [-1.0]]], [[1.0]], head=lambda a: -((a[0] - 0.6) ** 2))
    found = stationary_points(data, starts=6)
    assert found
    best = found.points[found.relative <= 1e-9]
    assert np.abs(best - np.log(2.0)).min() < 1e-6
    assert found.hessian[0] > 0  # a minimum


def test_without_one_the_smallest_norm_is_reported_truly():
    data = datasets.make("sphere", n=3, T=3, d=60, seed=0)
    assert all_support_vectors(data)
    found = stationary_points(data, starts=6, steps=40, seed=3)
    assert not found
    assert found.smallest > 0.05
    assert (np.linalg.norm(found.points, axis=(1, 2)) <= found.radius).all()
    assert "no proof" in repr(found)
    direction, log_scale = attention.gradient(data, found.W)
    zero, zero_scale = attention.gradient(data, np.zeros((60, 60)))
    expected = np.linalg.norm(direction) / np.linalg.norm(zero) * np.exp(log_scale - zero_scale)
    assert found.norms[found.relative.argmin()] == pytest.approx(expected, rel=1e-8)


def test_padding_hidden_tokens_and_other_heads_are_understood():
    rng = np.random.default_rng(0)
    mask = np.ones((2, 2, 3), dtype=bool)
    mask[0, 0, 2] = mask[1, 0, 0] = False
    mask[1, 1] = False
    data = TokenData(rng.standard_normal((2, 3, 2)), rng.standard_normal((2, 2, 3)), mask=mask)
    found = stationary_points(data, head=lambda a: jnp.tanh(a).sum(), loss="exponential", starts=4, steps=20)
    direction, log_scale = attention.gradient(data, found.W, head=lambda a: jnp.tanh(a).sum(), loss="exponential")
    zero, zero_scale = attention.gradient(data, 0 * found.W, head=lambda a: jnp.tanh(a).sum(), loss="exponential")
    expected = np.linalg.norm(direction) / np.linalg.norm(zero) * np.exp(log_scale - zero_scale)
    assert found.norms[found.relative.argmin()] == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("wrong", [{"starts": 0}, {"steps": 0}, {"seed": -1}, {"radius": 0.0}, {"radius": np.inf}])
def test_options_of_the_search_are_checked(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        stationary_points(TUG, **wrong)
