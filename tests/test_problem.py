"""Rows of the attention SVM against a plain loop, and what the reduction to the spans must leave alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attsvm import TokenData, solve
from attsvm.problem import build, reduce
from attsvm.selection import Selection, as_selection

SEEDS = st.integers(0, 10**6)


def random_instance(seed, *, sets=True):
    """Any shape, mask and chosen sets, padding queries included, with something to separate in every example."""
    rng = np.random.default_rng(seed)
    n, m, T, d_k, d_q = rng.integers(1, 5), rng.integers(1, 4), rng.integers(2, 7), *rng.integers(1, 7, 2)
    mask = rng.random((n, m, T)) < 0.8
    mask[:, 0, :2] = True
    chosen = mask & (rng.random((n, m, T)) < 0.4) if sets else np.zeros_like(mask)
    chosen[:, 0, 1] = False
    empty = mask.any(-1) & ~chosen.any(-1)
    chosen |= empty[:, :, None] & (np.arange(T) == mask.argmax(-1)[:, :, None])
    data = TokenData(rng.standard_normal((n, T, d_k)), rng.standard_normal((n, m, d_q)), mask=mask)
    return data, as_selection(data, chosen)


def rows_by_loop(data, selection):
    for i in range(data.n):
        for k in range(data.m):
            chosen = [t for t in range(data.T) if selection.sets[i, k, t]]
            for t in range(data.T):
                if data.mask[i, k, t] and chosen and t != chosen[0]:
                    yield i, k, chosen[0], t, t in chosen


@settings(max_examples=80, deadline=None)
@given(SEEDS)
def test_rows_are_those_of_a_plain_loop(seed):
    data, selection = random_instance(seed)
    problem, expected = build(data, selection), list(rows_by_loop(data, selection))
    assert problem.rows.tolist() == [list(row[:4]) for row in expected]
    assert problem.equality.tolist() == [row[4] for row in expected]
    assert problem.target.tolist() == [0.0 if row[4] else 1.0 for row in expected]
    for k, (i, q, a, t, _) in enumerate(expected):
        assert np.array_equal(problem.delta[k], data.tokens[i, a] - data.tokens[i, t])
        assert np.array_equal(problem.queries[problem.pair[k]], data.queries[i, q])


@settings(max_examples=80, deadline=None)
@given(SEEDS)
def test_each_query_has_as_many_rows_as_it_needs(seed):
    data, selection = random_instance(seed)
    problem = build(data, selection)
    counts = np.bincount(problem.pair, minlength=data.n * data.m).reshape(data.n, data.m)
    assert np.array_equal(counts, np.where(data.active, data.mask.sum(-1) - 1, 0))
    assert problem.n_rows == counts.sum()
    equalities = np.bincount(problem.pair[problem.equality], minlength=data.n * data.m).reshape(data.n, data.m)
    assert np.array_equal(equalities, np.where(data.active, selection.sizes - 1, 0))


@settings(max_examples=80, deadline=None)
@given(SEEDS)
def test_margins_and_combinations_are_adjoint(seed):
    """`<G(u), W> = Σ u_k δ_kᵀWz_k`, each side by the definition."""
    data, selection = random_instance(seed)
    problem, rng = build(data, selection), np.random.default_rng(seed + 1)
    W, u = rng.standard_normal((data.d_k, data.d_q)), rng.standard_normal(problem.n_rows)
    z = problem.queries[problem.pair]
    margins = [d @ W @ q for d, q in zip(problem.delta, z, strict=True)]
    G = sum(w * np.outer(d, q) for w, d, q in zip(u, problem.delta, z, strict=True))
    assert np.allclose(problem.margins(W), margins, rtol=1e-12, atol=1e-12)
    assert np.allclose(problem.combine(u), G, rtol=1e-12, atol=1e-12)
    assert np.isclose((G * W).sum(), u @ margins, rtol=1e-10, atol=1e-10)
    outer = [np.linalg.norm(np.outer(d, q)) for d, q in zip(problem.delta, z, strict=True)]
    assert np.allclose(problem.row_norms, outer, rtol=1e-12)


@settings(max_examples=80, deadline=None)
@given(SEEDS, st.sampled_from([1e-6, 1.0, 1e6]), st.sampled_from([1e-6, 1.0, 1e6]))
def test_lifting_keeps_every_margin_and_norm(seed, size_k, size_q):
    data, selection = random_instance(seed)
    data = TokenData(size_k * data.tokens, size_q * data.queries, mask=data.mask)
    problem = build(data, selection)
    reduced = reduce(problem)
    p, q = reduced.basis_k.shape[1], reduced.basis_q.shape[1]
    V = np.random.default_rng(seed + 1).standard_normal((p, q))
    W = reduced.lift(V)
    assert np.allclose(problem.margins(W), np.einsum("kp,pq,kq->k", reduced.delta, V, reduced.z), rtol=1e-9, atol=1e-12)
    sigma, tau = np.linalg.svd(W, compute_uv=False), np.linalg.svd(V, compute_uv=False) * reduced.scale
    k = min(p, q)
    assert np.allclose(sigma[:k], tau[:k], rtol=1e-10, atol=1e-12 * tau[0])
    assert (sigma[k:] <= 1e-12 * tau[0]).all()


@settings(max_examples=80, deadline=None)
@given(SEEDS)
def test_bases_are_orthonormal_and_span_the_rows(seed):
    data, selection = random_instance(seed)
    problem = build(data, selection)
    reduced = reduce(problem)
    used = problem.queries[np.unique(problem.pair)]
    for basis, rows in ((reduced.basis_k, problem.delta), (reduced.basis_q, used)):
        assert np.allclose(basis.T @ basis, np.eye(basis.shape[1]), atol=1e-12)
        assert np.allclose(rows @ basis @ basis.T, rows, atol=1e-12)
        assert basis.shape[1] == np.linalg.matrix_rank(rows)


@settings(max_examples=80, deadline=None)
@given(SEEDS)
def test_gram_is_that_of_the_features(seed):
    reduced = reduce(build(*random_instance(seed)))
    features = reduced.features()
    assert np.allclose(reduced.gram(), features @ features.T, rtol=1e-12, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(-20, 20), st.integers(-20, 20))
def test_scaling_by_a_power_of_two_changes_no_bit_of_the_reduced_rows(seed, i, j):
    data, selection = random_instance(seed)
    scaled = TokenData(data.tokens * 2.0**i, data.queries * 2.0**j, mask=data.mask)
    one, two = reduce(build(data, selection)), reduce(build(scaled, selection))
    assert np.array_equal(one.delta, two.delta)
    assert np.array_equal(one.queries, two.queries)
    assert one.scale == two.scale * 2.0 ** (i + j)


def test_rows_in_few_dimensions_are_reduced_to_them():
    rng = np.random.default_rng(0)
    data = TokenData(
        rng.standard_normal((3, 4, 2)) @ rng.standard_normal((2, 50)) + 7.0, rng.standard_normal((3, 1, 90))
    )
    reduced = reduce(build(data, as_selection(data, [0, 1, 2])))
    assert reduced.basis_k.shape == (50, 2)
    assert reduced.basis_q.shape == (90, 3)
    assert reduced.features().shape == (9, 6)


def test_padding_and_idle_queries_do_not_widen_the_span():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 3, 5))
    mask = np.array([[[1, 1, 1], [0, 0, 0], [1, 0, 0]]], dtype=bool)
    data = TokenData(x, 1e9 ** np.arange(3)[:, None] * rng.standard_normal((1, 3, 6)), mask=mask)
    sets = np.array([[[1, 0, 0], [0, 0, 0], [1, 0, 0]]], dtype=bool)
    problem = build(data, as_selection(data, sets))
    assert problem.rows.tolist() == [[0, 0, 0, 1], [0, 0, 0, 2]]
    assert reduce(problem).basis_q.shape == (6, 1)


@pytest.mark.parametrize("norm", ["fro", "nuc"])
def test_solutions_turn_with_the_data(norm):
    """Rotating tokens and queries rotates the optimum: `W -> P W Rᵀ`."""
    rng = np.random.default_rng(3)
    x, z, v = rng.standard_normal((3, 4, 5)), rng.standard_normal((3, 6)), rng.standard_normal(5)
    P, R = (np.linalg.qr(rng.standard_normal((d, d)))[0] for d in (5, 6))
    one = solve(TokenData(x, z, value=v), norm=norm)
    two = solve(TokenData(x @ P.T, z @ R.T, value=P @ v), norm=norm)
    assert two.value == pytest.approx(one.value, rel=1e-9)
    if norm == "fro":
        assert np.allclose(two.W, P @ one.W @ R.T, atol=1e-10)


def test_a_shift_of_all_tokens_changes_nothing():
    data, selection = random_instance(4)
    moved = build(TokenData(data.tokens + 3.0, data.queries, mask=data.mask), selection)
    assert np.allclose(moved.delta, build(data, selection).delta, atol=1e-14)


def test_shared_queries_are_not_copied_per_row():
    data, _ = random_instance(2)
    sets = np.zeros(data.mask.shape, dtype=bool)
    problem = build(data, Selection(sets | (data.mask & (np.arange(data.T) == data.mask.argmax(-1)[:, :, None]))))
    assert np.shares_memory(problem.queries, data.queries)
