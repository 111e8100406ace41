"""`compare` against plain loops, planted optima, invariances, and what it must refuse."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attsvm
from attsvm.compare import _assign, correlation, margin
from attsvm.errors import InputError
from attsvm.problem import build
from attsvm.selection import attended
from attsvm.trajectory import Trajectory

DIRECTED = ("correlation", "margin", "efficiency", "agreement", "distance")


def make_data(seed, *, n=3, m=2, T=4, d_k=5, d_q=4):
    rng = np.random.default_rng(seed)
    mask = np.ones((n, m, T), dtype=bool)
    mask[0, 0, -1] = False  # a shorter view
    if m > 1:
        mask[1, 1] = False  # a padding query
    return attsvm.TokenData(rng.normal(size=(n, T, d_k)), rng.normal(size=(n, m, d_q)), mask=mask)


def make_trajectory(data, run_data, W, form="W"):
    """A trajectory with these weights; loss and probabilities are not what is compared."""
    R, S = W.shape[:2]
    chosen = np.empty((R, S, data[0].n, data[0].m), dtype=np.int64)
    for r, s in np.ndindex(R, S):
        one = data[run_data[r]]
        logits = np.einsum("ntk,kq,nmq->nmt", one.tokens, W[r, s], one.queries)
        chosen[r, s] = np.where(one.active, np.where(one.mask, logits, -np.inf).argmax(-1), -1)
    return Trajectory(
        form=form,
        steps=np.array([0, 10, 100, 1000, 5000][:S]),
        data=tuple(data),
        run_data=np.asarray(run_data),
        seeds=np.arange(R) + 7,
        stopped=np.full(R, -1),
        W=W,
        K=None,
        Q=None,
        loss=np.arange(R * S, dtype=float).reshape(R, S),
        probabilities=np.zeros((*chosen.shape, data[0].T)),
        chosen=chosen,
        norms=np.linalg.norm(W, axis=(2, 3)),
    )


def solved(data, seed, norm="fro"):
    """An attention SVM that is separable for sure: of the tokens a random W attends to."""
    W = np.random.default_rng(seed).normal(size=(data.d_k, data.d_q))
    return attsvm.solve(data, attended(data, W), norm=norm)


@pytest.fixture(scope="module")
def two_sets():
    data = [make_data(0), make_data(1)]
    W = np.random.default_rng(2).normal(size=(4, 3, 5, 4)) * np.array([1.0, 30.0, 1e4])[:, None, None]
    W[0, 0] = 0.0
    return make_trajectory(data, [0, 0, 1, 1], W)


def by_hand(W, chosen, solution):
    """The five measures of one weight, one row and one token at a time."""
    data, sets = solution.problem.data, solution.problem.selection.sets
    norm = np.linalg.norm(W) if solution.norm == "fro" else np.linalg.norm(W, "nuc")
    rows, agree = [], []
    for i, k in zip(*np.nonzero(data.active), strict=True):
        agree.append(sets[i, k, chosen[i, k]])
        for a in np.flatnonzero(sets[i, k]):
            for t in np.flatnonzero(data.mask[i, k] & ~sets[i, k]):
                rows.append((data.tokens[i, a] - data.tokens[i, t]) @ W @ data.queries[i, k])
    best = solution.W / np.linalg.norm(solution.W)
    return {
        "correlation": np.sum(W * best) / np.linalg.norm(W),
        "margin": min(rows) / norm,
        "efficiency": min(rows) / norm * solution.value,
        "agreement": np.mean(agree),
        "distance": np.linalg.norm(W / np.linalg.norm(W) - best),
    }


@pytest.mark.parametrize("norm", ["fro", "nuc"])
def test_every_number_agrees_with_plain_loops(two_sets, norm):
    solutions = [solved(data, seed, norm) for data, seed in zip(two_sets.data, (3, 4), strict=True)]
    result = attsvm.compare(two_sets, solutions)
    assert (result.form, result.svm, len(result.table)) == ("W", norm, 12)
    for row in result.table.iter_rows(named=True):
        s = list(two_sets.steps).index(row["step"])
        r = row["run"]
        assert row["data"] == two_sets.run_data[r]
        assert row["seed"] == two_sets.seeds[r]
        assert row["loss"] == two_sets.loss[r, s]
        assert row["norm"] == two_sets.norms[r, s]
        if (r, s) == (0, 0):
            continue
        expected = by_hand(two_sets.W[r, s], two_sets.chosen[r, s], solutions[row["data"]])
        for name, value in expected.items():
            np.testing.assert_allclose(row[name], value, rtol=1e-11, atol=1e-13, err_msg=name)


def test_a_zero_weight_has_no_direction(two_sets):
    table = attsvm.compare(two_sets, [solved(data, 3) for data in two_sets.data]).table
    first = table.row(0, named=True)
    assert first["norm"] == 0.0
    assert all(first[name] is None for name in DIRECTED)
    assert table.select(DIRECTED).null_count().row(0) == (1,) * len(DIRECTED)


def test_a_list_is_told_apart_by_its_length(two_sets):
    a, b = (solved(data, 3) for data in two_sets.data)
    per_set, per_run = attsvm.compare(two_sets, [a, b]), attsvm.compare(two_sets, [a, a, b, b])
    assert per_set.table.equals(per_run.table)
    own = [solved(two_sets.data[i], 10 + r) for r, i in enumerate(two_sets.run_data)]
    final = attsvm.compare(two_sets, own).final
    expected = [np.sum(W * one.W) / np.linalg.norm(W) / one.value for W, one in zip(two_sets.final, own, strict=True)]
    np.testing.assert_allclose(final["correlation"].to_numpy(), expected, rtol=1e-12)


def test_a_chosen_set_counts_as_a_whole():
    data = make_data(5, m=1)
    W = np.random.default_rng(6).normal(size=(1, 3, 5, 4))
    sets = np.zeros((3, 1, 4), dtype=bool)
    sets[:, :, :2] = True
    solution = attsvm.solve(data, sets)
    trajectory = make_trajectory([data], [0], W)
    table = attsvm.compare(trajectory, solution).table
    expected = [by_hand(W[0, s], trajectory.chosen[0, s], solution) for s in range(3)]
    np.testing.assert_allclose(table["agreement"].to_numpy(), [e["agreement"] for e in expected])
    reference = margin(W[0], solution.problem)  # rows against the first chosen token only, as in the problem
    np.testing.assert_allclose(table["margin"].to_numpy(), reference, rtol=1e-12)


@pytest.mark.parametrize("norm", ["fro", "nuc"])
def test_the_optimum_itself_scores_perfectly(norm):
    data = make_data(8, m=1)
    solution = solved(data, 9, norm)
    W = solution.W[None, None] * np.array([1e-6, 1.0, 1e6])[:, None, None]
    result = attsvm.compare(make_trajectory([data], [0], W), solution)
    for name, value in {"correlation": 1.0, "efficiency": 1.0, "agreement": 1.0, "distance": 0.0}.items():
        np.testing.assert_allclose(result.values(name), value, atol=1e-8, err_msg=name)
    np.testing.assert_allclose(result.values("margin"), 1.0 / solution.value, rtol=1e-8)


@given(seed=st.integers(0, 10_000), scale=st.sampled_from([1e-6, 1e-2, 1e6]), norm=st.sampled_from(["fro", "nuc"]))
def test_scale_changes_nothing_and_no_weight_beats_the_best_margin(seed, scale, norm):
    data = make_data(seed, m=1)
    scaled = attsvm.TokenData(scale * data.tokens, data.queries, mask=data.mask)
    W = np.random.default_rng(seed).normal(size=(1, 4, 5, 4))
    one, two = solved(data, seed, norm), solved(scaled, seed, norm)
    a = attsvm.compare(make_trajectory([data], [0], W), one)
    b = attsvm.compare(make_trajectory([scaled], [0], 100 * W), two)
    assert (a.values("efficiency") <= 1 + 1e-9).all()
    for name in ("correlation", "efficiency", "agreement", "distance"):
        np.testing.assert_allclose(a.values(name), b.values(name), atol=1e-5, err_msg=name)  # W_mm* is known to √gap


def test_large_problems_are_measured_in_parts(two_sets, monkeypatch):
    problem = solved(two_sets.data[0], 3).problem
    whole = margin(two_sets.W, problem)
    monkeypatch.setattr(sys.modules["attsvm.compare"], "_CHUNK", 1)
    np.testing.assert_array_equal(margin(two_sets.W, problem), whole)
    assert whole.shape == (4, 3)
    assert np.isnan(whole[0, 0])


def test_correlation():
    A, B = np.random.default_rng(0).normal(size=(2, 3, 4, 2))
    expected = [np.sum(a * b) / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(A, B, strict=True)]
    np.testing.assert_allclose(correlation(A, B), expected, rtol=1e-13)
    np.testing.assert_allclose(correlation(1e200 * A, 1e-200 * B), expected, rtol=1e-13)
    np.testing.assert_allclose(correlation(A, A), 1.0, rtol=1e-15)
    assert correlation(A, B[0]).shape == (3,)
    assert correlation(A, A).max() <= 1.0
    assert np.isnan(correlation(0 * A, B)).all()
    with pytest.raises(InputError, match=r"one shape.*\(4, 2\).*\(2, 4\)"):
        correlation(A[0], B[0].T)


def test_margin_refuses_other_shapes(two_sets):
    with pytest.raises(InputError, match="these data need"):
        margin(np.ones((3, 3)), solved(two_sets.data[0], 3).problem)


def test_final_summary_and_values(two_sets):
    result = attsvm.compare(two_sets, [solved(data, 3) for data in two_sets.data])
    assert result.final["step"].to_list() == [100] * 4
    at = json.loads(json.dumps(result.summary(), allow_nan=False))
    assert (at["form"], at["svm"], at["runs"], at["step"]) == ("W", "fro", 4, 100)
    assert at["correlation"]["mean"] == pytest.approx(result.final["correlation"].mean())
    assert at["margin"]["min"] == result.final["margin"].min()
    assert np.isnan(result.values("margin")[0, 0])
    np.testing.assert_array_equal(result.values("loss"), two_sets.loss)
    with pytest.raises(InputError, match="no quantity 'corr'; expected one of loss, norm, correlation"):
        result.values("corr")
    assert "4 runs" in repr(result)


def test_all_weights_zero_still_sum_up():
    data = make_data(3, m=1)
    result = attsvm.compare(make_trajectory([data], [0], np.zeros((1, 2, 5, 4))), solved(data, 3))
    assert result.summary()["correlation"] == {"mean": None, "min": None, "max": None}
    assert "correlation none" in repr(result)


def test_plot_saves_where_told(two_sets, tmp_path):
    result = attsvm.compare(two_sets, [solved(data, 3) for data in two_sets.data])
    assert len(result.plot().axes) == 3
    result.plot(tmp_path / "curves.svg")
    assert [file.name for file in tmp_path.iterdir()] == ["curves.svg"]


def test_what_is_refused(two_sets):
    a, b = (solved(data, 3) for data in two_sets.data)
    with pytest.raises(InputError, match=r"1 solution\(s\) for a trajectory of 4 runs on 2 data set"):
        attsvm.compare(two_sets, a)
    with pytest.raises(InputError, match="3 solution"):
        attsvm.compare(two_sets, [a, b, b])
    with pytest.raises(InputError, match=r"run 0 was solved on other data.*tokens have other values"):
        attsvm.compare(two_sets, [b, a])
    with pytest.raises(InputError, match=r"norms \['fro', 'nuc'\]"):
        attsvm.compare(two_sets, [a, solved(two_sets.data[1], 3, "nuc")])
    with pytest.raises(InputError, match="Solution, or a list of them; got str"):
        _assign(two_sets, ["a", "b"])
    wider = solved(make_data(0, d_k=6), 3)
    with pytest.raises(InputError, match=r"tokens have shape \(3, 4, 6\), not \(3, 4, 5\)"):
        attsvm.compare(two_sets, [wider, b])


def test_an_infeasible_solution_teaches():
    tokens = np.array([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
    data = attsvm.TokenData(tokens, [[1.0, 0.0]])
    solution = attsvm.solve(data, [0], throw=False)
    trajectory = make_trajectory([data], [0], np.ones((1, 1, 2, 2)))
    with pytest.raises(InputError, match=r"run 0 has no weight.*infeasible.*identical"):
        attsvm.compare(trajectory, solution)


def test_the_package_keeps_its_function():
    import attsvm.compare as imported
    from attsvm import compare

    assert callable(imported)
    assert compare is attsvm.compare


def test_margin_uses_the_problem_it_is_given():
    data = make_data(12, m=1)
    W = np.random.default_rng(0).normal(size=(5, 4))
    problem = build(data, attended(data, W))
    assert margin(W, problem) > 0
    assert margin(-W, problem) < 0
