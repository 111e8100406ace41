"""What must not change the answer: order, scale, rotation, padding, repetition, company."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import attsvm
from attsvm import Status, TokenData

NORMS = st.sampled_from(["fro", "nuc"])


@st.composite
def problems(draw):
    """`(x, z, sets)`, small: separable or not, one chosen token or several, square or not."""
    n, T = draw(st.integers(1, 5)), draw(st.integers(2, 6))
    d_k, d_q = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    size = draw(st.integers(1, min(2, T - 1)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sets = rng.random((n, 1, T)).argsort(-1) < size
    return rng.standard_normal((n, T, d_k)), rng.standard_normal((n, 1, d_q)), sets


def solve(x, z, sets, norm, mask=None):
    return attsvm.solve(TokenData(x, z, mask=mask), sets, norm=norm, throw=False)


def same(ours, theirs, norm, *, scale=1.0, weight=None):
    """Equal status and value, and for the Frobenius norm, whose optimum is unique, equal weight."""
    assert ours.status is theirs.status
    assume(ours.status is not Status.INFEASIBLE)
    assert ours.certificate.holds(1e-8)
    assert ours.value == pytest.approx(scale * theirs.value, rel=1e-10 if norm == "fro" else 2e-8)
    if norm == "fro":
        assert len(ours.support) >= 1
        weight = scale * theirs.W if weight is None else weight
        np.testing.assert_allclose(ours.W, weight, atol=1e-8 * ours.value)


@given(problem=problems(), norm=NORMS, seed=st.integers(0, 99))
def test_order_of_tokens_and_examples(problem, norm, seed):
    x, z, sets = problem
    rng = np.random.default_rng(seed)
    examples, tokens = rng.permutation(len(x)), rng.permutation(x.shape[1])
    moved = solve(x[examples][:, tokens], z[examples], sets[examples][:, :, tokens], norm)
    same(moved, solve(x, z, sets, norm), norm)


@given(problem=problems(), norm=NORMS, a=st.floats(-6, 6), b=st.floats(-6, 6))
def test_scale(problem, norm, a, b):
    x, z, sets = problem
    scaled, plain = solve(10.0**a * x, 10.0**b * z, sets, norm), solve(x, z, sets, norm)
    same(scaled, plain, norm, scale=10.0 ** -(a + b))
    assert scaled.rank == plain.rank
    if norm == "fro":
        np.testing.assert_array_equal(scaled.support, plain.support)


@given(problem=problems(), norm=NORMS, seed=st.integers(0, 99))
def test_rotation_of_both_spaces(problem, norm, seed):
    x, z, sets = problem
    rng = np.random.default_rng(seed)
    A, B = (np.linalg.qr(rng.standard_normal((d, d)))[0] for d in (x.shape[2], z.shape[2]))
    plain = solve(x, z, sets, norm)
    weight = None if plain.W is None else A @ plain.W @ B.T
    same(solve(x @ A.T, z @ B.T, sets, norm), plain, norm, weight=weight)


@given(problem=problems(), norm=NORMS, seed=st.integers(0, 99))
def test_translation_of_the_tokens_of_an_example(problem, norm, seed):
    x, z, sets = problem
    shift = np.random.default_rng(seed).standard_normal((len(x), 1, x.shape[2]))
    same(solve(x + shift, z, sets, norm), solve(x, z, sets, norm), norm)


@given(problem=problems(), norm=NORMS, extra=st.integers(1, 3))
def test_zero_features(problem, norm, extra):
    x, z, sets = problem
    plain = solve(x, z, sets, norm)
    wide = solve(np.pad(x, ((0, 0), (0, 0), (0, extra))), np.pad(z, ((0, 0), (0, 0), (0, 2 * extra))), sets, norm)
    weight = None if plain.W is None else np.pad(plain.W, ((0, extra), (0, 2 * extra)))
    same(wide, plain, norm, weight=weight)


@given(problem=problems(), norm=NORMS, extra=st.integers(1, 4))
def test_padding_tokens_and_queries(problem, norm, extra):
    x, z, sets = problem
    n, T, _ = x.shape
    mask = np.zeros((n, 2, T + extra), dtype=bool)
    mask[:, 0, :T] = True
    padded = solve(
        np.pad(x, ((0, 0), (0, extra), (0, 0)), constant_values=7.0),
        np.pad(z, ((0, 0), (0, 1), (0, 0)), constant_values=3.0),
        np.pad(sets, ((0, 0), (0, 1), (0, extra))),
        norm,
        mask,
    )
    same(padded, solve(x, z, sets, norm), norm)


@given(problem=problems(), norm=NORMS)
def test_repeated_examples(problem, norm):
    x, z, sets = problem
    twice = solve(*(np.concatenate([a, a]) for a in (x, z, sets)), norm)
    same(twice, solve(x, z, sets, norm), norm)


@given(problem=problems(), norm=NORMS, seed=st.integers(0, 99))
def test_repeated_unchosen_tokens(problem, norm, seed):
    x, z, sets = problem
    rng = np.random.default_rng(seed)
    copy = np.array([rng.choice(np.flatnonzero(~s[0])) for s in sets])
    repeated = np.concatenate([x, x[np.arange(len(x)), copy][:, None]], axis=1)
    longer = np.concatenate([sets, np.zeros_like(sets[:, :, :1])], axis=2)
    same(solve(repeated, z, longer, norm), solve(x, z, sets, norm), norm)


@given(problem=problems(), norm=NORMS)
def test_examples_as_queries_of_one(problem, norm):
    """n examples with a query each, or one example with n queries that see a part each."""
    x, z, sets = problem
    n, T, d = x.shape
    mask = np.repeat(np.eye(n, dtype=bool), T, axis=1)[None]
    joined = np.zeros((1, n, n * T), dtype=bool)
    joined[mask] = sets.ravel()
    same(solve(x.reshape(1, n * T, d), z.reshape(1, n, -1), joined, norm, mask), solve(x, z, sets, norm), norm)


@given(problem=problems(), other=problems(), norm=NORMS)
def test_company(problem, other, norm):
    """A problem solved beside another is solved the same, to the last bit."""
    alone = solve(*problem, norm)
    data = [TokenData(p[0], p[1]) for p in (other, problem)]
    _, beside = attsvm.solve_many(data, [other[2], problem[2]], norm=norm)
    assert beside.status is alone.status
    if alone.W is not None:
        np.testing.assert_array_equal(beside.W, alone.W)


@given(problem=problems())
def test_swapping_keys_and_queries_transposes(problem):
    """One row per example: the roles of δ and z are symmetric."""
    x, z, _ = problem
    x = x[:, :2]
    zero, first = np.zeros_like(z), np.zeros(len(x), dtype=int)
    here = attsvm.solve(TokenData(x, z), first, throw=False)
    there = attsvm.solve(TokenData(np.concatenate([z, zero], 1), x[:, :1] - x[:, 1:]), first, throw=False)
    same(there, here, "fro", weight=None if here.W is None else here.W.T)


@given(problem=problems(), norm=NORMS)
def test_more_rows_never_make_it_smaller(problem, norm):
    x, z, sets = problem
    assume(x.shape[1] > 2)
    last = np.flatnonzero(~sets[0, 0])[-1]
    mask = np.ones((len(x), 1, x.shape[1]), dtype=bool)
    mask[0, 0, last] = False
    few, all_rows = solve(x, z, sets, norm, mask) if (mask & ~sets).any((1, 2)).all() else None, solve(x, z, sets, norm)
    assume(few is not None and all_rows.value is not None)
    assert few.value <= all_rows.value * (1 + 1e-8)
