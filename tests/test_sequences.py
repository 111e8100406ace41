"""Several queries per example, causal masks and padding, from data to comparison."""

from __future__ import annotations

import numpy as np
import pytest

import attsvm
from attsvm.selection import attended


def _causal(n=3, T=6, d=5, seed=0, lengths=None):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, T, d))
    mask = None if lengths is None else np.arange(T) < np.array(lengths)[:, None]
    data = attsvm.TokenData.self_attention(
        X / np.linalg.norm(X, axis=-1, keepdims=True),
        query="all",
        causal=True,
        mask=mask,
        value=rng.standard_normal(d),
        labels=rng.choice([-1.0, 1.0], n),
    )
    return data, rng.standard_normal((d, d))


def _flat(data, sets):
    i, k = np.nonzero((data.mask & ~sets).any(-1) & data.active)
    flat = attsvm.TokenData(
        data.tokens[i], data.queries[i, k], mask=data.mask[i, k], labels=data.labels[i, k], value=data.value
    )
    return flat, sets[i, k]


@pytest.mark.parametrize("norm", ["fro", "nuc", "spec", "max", 3])
@pytest.mark.parametrize("lengths", [None, (6, 4, 2)], ids=["full", "padded"])
def test_shared_tokens_give_the_flattened_solution(norm, lengths):
    data, W = _causal(lengths=lengths)
    selection = attended(data, W)
    shared = attsvm.solve(data, selection, norm=norm)
    copied = attsvm.solve(*_flat(data, selection.sets), norm=norm)
    assert shared.problem.n_rows == copied.problem.n_rows
    assert shared.value == pytest.approx(copied.value, rel=1e-9)
    if norm == "fro":
        assert np.abs(shared.W - copied.W).max() <= 1e-9 * np.abs(shared.W).max()


def test_rows_share_their_tokens():
    data, W = _causal(n=2, T=5)
    problem = attsvm.solve(data, attended(data, W)).problem
    assert problem.data.tokens.shape == (2, 5, 5)
    assert problem.queries.shape == (10, 5)
    assert problem.n_rows == 2 * 5 * 4 // 2


@pytest.mark.parametrize("form", ["W", "KQ"])
def test_training_equals_the_flattened_training(form):
    data, _ = _causal(lengths=(6, 4, 2))
    sets = np.zeros_like(data.mask)
    flat, _ = _flat(data, sets)
    options = {"form": form, "steps": 60, "record": [20, 60], "seeds": [0, 1]}
    shared, copied = attsvm.train(data, **options), attsvm.train(flat, **options)
    # the flattened mean runs over more examples: the loss is scaled, and so is its gradient, not its direction
    assert np.allclose(shared.W, copied.W, rtol=1e-9, atol=1e-10)
    assert np.allclose(shared.loss * data.n, copied.loss * flat.n, rtol=1e-10)


def test_end_to_end_with_padding():
    data, _ = _causal(n=2, T=4, d=6, seed=3, lengths=(4, 3))
    trajectory = attsvm.train(data, steps=20_000, record=[0, 100, 20_000])
    chosen = trajectory.chosen[0, -1]
    assert (chosen[1, 3], chosen[0, 0]) == (-1, 0)
    solution = attsvm.solve(data, chosen)
    final = attsvm.compare(trajectory, solution).final.row(0, named=True)
    assert final["correlation"] > 0.99
    assert final["agreement"] == 1.0
    assert final["efficiency"] > 0.95


def test_many_rows_by_working_sets_equal_all_rows_at_once(monkeypatch):
    from attsvm.solvers import working_set

    data, W = _causal(n=6, T=14, d=6, seed=5)
    selection = attended(data, W)
    whole = attsvm.solve(data, selection)
    monkeypatch.setattr(working_set, "WORTHWHILE", 100)
    monkeypatch.setattr(working_set, "FIRST", 20)
    parts = attsvm.solve(data, selection)
    assert (whole.method, parts.method) == ("least distance", working_set.METHOD)
    assert np.abs(parts.W - whole.W).max() <= 1e-9 * np.abs(whole.W).max()
    rng = np.random.default_rng(0)
    random = np.where(np.arange(14) > 0, rng.integers(0, 14, (6, 14)) % np.maximum(np.arange(1, 15), 1), 0)
    impossible = attsvm.solve(data, random, throw=False)
    assert impossible.status == "infeasible"
    assert impossible.farkas.residual < 1e-12
