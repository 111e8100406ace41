"""Figures: the data behind the lines, the same bytes on every run, and no trace in matplotlib's global state."""

from __future__ import annotations

import subprocess
import sys

import matplotlib as mpl
import numpy as np
import polars as pl
import pytest
from matplotlib.collections import PathCollection

import attsvm
from attsvm import plots
from attsvm.compare import Comparison
from attsvm.errors import InputError


def planar(n=2, T=4, d=2, seed=0):
    rng = np.random.default_rng(seed)
    return attsvm.TokenData(rng.normal(size=(n, T, d)), rng.normal(size=(n, d)), value=rng.normal(size=d))


def solved(data, norm="fro"):
    W = np.random.default_rng(1).normal(size=(data.d_k, data.d_q))
    return attsvm.solve(data, attsvm.selection.attended(data, W), norm=norm)


def comparison(runs=3, svm="fro", seed=0):
    steps = np.array([0, 1, 10, 100])
    rng = np.random.default_rng(seed)
    columns = {
        name: rng.uniform(0.1, 1, size=4 * runs) for name in ("correlation", "distance", "efficiency", "agreement")
    }
    table = {"run": np.repeat(np.arange(runs), 4), "step": np.tile(steps, runs)} | columns
    return Comparison(form="W", svm=svm, table=pl.DataFrame(table))


def lines(axis):
    """Drawn curves, without the horizontal guide."""
    return [line for line in axis.get_lines() if len(line.get_xdata()) > 2]


