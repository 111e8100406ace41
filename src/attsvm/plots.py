"""Figures of the library and its experiments: colour-blind safe, deterministic, without `pyplot` or global settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from jaxtyping import Float, Real
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from attsvm.data import TokenData
from attsvm.errors import InputError
from attsvm.solution import Solution

if TYPE_CHECKING:
    from attsvm.compare import Comparison

Array = np.ndarray

# Okabe and Ito's palette, which readers of every kind of colour vision can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY = "#666666"
MARKERS = ("o", "s", "^", "D", "v", "P")
WIDTH = 6.4  # inches, the text width of a paper
BAND = (0.1, 0.9)
FORMATS = {".svg": {"Date": None}, ".png": {"Software": None}}  # without date or version: the same bytes every time

STYLE: dict[Any, Any] = {
    "font.family": "serif",
    "font.serif": ["STIXGeneral", "Times New Roman", "Times"],
    "mathtext.fontset": "stix",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "lines.linewidth": 1.4,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "figure.dpi": 100,
    "savefig.dpi": 220,
    "savefig.facecolor": "white",
    "svg.fonttype": "none",
    "svg.hashsalt": "attsvm",
}


class Picture(Figure):
    """A figure that a notebook shows by itself: matplotlib's own shows only where `pyplot` has set it up."""

    def _repr_svg_(self) -> str:
        buffer = StringIO()
        with mpl.rc_context(STYLE):
            self.savefig(buffer, format="svg", metadata=FORMATS[".svg"])
        return buffer.getvalue()


def save(figure: Figure, path: str | Path) -> list[Path]:
    """Write a figure, with text as text in SVG and the same bytes on every run.

    Args:
        figure: any matplotlib figure.
        path: with the suffix `.svg` or `.png` that one file; otherwise a stem, to which both are added.

    Returns:
        The files written.
    """
    path = Path(path)
    files = [path] if path.suffix in FORMATS else [path.with_name(path.name + suffix) for suffix in FORMATS]
    with mpl.rc_context(STYLE):
        for file in files:
            figure.savefig(file, metadata=FORMATS[file.suffix])
    return files


