"""Chosen tokens: given in any form, optimal by score, attended by a weight; and what cannot be chosen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attsvm import InputError, Selection, TieError, TokenData
from attsvm.attention import probabilities
from attsvm.selection import (
    as_selection,
    attended,
    by_largest_gap,
    by_mass,
    by_threshold,
    optimal,
    scores,
)

RNG = np.random.default_rng(1)
DATA = TokenData(RNG.standard_normal((3, 4, 5)), RNG.standard_normal((3, 2)), labels=[1, -1, 1], value=np.ones(5))
TWO = TokenData(DATA.tokens, RNG.standard_normal((3, 2, 2)), value=np.ones(5))
HIDING = np.arange(4) < np.array([4, 3, 2])[:, None]
RAGGED = TokenData(DATA.tokens, DATA.queries, mask=HIDING, value=np.ones(5))


def one_hot(index, T=4):
    return np.arange(T) == np.asarray(index)[..., None]


@pytest.mark.parametrize("kind", [list, np.int64, np.uint8, np.int32])
def test_indices(kind):
    given_ = [0, 3, 2] if kind is list else np.array([0, 3, 2], dtype=kind)
    selection = as_selection(DATA, given_)
    assert np.array_equal(selection.sets, one_hot([[0], [3], [2]]))
    assert selection.indices.tolist() == [[0], [3], [2]]
    assert selection.sizes.tolist() == [[1], [1], [1]]


def test_indices_of_several_queries():
    assert as_selection(TWO, [[0, 1], [2, 3], [3, 3]]).indices.tolist() == [[0, 1], [2, 3], [3, 3]]


def test_booleans_choose_sets():
    sets = np.array([[1, 1, 0, 0], [0, 1, 0, 1], [0, 0, 0, 1]], dtype=bool)
    selection = as_selection(DATA, sets)
    assert np.array_equal(selection.sets[:, 0], sets)
    assert selection.sizes.tolist() == [[2], [2], [1]]
    with pytest.raises(InputError, match=r"choose several tokens.*use Selection\.sets"):
        _ = selection.indices
    assert np.array_equal(as_selection(DATA, sets[:, None]).sets, selection.sets)
    assert as_selection(DATA, selection) is selection


def test_a_given_array_can_change_later_without_harm():
    sets = one_hot([0, 1, 2])
    selection = as_selection(DATA, sets)
    sets[:] = False
    assert selection.indices.tolist() == [[0], [1], [2]]


def test_padding_queries_choose_nothing():
    mask = np.ones((3, 2, 4), dtype=bool)
    mask[1, 1] = False
    data = TokenData(TWO.tokens, TWO.queries, mask=mask, value=np.ones(5))
    for chosen in ([[0, 1], [2, -7], [3, 3]], "optimal"):
        selection = as_selection(data, chosen)
        assert selection.indices[1, 1] == -1
        assert (selection.sizes == data.active).all()


BAD = [
    (DATA, [0, 1], "chosen indices have shape (2,); expected (3,) or (3, 1)"),
    (TWO, [0, 1, 2], "chosen indices have shape (3,); expected (3,) or (3, 2)"),
    (DATA, [0, 4, 1], "chosen[1, 0] = 4 is not a token index; indices count from 0 to T - 1 = 3"),
    (DATA, [0, 1, -1], "chosen[2, 0] = -1 is not a token index"),
    (DATA, [0.0, 1.0, 2.0], "integer token indices or booleans; got dtype float64"),
    (DATA, None, "integer token indices or booleans; got dtype object"),
    (DATA, "best", "chosen must be \"optimal\", indices, booleans or a Selection; got 'best'"),
    (DATA, [[0], [1, 2], [3]], "chosen must be a full array of indices or booleans"),
    (DATA, np.ones((3, 3), dtype=bool), "chosen booleans have shape (3, 3); expected (3, 4)"),
    (TWO, np.ones((3, 4), dtype=bool), "chosen booleans have shape (3, 4)"),
    (DATA, one_hot([0, 9, 1]), "Example 1, query 0 chooses no token; choose at least one"),
    (DATA, np.ones((3, 4), dtype=bool), "There is nothing to separate: every query chooses all of its tokens"),
    (RAGGED, [0, 3, 1], "Example 1, query 0 chooses token 3, which its mask hides; choose a visible token"),
    (RAGGED, one_hot([0, 1, 3]), "Example 2, query 0 chooses token 3, which its mask hides"),
    (DATA, Selection(np.zeros((3, 1, 5), dtype=bool)), "The selection is bool of shape (3, 1, 5); these data need"),
]


@pytest.mark.parametrize(("data", "chosen", "message"), BAD)
def test_unusable_choices_are_named(data, chosen, message):
    with pytest.raises(InputError) as error:
        as_selection(data, chosen)
    assert message in str(error.value)


def test_one_example_may_choose_all_of_its_tokens():
    """It contributes equalities only."""
    sets = one_hot([0, 1, 2]) | (np.arange(3) == 1)[:, None]
    assert as_selection(DATA, sets).sizes.tolist() == [[1], [4], [1]]


def test_a_lonely_token_leaves_nothing_to_separate():
    data = TokenData.from_ragged([np.ones((1, 5)), DATA.tokens[0]], DATA.queries[:2, 0], value=np.ones(5))
    for chosen in ([0, 1], "optimal"):
        with pytest.raises(InputError, match="Example 0 has nothing to separate"):
            as_selection(data, chosen)


def test_an_example_of_padding_alone_has_nothing_to_separate():
    data = TokenData(DATA.tokens, DATA.queries, mask=HIDING & (np.arange(3) < 2)[:, None])
    with pytest.raises(InputError, match="Example 2 has nothing to separate"):
        as_selection(data, [0, 0, 0])


def test_causal_first_positions_are_allowed():
    data = TokenData.self_attention(DATA.tokens, query="all", causal=True, value=np.ones(5))
    indices = as_selection(data, "optimal").indices
    gamma = DATA.tokens.sum(-1)
    assert indices.tolist() == [[int(gamma[i, : k + 1].argmax()) for k in range(4)] for i in range(3)]


def test_scores_and_optimal_tokens():
    gamma = scores(RAGGED)
    assert np.allclose(gamma[:, 0][HIDING], DATA.tokens.sum(-1)[HIDING], rtol=1e-14)
    assert (gamma[:, 0][~HIDING] == -np.inf).all()
    signed = DATA.tokens.sum(-1) * np.array([1, -1, 1])[:, None]
    assert optimal(DATA).indices[:, 0].tolist() == signed.argmax(1).tolist()
    assert as_selection(DATA, "optimal").indices.tolist() == optimal(DATA).indices.tolist()


def test_optimal_needs_a_linear_head():
    for data in (TokenData(DATA.tokens, DATA.queries), TokenData(DATA.tokens, DATA.queries, head=lambda a: a.sum())):
        with pytest.raises(InputError, match=r"Scores need a linear head.*TokenData\(value="):
            as_selection(data, "optimal")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 40), st.sampled_from([1e-6, 1.0, 1e6]))
def test_ties_up_to_rounding_are_errors(seed, d, scale):
    """A twin that differs by rounding only, here through the order of its sum, is a tie at every scale and width."""
    rng = np.random.default_rng(seed)
    x, v = rng.standard_normal((1, 4, d)), rng.standard_normal(d)
    best = int((x[0] @ v).argmax())
    order = rng.permutation(d)
    x = np.concatenate([x[:, :, order], x[:, [best]][:, :, order]], axis=1) * scale
    x[0, 4] *= 1 + np.finfo(float).eps * rng.integers(-1, 2, d)
    data = TokenData(x, np.ones((1, 2)), value=v[order])
    with pytest.raises(TieError, match=f"first in example 0, query 0: tokens \\[{best}, 4\\] all have"):
        optimal(data)


def test_ties_below_the_best_score_do_no_harm():
    x = np.array([[[1.0], [0.0], [0.0]]])
    assert optimal(TokenData(x, [[1.0]], value=[1.0])).indices.tolist() == [[0]]
    with pytest.raises(TieError, match=r"tokens \[1, 2\]"):
        optimal(TokenData(x, [[1.0]], value=[1.0], labels=[-1.0]))


def test_a_hidden_token_takes_no_part_in_a_tie():
    mask = np.array([[True, False, True]])
    data = TokenData([[[1.0], [1.0], [0.0]]], [[1.0]], value=[1.0], mask=mask)
    assert optimal(data).indices.tolist() == [[0]]


def test_no_head_at_all_ties_everything():
    with pytest.raises(TieError, match="shared in 3 queries"):
        optimal(DATA.with_value(np.zeros(5)))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1e-9, 1.0, 1e9]))
def test_attended_is_the_largest_logit(seed, scale):
    rng = np.random.default_rng(seed)
    n, m, T, d_k, d_q = rng.integers(1, 5, 5)
    data = TokenData(
        rng.standard_normal((n, T, d_k)), rng.standard_normal((n, m, d_q)), mask=rng.random((n, m, T)) < 0.7
    )
    W = scale * rng.standard_normal((d_k, d_q))
    indices = attended(data, W).indices
    for i, k in np.ndindex(n, m):
        logits = [data.tokens[i, t] @ W @ data.queries[i, k] for t in range(T) if data.mask[i, k, t]]
        seen = np.flatnonzero(data.mask[i, k])
        assert indices[i, k] == (seen[int(np.argmax(logits))] if len(seen) else -1)


def test_identical_tokens_attended_most_are_a_tie():
    rng = np.random.default_rng(5)
    x = rng.standard_normal((1, 40, 33))
    W, z = rng.standard_normal((33, 7)), rng.standard_normal((1, 7))
    best = int((x[0] @ W @ z[0]).argmax())
    x[0, (best + 17) % 40] = x[0, best]
    with pytest.raises(TieError, match="best logit is shared"):
        attended(TokenData(x, z), W)
    with pytest.raises(TieError, match="shared in 1 queries"):
        attended(TokenData(x, z), np.zeros_like(W))


@pytest.mark.parametrize("W", [np.ones((5, 5)), np.ones(5), np.full((5, 2), np.nan)])
def test_attended_weight_errors(W):
    with pytest.raises(InputError, match=r"W must be finite and of shape \(5, 2\)"):
        attended(DATA, W)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_indices_and_one_hot_booleans_agree(draw):
    rng = np.random.default_rng(draw.draw(st.integers(0, 10**6)))
    n, m, T = (draw.draw(st.integers(1, 4)) for _ in range(3))
    assume(T > 1)
    mask = rng.random((n, m, T)) < 0.8
    assume((mask.sum(-1) > 1).all())
    data = TokenData(rng.standard_normal((n, T, 2)), rng.standard_normal((n, m, 3)), mask=mask)
    index = np.array([[rng.choice(np.flatnonzero(mask[i, k])) for k in range(m)] for i in range(n)])
    assert np.array_equal(as_selection(data, index).sets, as_selection(data, one_hot(index, T)).sets)


MAP = np.array([[[0.5, 0.3, 0.2, 0.0], [0.0, 1.0, 0.0, 0.0]], [[0.25, 0.001, 0.7, 0.049], [0.0, 0.0, 0.0, 0.0]]])


def listed(selection):
    return [[np.flatnonzero(query).tolist() for query in example] for example in selection.sets]


def test_by_threshold():
    assert listed(by_threshold(MAP, 0.01)) == [[[0, 1, 2], [1]], [[0, 2, 3], []]]
    assert listed(by_threshold(MAP[:, 0], 0.25 - 1e-9)) == [[[0, 1]], [[0, 2]]]
    with pytest.raises(TieError, match=r"equals the level 0\.25.*first in example 1, query 0"):
        by_threshold(MAP, 0.25)
    with pytest.raises(InputError, match=r"Example 0, query 0 has no token above the level 0\.6"):
        by_threshold(MAP, 0.6)


def test_by_mass():
    assert listed(by_mass(MAP, 0.9)) == [[[0, 1, 2], [1]], [[0, 2], []]]
    assert listed(by_mass(MAP, 0.4)) == [[[0], [1]], [[2], []]]
    with pytest.raises(TieError, match="Two sets reach the mass up to rounding in 1 queries, first in example 0"):
        by_mass(MAP, 0.8)  # 0.5 + 0.3 holds it exactly: would 0.2 follow?
    with pytest.raises(TieError, match="first in example 0, query 0"):
        by_mass(np.array([[0.2, 0.2, 0.6]]), 0.7)


@given(st.integers(0, 10**6), st.floats(0.05, 0.99))
def test_mass_is_reached_by_no_smaller_set(seed, mass):
    p = np.random.default_rng(seed).dirichlet(np.ones(5), size=(3, 2))
    for row, chosen in zip(p.reshape(-1, 5), by_mass(p, mass).sets.reshape(-1, 5), strict=True):
        ranked = np.sort(row)[::-1]
        assert row[chosen].sum() >= mass > ranked[: chosen.sum() - 1].sum()
        assert row[chosen].min() >= row[~chosen].max(initial=0.0)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_by_largest_gap(scale):
    """At scale 1e4 all but the best token underflow in the map, and the gap is still found."""
    data = TokenData(np.eye(4)[None], np.ones((1, 1)))
    W = scale * np.array([[0.1], [-3.0], [0.0], [-2.8]])
    assert listed(by_largest_gap(data, W)) == [[[0, 2]]]
    assert (probabilities(data, W)[0, 0] > 0).sum() == (1 if scale > 1 else 4)


def test_the_largest_gap_counts_visible_tokens_only():
    mask = np.array([[[1, 1, 0, 1], [0, 0, 0, 1], [0, 0, 0, 0]]], dtype=bool)
    data = TokenData(np.eye(4)[None], np.ones((1, 3, 1)), mask=mask)
    assert listed(by_largest_gap(data, np.array([[1.0], [-4.0], [90.0], [0.0]]))) == [[[0, 3], [3], []]]
    alone = TokenData(np.ones((2, 1, 3)), np.ones((2, 1)))
    assert by_largest_gap(alone, np.ones((3, 1))).sets.all()


@pytest.mark.parametrize("W", [np.zeros((4, 1)), np.array([[3.0], [2.0], [1.0], [1.0]])])
def test_two_largest_gaps(W):
    with pytest.raises(TieError, match="Two gaps are the largest up to rounding in 1 queries"):
        by_largest_gap(TokenData(np.eye(4)[None], np.ones((1, 1))), W)


@pytest.mark.parametrize("rule", [by_threshold, by_mass])
@pytest.mark.parametrize("wrong", [np.ones(3), MAP * 2, -MAP, MAP * np.nan, MAP[None], np.ones((0, 1, 3))])
def test_what_is_no_attention_map(rule, wrong):
    with pytest.raises(InputError, match="probabilities"):
        rule(wrong, 0.5)


@pytest.mark.parametrize("rule", [by_threshold, by_mass])
@pytest.mark.parametrize("number", [0, 1.0, np.nan, "half"])
def test_numbers_of_the_rules(rule, number, untyped):
    with pytest.raises(InputError, match="expected a probability between 0 and 1"):
        rule(MAP, number)