def test_save_writes_the_same_bytes_twice(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        figure, axes = plots.grid(height=1.5)
        plots.band(axes[0], np.array([1, 10]), np.array([[0.0, 1.0], [0.5, 2.0]]), label=r"$W_{\mathrm{mm}}$")
        axes[0].set_xlabel("step")
        written = plots.save(figure, tmp_path / folder / "curves-0.1")
        assert [file.name for file in written] == ["curves-0.1.svg", "curves-0.1.png"]
    for name in ("curves-0.1.svg", "curves-0.1.png"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    svg = (tmp_path / "a" / "curves-0.1.svg").read_text()
    assert ">step</text>" in svg
    assert "<dc:date>" not in svg


def test_a_suffix_names_one_file(tmp_path):
    figure, _ = plots.grid(1, height=1.0)
    assert plots.save(figure, tmp_path / "one.svg") == [tmp_path / "one.svg"]
    assert [file.name for file in tmp_path.iterdir()] == ["one.svg"]


def test_global_settings_are_untouched(tmp_path):
    before = dict(mpl.rcParams)
    plots.save(plots.solution(solved(planar())), tmp_path / "s.png")
    assert dict(mpl.rcParams) == before


def test_a_notebook_shows_the_picture():
    figure, axes = plots.grid(height=1.0)
    axes[0].set_xlabel("step")
    assert ">step</text>" in figure._repr_svg_()


def test_pyplot_is_never_imported():
    code = "import sys; from attsvm import plots; plots.grid(2); assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_curves_are_means_over_runs_without_step_zero():
    given = comparison(runs=5)
    figure = plots.training_curves(given)
    for axis, name in zip(figure.axes, ("correlation", "distance", "efficiency"), strict=True):
        curve = lines(axis)[0]
        np.testing.assert_array_equal(curve.get_xdata(), [1, 10, 100])
        np.testing.assert_allclose(curve.get_ydata(), given.values(name).mean(0)[1:])
    dashed = lines(figure.axes[2])[1]
    np.testing.assert_allclose(dashed.get_ydata(), given.values("agreement").mean(0)[1:])
    assert r"W_{\mathrm{mm}}" in figure.axes[0].get_title()


def test_a_distance_of_zero_can_be_drawn():
    table = comparison().table.with_columns(distance=pl.lit(0.0))
    low, high = plots.training_curves(Comparison("W", "fro", table)).axes[1].get_ylim()
    assert 0 < low < high


def test_one_run_has_no_band():
    assert not plots.training_curves(comparison(runs=1)).axes[0].collections
    assert len(plots.training_curves(comparison(runs=2)).axes[0].collections) == 1


def test_band_leaves_out_steps_without_values():
    _, axes = plots.grid()
    values = np.array([[np.nan, np.nan, 1.0], [np.nan, 0.5, 3.0]])
    plots.band(axes[0], np.array([1, 2, 3]), values)
    np.testing.assert_array_equal(axes[0].get_lines()[0].get_xdata(), [2, 3])
    np.testing.assert_array_equal(axes[0].get_lines()[0].get_ydata(), [0.5, 2.0])


def test_several_comparisons_share_a_figure():
    figure = plots.training_curves({"one": comparison(), "two": comparison(svm="nuc", seed=1)})
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one", "two"]
    assert "svm" in figure.axes[0].get_title()
    with pytest.raises(InputError, match="draws 1 to 6 comparisons; got 0"):
        plots.training_curves({})


def test_paths_draw_the_weights_times_the_queries():
    data = planar()
    solution, nuclear = solved(data), solved(data, "nuc")
    W, KQ = np.random.default_rng(2).normal(size=(2, 9, 2, 2))
    figure = plots.paths(data, solution, W=W, KQ=KQ, nuclear=nuclear, boxes=(1.5, (2, 8)), hyperplanes=True)
    assert [axis.get_ylim() for axis in figure.axes] == [(-1.5, 1.5), (-8, 8)]
    curves = lines(figure.axes[0])
    for i in range(2):
        np.testing.assert_allclose(curves[2 * i].get_xydata(), W @ data.queries[i, 0])
        np.testing.assert_allclose(curves[2 * i + 1].get_xydata(), KQ @ data.queries[i, 0])
    assert [curve.get_linestyle() for curve in curves] == ["-", "--"] * 2
    rays = [line for line in figure.axes[0].get_lines() if line.get_linestyle() == ":"]
    for i, ray in enumerate(rays):
        end, expected = ray.get_xydata()[1], solution.W @ data.queries[i, 0]
        np.testing.assert_allclose(end / np.linalg.norm(end), expected / np.linalg.norm(expected))
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "margin" in names
    assert len(names) == 10


def test_tokens_too_small_to_see_are_left_out():
    data = planar()
    figure = plots.paths(data, solved(data), boxes=(2, 1000))
    counts = [sum(isinstance(part, PathCollection) for part in axis.collections) for axis in figure.axes]
    assert counts == [4, 0]


def test_a_picture_of_a_solution_rings_its_support_tokens():
    data = planar(n=3)
    solution = solved(data)
    figure = plots.solution(solution)
    assert len(figure.axes) == 3
    for i, axis in enumerate(figure.axes):
        ringed = axis.collections[-1].get_offsets()
        mine = solution.support[solution.support[:, 0] == i, 2]
        np.testing.assert_allclose(np.asarray(ringed).reshape(-1, 2), data.tokens[i, mine])
        corners = axis.patches[0].get_xy()[:4]
        levels = corners @ solution.W @ data.queries[i, 0]
        top = data.tokens[i, solution.problem.selection.indices[i, 0]] @ solution.W @ data.queries[i, 0]
        np.testing.assert_allclose(levels, [top, top, top - 1, top - 1], atol=1e-9)


def test_what_cannot_be_drawn():
    flat = planar(d=3)
    with pytest.raises(InputError, match="d_k = 2; these have d_k = 3"):
        plots.solution(solved(flat))
    many = attsvm.TokenData(np.random.default_rng(0).normal(size=(7, 2, 2)), np.eye(2)[[0] * 7])
    solution = solved(many)
    with pytest.raises(InputError, match="at most 6 queries; these data have 7"):
        plots.solution(solution)
    with pytest.raises(InputError, match="belongs to other data"):
        plots.paths(planar(), solution)
    same = attsvm.TokenData([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]], [[1.0, 0.0]])
    with pytest.raises(InputError, match="status is infeasible"):
        plots.solution(attsvm.solve(same, [0], throw=False))
