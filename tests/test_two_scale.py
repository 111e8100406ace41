"""Two-scale training against explicit features, hand-made logarithms and closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm import InputError, Selection, TokenData, datasets, train
from attsvm.attention import gradient
from attsvm.decompose import decompose, flat_queries
from attsvm.prediction import MLPHead, QuadraticHead
from attsvm.selection import by_threshold
from attsvm.two_scale import train_two_scale

RNG = np.random.default_rng(5)
HEAD = MLPHead(RNG.standard_normal((5, 6)))
DATA = TokenData(RNG.standard_normal((3, 4, 6)), RNG.standard_normal((3, 5)), labels=[1, -1, 1], head=HEAD)
SETS = np.array([[1, 1, 0, 0], [0, 1, 0, 0], [1, 0, 1, 1]], dtype=bool)[:, None]
W0 = RNG.standard_normal((6, 5)) / 5


def basis_of_differences(data, sets):
    """Orthonormal basis of E from all pairs, in explicit d² features."""
    pairs = [
        np.outer(data.tokens[i, t] - data.tokens[i, u], data.queries[i, k]).ravel()
        for i, k in np.ndindex(sets.shape[:2])
        for t in np.flatnonzero(sets[i, k])
        for u in np.flatnonzero(sets[i, k])
        if t < u
    ]
    _, s, Vt = np.linalg.svd(np.array(pairs), full_matrices=False)
    return Vt[s > 1e-10 * s[0]]


def expected_step(data, sets, W, outer=None):
    direction, log_scale = gradient(data, W)
    E, g = basis_of_differences(data, sets), np.exp(log_scale) * direction.ravel()
    outer = g if outer is None else outer.ravel()
    away = outer - E.T @ (E @ outer)
    return W - 0.3 * (E.T @ (E @ g) + away / np.linalg.norm(away)).reshape(W.shape)


def one_step(data, sets, W, **rest):
    return train_two_scale((data, W), Selection(sets), steps=1, learning_rate=0.3, record=2, **rest).final[0]


def test_a_step_is_plain_inside_and_normalised_outside():
    np.testing.assert_allclose(one_step(DATA, SETS, W0), expected_step(DATA, SETS, W0), atol=1e-13)


def test_several_queries_per_example_and_masks():
    mask = np.ones((3, 2, 4), dtype=bool)
    mask[0, 1, 3] = False
    mask[2, 0] = False
    data = TokenData(DATA.tokens, RNG.standard_normal((3, 2, 5)), mask=mask, head=HEAD)
    sets = np.repeat(SETS, 2, axis=1) & mask
    np.testing.assert_allclose(one_step(data, sets, W0), expected_step(data, sets, W0), atol=1e-13)


def test_the_direction_is_right_where_everything_underflows():
    """One example at logit gaps of 2,000: the outer gradient is e^-2000, and only ratios of its terms count."""
    tokens, logits = np.eye(4)[None], np.array([0.3, 0.0, -2000.0, -2001.0])
    data = TokenData(tokens, np.array([[1.0, 0.0]]), head=QuadraticHead(np.array([0.9, 1.0, 0.2, -0.4]), 0.3))
    W, sets = np.stack([logits, np.zeros(4)], axis=1), np.array([1, 1, 0, 0], dtype=bool).reshape(1, 1, 4)
    s = np.exp(logits[:2]) / np.exp(logits[:2]).sum()
    g = data.head.value - 0.6 * np.array([*s, 0.0, 0.0])
    r = np.array([1.0, np.exp(-1.0)])  # in units of s_2
    across = s * [(r * (g[t] - g[2:])).sum() for t in (0, 1)]
    outer = -np.array([*across, *(r * (g[2:] - s @ g[:2]))])
    outer = np.stack([outer, np.zeros(4)], axis=1)
    np.testing.assert_allclose(one_step(data, sets, W), expected_step(data, sets, W, outer), atol=1e-12)


def test_a_token_without_force_does_not_hide_the_next_one():
    """Tokens 0 (chosen) and 1 are the same to the head; only token 2, e^-5000 below, moves anything."""
    data = TokenData(np.eye(3)[None], np.ones((1, 1)), value=np.array([1.0, 1.0, 0.0]))
    W, sets = np.array([[0.0], [-1000.0], [-5000.0]]), np.array([True, False, False]).reshape(1, 1, 3)
    np.testing.assert_allclose(one_step(data, sets, W) - W, 0.3 / np.sqrt(2) * np.array([[1.0], [0.0], [-1.0]]))


def test_outer_steps_leave_no_trace_in_the_finite_part():
    """Example 0 is dead for good, and example 1 soon so saturated that it exerts no plain force at all."""
    head = MLPHead(-np.ones((1, 3)))  # dead on the positive tokens of example 0
    tokens = np.stack([np.abs(RNG.standard_normal((3, 3))), -np.abs(RNG.standard_normal((3, 3)))])
    data = TokenData(tokens, RNG.standard_normal((2, 3)), head=head)
    assert flat_queries(data, np.zeros((3, 3))).ravel().tolist() == [True, False]
    best = np.arange(3) == (tokens[1] @ -np.ones(3)).argmax()
    sets = np.array([[True, True, False], best]).reshape(2, 1, 3)
    run = train_two_scale((data, np.zeros((3, 3))), sets, record=[2000, 6000])
    assert run.norms[0, 1] - run.norms[0, 0] > 300
    between = (tokens[0, 0] - tokens[0, 1]) @ run.W[0] @ data.queries[0, 0]
    assert abs(between[1] - between[0]) < 1e-9


def test_with_one_token_each_it_is_normalised_gradient_descent():
    data = datasets.sphere(4, 5, 6, seed=1)
    start = train(data, steps=300, record=2)
    chosen = Selection(start.probabilities[0, -1] > 0.5)
    again = train(data, initial=start.final, steps=3000, record=2)
    np.testing.assert_allclose(train_two_scale(start, chosen, steps=3000).final, again.final, rtol=1e-9)


def test_the_natural_step_finds_sparsemax():
    """arXiv 2308.16898, section 6: with orthonormal tokens and `vᵀa - λ‖a‖²` the best map is sparsemax(Xv/2λ)."""
    drawn = datasets.make_many("orthonormal", range(6), n=1, T=6, d=6)
    scores = np.stack([one.tokens[0] @ one.value for one in drawn]) / (2 * 0.3)
    best = np.array([simplex_projection(row) for row in scores])
    sets = [TokenData(one.tokens, one.queries, head=QuadraticHead(one.value, 0.3)) for one in drawn]
    options = {"steps": 4000, "learning_rate": 1 / 0.3, "record": 2}
    start, everything = (sets, np.zeros((6, 6, 6))), Selection(np.ones((1, 1, 6), dtype=bool))
    natural = train_two_scale(start, everything, finite="natural", **options).probabilities[:, -1, 0, 0]
    plain = train_two_scale(start, everything, **options).probabilities[:, -1, 0, 0]
    assert np.abs(natural - best).max() < 1e-8 < np.abs(plain - best).max()


def simplex_projection(z):
    """By bisection on the threshold."""
    low, high = z.min() - 1, z.max()
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(z - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(z - low, 0)


def relu_runs(seeds):
    sets = []
    for seed in seeds:
        one, V = datasets.sphere(3, 4, 6, seed=seed), np.random.default_rng([seed, 1]).standard_normal((6, 6))
        head = MLPHead(V / np.linalg.norm(V))
        sets.append(TokenData(one.tokens, one.queries, labels=one.labels, head=head))
    run = train(sets, seeds=1000 + np.array(seeds)[:, None], record=2)
    p = run.probabilities[:, -1]
    clear = ~((p > 1e-6) & (p <= 1e-3)).any((1, 2, 3)) & (p <= 1e-6).any((1, 2, 3)) & (p < 0.9).all(3).any((1, 2))
    good = np.flatnonzero(clear)
    return [run.data[r] for r in good], run.final[good], [by_threshold(p[r], 1e-3) for r in good]


def test_relu_heads_reach_W_fin_plus_R_W_mm():
    """Eq. (SVMeq): with the rows of dead examples `>= 0`, everything agrees to the order 1/steps²."""
    sets, W, chosen = relu_runs(range(120))
    run = train_two_scale((sets, W), chosen, steps=8000, record=2)
    assert run.runs >= 5
    flats = [flat_queries(one, w) for one, w in zip(sets, run.final, strict=True)]
    parts = [decompose(w, *rest, flat=f) for w, *rest, f in zip(run.final, sets, chosen, flats, strict=True)]
    kept = [np.array_equal(p > 1e-3, c.sets) for p, c in zip(run.probabilities[:, -1], chosen, strict=True)]
    assert np.mean(kept) > 0.8
    assert max(1 - part.least_squares.correlation for part, same in zip(parts, kept, strict=True) if same) < 1e-4
    alone = train_two_scale((sets[1], W[1]), chosen[1], steps=8000, record=2)
    np.testing.assert_array_equal(alone.final[0], run.final[1])


@pytest.mark.parametrize(
    ("start", "chosen", "options", "message"),
    [
        ((DATA, W0), SETS, {"finite": "newton"}, '"gd" or "natural"'),
        ((DATA, W0), SETS, {"learning_rate": -1.0}, "learning_rate: got -1.0"),
        ((DATA, W0), [SETS, SETS], {}, "lists 2 sets for 1 runs"),
        ((DATA, W0), SETS[:2], {}, "got bool of shape"),
        ((DATA, W0), np.zeros_like(SETS), {}, "or none at all"),
        ((DATA, (W0, W0)), SETS, {}, "rule for W"),
        (([DATA, DATA], W0), SETS, {}, "give one for each"),
        (DATA, SETS, {}, "expected a Trajectory or a tuple"),
    ],
)
def test_unusable_input(start, chosen, options, message, untyped):
    with pytest.raises(InputError, match=message):
        train_two_scale(start, chosen, steps=1, **options)


def test_factors_are_refused():
    run = train(datasets.sphere(2, 3, 4, seed=0), form="KQ", steps=1)
    with pytest.raises(InputError, match='form="KQ"'):
        train_two_scale(run, np.ones((2, 1, 3), dtype=bool))
