"""W_fin + R W_mm: planted weights, explicit features, a scan over R, and the three readings of flat queries."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from attsvm import InputError, NotSeparableError, TokenData, datasets, solve
from attsvm.attention import probabilities
from attsvm.compare import correlation
from attsvm.decompose import VARIANTS, decompose, finite_part, flat_queries
from attsvm.prediction import LinearHead, MLPHead, QuadraticHead
from attsvm.problem import build
from attsvm.selection import as_selection

RNG = np.random.default_rng(2)
DATA = datasets.sphere(3, 4, 6, seed=3)
SETS = np.array([[1, 1, 0, 0], [0, 1, 0, 0], [1, 0, 1, 1]], dtype=bool)[:, None]
FLAT = np.array([True, False, False])


def planted(R, norm="fro"):
    """A weight that is exactly W_fin + R W_mm."""
    start = finite_part(build(DATA, as_selection(DATA, SETS)), RNG.standard_normal((6, 6)))
    return start, start + R * solve(DATA, SETS, norm=norm).W


@pytest.mark.parametrize("norm", ["fro", "nuc", "max"])
def test_planted_parts_are_found(norm):
    W_fin, W = planted(50.0, norm)
    parts = decompose(W, DATA, SETS, norm=norm)
    np.testing.assert_allclose(parts.W_fin, W_fin, atol=1e-7 * np.linalg.norm(W))
    for fit in (parts.least_squares, parts.best_correlation):
        assert abs(fit.R / 50 - 1) < 1e-6
        assert fit.correlation == pytest.approx(1.0, abs=1e-13)
        assert max(fit.residual, fit.map_difference, fit.total_variation) < 1e-5
    assert parts.variant == "paper"
    assert parts.correlations["W_SVMeq"] > parts.correlations["W_mm"] > parts.correlations["single"] > 0
    assert "2 queries with several tokens" in repr(parts)
    assert parts.summary()["least_squares"]["R"] == parts.least_squares.R


def test_W_fin_is_the_least_norm_solution():
    W = RNG.standard_normal((6, 6))
    problem = build(DATA, as_selection(DATA, SETS))
    rows = [np.outer(problem.delta[k], problem.queries[problem.pair[k]]).ravel() for k in range(problem.n_rows)]
    rows = np.array(rows)[problem.equality]
    s = probabilities(DATA, W)[:, 0]
    log_ratios = [np.log(s[i, t] / s[i, u]) for i, _, t, u in problem.rows[problem.equality]]
    least = np.linalg.lstsq(rows, np.array(log_ratios), rcond=None)[0]
    np.testing.assert_allclose(finite_part(problem, W).ravel(), least, atol=1e-12)


def test_identical_tokens_may_be_chosen_together():
    tokens = DATA.tokens.copy()
    tokens[0, 1] = tokens[0, 0]
    data, W = TokenData(tokens, DATA.queries), RNG.standard_normal((6, 6))
    part = finite_part(build(data, as_selection(data, SETS)), W)
    keys = (W - part) @ data.queries[2, 0]
    np.testing.assert_allclose(tokens[2, [2, 3]] @ keys, tokens[2, 0] @ keys, atol=1e-12)
    assert np.isfinite(part).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_both_fits_are_optimal(variant):
    W = planted(5.0)[1] + 0.3 * RNG.standard_normal((6, 6))
    parts = decompose(W, DATA, SETS, flat=FLAT, variant=variant)
    assert np.array_equal(parts.flat[:, 0], FLAT)
    scan = parts.least_squares.R + np.linspace(-1, 1, 2001)
    candidates = parts.W_fin + scan[:, None, None] * parts.W_mm
    distance = np.linalg.norm(W - candidates, axis=(1, 2))
    assert distance.min() >= parts.least_squares.residual * np.linalg.norm(W) - 1e-12
    assert correlation(candidates, W).max() <= parts.best_correlation.correlation + 1e-12
    same = np.isclose(parts.least_squares.R, parts.best_correlation.R, rtol=1e-9)
    assert same == (variant != "dropped")  # else W_mm is not orthogonal to W_fin


def test_variants_differ_in_the_rows_of_flat_queries():
    W = planted(5.0)[1]
    targets = {v: decompose(W, DATA, SETS, flat=FLAT, variant=v).solution.problem.target for v in VARIANTS}
    assert {v: (len(t), int(t.sum())) for v, t in targets.items()} == {
        "paper": (9, 6),
        "dropped": (6, 4),
        "flat": (9, 4),
    }
    assert decompose(W, DATA, SETS, flat=FLAT).variant == "flat"
    assert decompose(W, DATA, SETS, flat=np.zeros(3, dtype=bool)).W_mm == pytest.approx(decompose(W, DATA, SETS).W_mm)


def test_the_map_is_predicted_less_well_by_a_rough_fit():
    W = planted(2.0)[1] + 0.1 * RNG.standard_normal((6, 6))
    fit = decompose(W, DATA, SETS).least_squares
    difference = np.abs(probabilities(DATA, fit.W) - probabilities(DATA, W))
    assert fit.map_difference == difference.max() > 1e-3
    assert fit.total_variation == pytest.approx(difference.sum(-1).max() / 2)


def test_a_tie_has_no_single_token_svm():
    tokens = np.eye(4)[None]
    W = np.array([[5.0], [5.0], [0.0], [0.0]])
    parts = decompose(W, TokenData(tokens, np.ones((1, 1))), np.array([[True, True, False, False]]))
    assert parts.single is None
    assert np.isnan(parts.correlations["single"])
    assert parts.correlations["W_SVMeq"] == pytest.approx(parts.correlations["W_mm"])


def test_dead_units_make_queries_flat():
    tokens = np.stack([np.eye(3), -np.eye(3), np.ones((3, 3))])
    mask = np.ones((3, 2, 3), dtype=bool)
    mask[1, 1] = False
    data = TokenData(tokens, RNG.standard_normal((3, 2, 2)), mask=mask)
    W = RNG.standard_normal((3, 2))
    relu = flat_queries(data, W, MLPHead(np.diag([1.0, 2.0, 3.0])))
    assert relu.tolist() == [[False, False], [True, True], [True, True]]  # dead; padding; tokens all alike
    assert not flat_queries(data, W, LinearHead(np.array([1.0, 2.0, 3.0])))[:2, 0].any()
    assert not flat_queries(data, W, QuadraticHead(np.ones(3), 0.3))[0].any()
    assert flat_queries(data, W, lambda a: jnp.sum(jnp.maximum(a, 0.0)) * 0.0).all()


def test_gelu_is_flat_by_tolerance_only():
    tokens = np.stack([np.eye(3), -3 * np.eye(3) - 9.0])
    data = TokenData(tokens, np.ones((2, 2)), head=MLPHead(np.diag([1.0, 2.0, 3.0]), activation="gelu"))
    assert flat_queries(data, np.zeros((3, 2))).ravel().tolist() == [False, True]
    assert not flat_queries(data, np.zeros((3, 2)), tolerance=0.0).any()


@pytest.mark.parametrize(
    ("W", "options", "message"),
    [
        (np.zeros((6, 6)), {}, "W is zero"),
        (np.ones((6, 5)), {}, "of shape \\(6, 6\\)"),
        (np.eye(6), {"variant": "flat"}, "needs to know the flat queries"),
        (np.eye(6), {"variant": "thin", "flat": FLAT}, "expected one of"),
        (np.eye(6), {"flat": np.ones(4, dtype=bool)}, "flat has shape"),
        (np.eye(6), {"flat": np.ones(3, dtype=bool), "variant": "dropped"}, "dropping them leaves nothing"),
    ],
)
def test_unusable_input(W, options, message):
    with pytest.raises(InputError, match=message):
        decompose(W, DATA, SETS, **options)


def test_sets_that_nothing_separates():
    tokens = np.array([[[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]]])
    with pytest.raises(NotSeparableError):
        decompose(np.eye(2), TokenData(tokens, np.ones((1, 2))), np.array([[True, True, False]]))


def test_bad_tolerance():
    with pytest.raises(InputError, match="tolerance: got"):
        flat_queries(DATA, np.eye(6), tolerance=1.5)