@mpl.rc_context(STYLE)
def grid(
    columns: int = 1, rows: int = 1, *, width: float | int = WIDTH, height: float | int = 2.4
) -> tuple[Figure, list[Axes]]:
    """A figure and its panels, row by row, in the style of the library; sizes in inches."""
    figure = Picture(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


@mpl.rc_context(STYLE)
def band(
    axis: Axes,
    steps: Real[Array, " S"],
    values: Float[Array, "R S"],
    *,
    label: str | None = None,
    colour: str = COLOURS[0],
    dashed: bool = False,
) -> None:
    """Draw the mean over runs with a band from the 10 % to the 90 % quantile, steps on a log scale.

    Steps <= 0 and steps where no run has a value are left out.
    """
    steps, values = np.asarray(steps), np.asarray(values, dtype=np.float64)
    keep = (steps > 0) & ~np.isnan(values).all(axis=0)
    steps, values = steps[keep], values[:, keep]
    axis.set_xscale("log")
    axis.plot(steps, np.nanmean(values, axis=0), "--" if dashed else "-", color=colour, label=label)
    if len(values) > 1:
        axis.fill_between(steps, *np.nanquantile(values, BAND, axis=0), color=colour, alpha=0.18, linewidth=0)


@mpl.rc_context(STYLE)
def training_curves(comparison: Comparison | Mapping[str, Comparison]) -> Figure:
    """How training turns to the attention SVM: correlation, distance, and margin with agreement over the steps.

    Args:
        comparison: one, or several by the label to print, e.g. `{"W to W_mm": ..., "W to W_mm*": ...}`.
    """
    named = comparison if isinstance(comparison, Mapping) else {"": comparison}
    if not 1 <= len(named) <= len(COLOURS):
        raise InputError(f"training_curves draws 1 to {len(COLOURS)} comparisons; got {len(named)}.")
    figure, axes = grid(3, height=2.3 if len(named) == 1 else 2.6)
    for (label, item), colour in zip(named.items(), COLOURS, strict=False):
        steps = item.steps
        band(axes[0], steps, item.values("correlation"), colour=colour, label=label or None)
        band(axes[1], steps, np.maximum(item.values("distance"), np.finfo(float).eps), colour=colour)
        band(axes[2], steps, item.values("efficiency"), colour=colour)
        band(axes[2], steps, item.values("agreement").mean(0, keepdims=True), colour=colour, dashed=True)
    _label_curves(axes, named)
    if len(named) > 1:
        figure.legend(loc="outside lower center", ncols=len(named))
    return figure


def _label_curves(axes: Sequence[Axes], named: Mapping[str, Comparison]) -> None:
    norms, forms = {c.svm for c in named.values()}, {c.form for c in named.values()}
    svm = _svm_symbol(norms.pop()) if len(norms) == 1 else r"W_{\mathrm{svm}}"
    weight = r"KQ^\top" if forms == {"KQ"} else "W"
    axes[0].set(title=rf"$\mathrm{{corr}}({weight},\,{svm})$", ylim=(min(0.0, axes[0].get_ylim()[0]), 1.03))
    axes[1].set(title="distance of directions", yscale="log")
    axes[1].set_ylim(10.0 ** np.floor(np.log10(axes[1].get_ylim()[0])), 2.3)  # unit directions are at most 2 apart
    axes[1].yaxis.set_major_formatter("{x:g}")
    axes[1].yaxis.set_minor_formatter("")
    axes[2].set(title="margin, agreement (dashed)", ylabel="share of the best", ylim=(0.0, 1.03))
    for axis in axes:
        axis.set_xlabel("step")
    for axis in (axes[0], axes[2]):
        axis.axhline(1.0, color=GREY, linewidth=0.5, zorder=0)
    runs = len(next(iter(named.values())).final)
    if runs > 1:
        note = f"mean and 10–90 %\nof {runs} runs"
        axes[0].text(0.97, 0.05, note, transform=axes[0].transAxes, ha="right", color=GREY, fontsize=8)


def _svm_symbol(norm: str) -> str:
    named = {"fro": r"W_{\mathrm{mm}}", "nuc": r"W_{\mathrm{mm}}^{\star}"}
    return named.get(norm, rf"W_{{\mathrm{{{norm}}}}}")


@mpl.rc_context(STYLE)
def paths(
    data: TokenData,
    solution: Solution,
    *,
    W: Float[Array, "S d_k d_q"] | None = None,
    KQ: Float[Array, "S d_k d_q"] | None = None,
    nuclear: Solution | None = None,
    boxes: Sequence[float | int | tuple[float | int, float | int]] = (2.0,),
    hyperplanes: bool = False,
) -> Figure:
    """The paths `W(k) z_i` turning towards the lines of `W_mm z_i`, in the plane of the tokens (d_k = 2).

    Args:
        data: tokens `(n, T, 2)`; one colour per query, at most six.
        solution: the Frobenius attention SVM whose lines `W_mm z_i` are drawn, and whose chosen tokens are filled.
        W: weights of gradient descent on W at the recorded steps, drawn solid.
        KQ: products `K Qᵀ` of gradient descent on (K, Q), drawn dashed.
        nuclear: the nuclear attention SVM whose lines `W_mm* z_i` are drawn too.
        boxes: half-widths of the views, one panel for each: a number, or a pair (x, y) with unequal axes.
        hyperplanes: draw `{x : xᵀ W_mm z_i = const}` through the chosen token and, a margin below, the support tokens.

    Raises:
        InputError: tokens not in the plane, more than six queries, a solution without a weight.
    """
    pairs = _plane(data, solution)
    figure, axes = grid(len(boxes), width=min(WIDTH, 3.4 * len(boxes)), height=3.2)
    for axis, box in zip(axes, boxes, strict=True):
        for colour, marker, (i, k) in zip(COLOURS, MARKERS, pairs, strict=False):
            z = data.queries[i, k]
            direction = _weight(solution) @ z
            if hyperplanes:
                _hyperplanes(axis, solution, (i, k), direction, colour)
            _ray(axis, direction, float(np.max(box)), colour, ":")
            if nuclear is not None:
                _ray(axis, _weight(nuclear) @ z, float(np.max(box)), colour, "-.")
            for weights, style in ((W, "-"), (KQ, "--")):
                if weights is not None:
                    axis.plot(*(np.asarray(weights) @ z).T, style, color=colour, linewidth=1.6, zorder=3)
            if np.abs(data.tokens).max() > 0.1 * np.min(box):  # a dot at the origin says nothing
                _tokens(axis, data, solution, (i, k), colour, marker)
        _view(axis, box)
    _path_legend(figure, W is not None, KQ is not None, nuclear is not None, hyperplanes, len(pairs))
    return figure


@mpl.rc_context(STYLE)
def solution(solution: Solution) -> Figure:
    """A picture of an attention SVM with tokens in the plane (d_k = 2): one panel per query, at most six.

    Each panel holds the tokens the query sees, the chosen ones filled, the support tokens ringed, the direction `W z`,
    and the strip `x_αᵀWz - 1 < xᵀWz < x_αᵀWz` that `W` keeps free of other tokens.

    Raises:
        InputError: tokens not in the plane, more than six queries, a solution without a weight.
    """
    data = solution.problem.data
    pairs = _plane(data, solution)
    columns, rows = min(len(pairs), 3), -(-len(pairs) // 3)
    figure, axes = grid(columns, rows, width=max(3.2, 2.2 * columns), height=0.6 + 2.3 * rows)
    for axis in axes[len(pairs) :]:
        axis.remove()
    for axis, colour, (i, k) in zip(axes, COLOURS, pairs, strict=False):
        seen = data.tokens[i][data.mask[i, k]]
        direction = _weight(solution) @ data.queries[i, k]
        centre, half = (seen.min(0) + seen.max(0)) / 2, 0.62 * max(np.ptp(seen, axis=0).max(), 1e-300)
        _strip(axis, solution, (i, k), direction, colour)
        _tokens(axis, data, solution, (i, k), colour, "o", size=34)
        _support(axis, solution, (i, k))
        _arrow(axis, centre, half, direction, colour)
        _view(axis, half, centre)
        axis.set_title(f"example {i}" if data.m == 1 else f"example {i}, query {k}")
    _solution_legend(figure, solution.norm, columns=min(columns + 1, 3))
    return figure


def _plane(data: TokenData, solution: Solution) -> list[tuple[int, int]]:
    if data.d_k != 2:
        raise InputError(f"This picture needs tokens in the plane, d_k = 2; these have d_k = {data.d_k}.")
    if solution.problem.data.tokens.shape != data.tokens.shape:
        raise InputError(f"The solution belongs to other data: {solution.problem.data!r}, not {data!r}.")
    pairs = [(int(i), int(k)) for i, k in np.argwhere(data.active)]
    if len(pairs) > len(COLOURS):
        raise InputError(f"This picture holds at most {len(COLOURS)} queries; these data have {len(pairs)}.")
    _weight(solution)
    return pairs


def _weight(solution: Solution) -> Float[Array, "d_k d_q"]:
    if solution.W is None:
        raise InputError(f"A solution without a weight cannot be drawn; its status is {solution.status}.")
    return solution.W


def _tokens(
    axis: Axes, data: TokenData, solution: Solution, at: tuple[int, int], colour: str, marker: str, size: int = 22
) -> None:
    i, k = at
    chosen = solution.problem.selection.sets[i, k]
    shared = {"marker": marker, "edgecolors": colour, "linewidths": 0.9}
    axis.scatter(*data.tokens[i][data.mask[i, k] & ~chosen].T, s=size, c="white", zorder=4, **shared)
    axis.scatter(*data.tokens[i][chosen].T, s=1.7 * size, c=colour, zorder=5, **shared)


def _ray(axis: Axes, direction: Float[Array, " 2"], box: float, colour: str, style: str) -> None:
    end = 3.0 * box * direction / max(np.linalg.norm(direction), 1e-300)
    axis.plot([0, end[0]], [0, end[1]], style, color=colour, linewidth=1.0, zorder=2)


def _levels(solution: Solution, at: tuple[int, int], direction: Float[Array, " 2"]) -> tuple[float, float]:
    """`xᵀWz` at the chosen tokens and one margin below."""
    tokens = solution.problem.data.tokens[at[0]][solution.problem.selection.sets[at]]
    top = float((tokens @ direction).min())
    return top, top - 1.0


def _hyperplanes(
    axis: Axes, solution: Solution, at: tuple[int, int], direction: Float[Array, " 2"], colour: str
) -> None:
    for level in _levels(solution, at, direction):
        point = direction * level / (direction @ direction)
        axis.axline(tuple(point), tuple(point + _across(direction)), color=colour, linewidth=0.7, alpha=0.55, zorder=1)


def _strip(axis: Axes, solution: Solution, at: tuple[int, int], direction: Float[Array, " 2"], colour: str) -> None:
    reach = 1e3 * np.abs(solution.problem.data.tokens).max() * _across(direction)
    top, bottom = (direction * level / (direction @ direction) for level in _levels(solution, at, direction))
    corners = np.stack([top - reach, top + reach, bottom + reach, bottom - reach])
    axis.fill(*corners.T, color=colour, alpha=0.13, linewidth=0, zorder=0)


def _support(axis: Axes, solution: Solution, at: tuple[int, int]) -> None:
    support = solution.support if solution.support is not None else np.empty((0, 3), dtype=int)
    mine = support[(support[:, 0] == at[0]) & (support[:, 1] == at[1])]
    ringed = solution.problem.data.tokens[at[0]][mine[:, 2]]
    axis.scatter(*ringed.T, s=110, facecolors="none", edgecolors="black", linewidths=0.8, zorder=3)


def _arrow(axis: Axes, centre: Float[Array, " 2"], half: float, direction: Float[Array, " 2"], colour: str) -> None:
    unit = direction / max(np.linalg.norm(direction), 1e-300)
    start = centre - 0.45 * half * unit
    arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0}
    axis.annotate("", xy=tuple(start + 0.9 * half * unit), xytext=tuple(start), arrowprops=arrow, zorder=2)


def _across(direction: Float[Array, " 2"]) -> Float[Array, " 2"]:
    return np.array([-direction[1], direction[0]]) / max(np.linalg.norm(direction), 1e-300)


def _view(axis: Axes, half: Any, centre: Any = (0, 0)) -> None:
    x, y = (half, half) if isinstance(half, int | float) else half
    axis.set(xlim=(centre[0] - x, centre[0] + x), ylim=(centre[1] - y, centre[1] + y))
    axis.set_aspect(x / y, adjustable="box")
    axis.locator_params(nbins=5)
    for side in ("top", "right"):
        axis.spines[side].set_visible(True)


def _path_legend(figure: Figure, W: bool, KQ: bool, nuclear: bool, hyperplanes: bool, queries: int) -> None:
    entries: list[tuple[bool, Any, str]] = [(W, "-", r"$W(k)\,z_i$"), (KQ, "--", r"$K(k)Q(k)^\top z_i$")]
    entries += [(True, ":", r"$W_{\mathrm{mm}}\,z_i$"), (nuclear, "-.", rf"${_svm_symbol('nuc')}z_i$")]
    lines = [Line2D([], [], color="black", linestyle=style, label=text) for shown, style, text in entries if shown]
    if hyperplanes:
        lines.append(Line2D([], [], color=GREY, linewidth=0.7, label="margin"))
    lines += [Line2D([], [], linestyle="", label=" ")] * (len(lines) % 2)  # so that tokens stand in columns of two
    tokens = []
    for i, (colour, marker) in enumerate(zip(COLOURS[:queries], MARKERS, strict=False)):
        look: dict[str, Any] = {"color": colour, "marker": marker, "linestyle": ""}
        tokens.append(Line2D([], [], **look, markersize=6, label=f"chosen, $i={i + 1}$"))
        tokens.append(Line2D([], [], **look, markersize=4.5, markerfacecolor="white", label="other tokens"))
    figure.legend(handles=lines + tokens, loc="outside lower center", ncols=(len(lines) + len(tokens)) // 2)


def _solution_legend(figure: Figure, norm: str, columns: int) -> None:
    dot: dict[str, Any] = {"color": "black", "marker": "o", "linestyle": ""}
    ring: dict[str, Any] = {
        "markerfacecolor": "none",
        "color": "black",
        "linestyle": "",
        "markersize": 10,
        "markeredgewidth": 0.8,
    }
    handles = [
        Line2D([], [], **dot, markersize=6, label="chosen token"),
        Line2D([], [], **dot, markersize=5, markerfacecolor="white", label="other token"),
        Line2D([], [], **ring, marker="o", label="support token"),
        Line2D([], [], color="black", linewidth=6, alpha=0.2, label="margin"),
        Line2D([], [], color="black", marker=">", markevery=(1, 1), label=rf"direction ${_svm_symbol(norm)}\,z$"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)
