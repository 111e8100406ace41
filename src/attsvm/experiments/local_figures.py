"""What `local` draws."""

from __future__ import annotations

import numpy as np
import polars as pl
from jaxtyping import Float
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from attsvm import plots
from attsvm.experiments import closer
from attsvm.experiments.base import Results
from attsvm.experiments.local_claims import PUBLISHED

Array = np.ndarray

BLUE, ORANGE, GREEN = plots.COLOURS[:3]


@rc_context(plots.STYLE)
def figures(results: Results) -> dict[str, Figure]:
    """Softmax probability, both correlations of both forms, and what is left of the correlation on a log scale."""
    figure = Figure(figsize=(plots.WIDTH, 5.2), layout="constrained")
    axes = figure.subplots(2, 2)
    _probability(axes[0, 0], results)
    _correlation(axes[0, 1], results, "W", {"fro": ("corr-W-to-fro",), "nuc": ("corr-W-to-nuc",)})
    nuclear = ("corr-KQ-to-nuc", "corr-KQ-to-nuc-late")
    _correlation(axes[1, 0], results, "KQ", {"fro": ("corr-KQ-to-fro",), "nuc": nuclear})
    _left(axes[1, 1], results)
    for axis in axes.flat:
        axis.set_xlabel("step")
    handles = [Line2D([], [], color="black", linestyle="", marker="x", label="published")]
    handles.append(Line2D([], [], color="black", label="authors' data"))
    handles.append(Line2D([], [], color="black", linestyle=":", label="our own law"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return {"local": figure}


def interactive(results: Results) -> dict[str, closer.Interactive]:
    """Every run at its last step: how far from its SVM, and how clearly its choice is locally optimal."""
    rows = results.tables["runs"]
    last = rows.filter(pl.col("step") == pl.col("step").max().over("training"))
    table = last.with_columns((1 - pl.col("correlation")).alias("1 - correlation"))
    hover = ["source", "data", "step", "globally_optimal", "support_tokens", "svm_rank"]
    return {"runs": closer.runs(table, "smallest_score_margin", "1 - correlation", "training", hover, log_y=True)}


def _probability(axis: Axes, results: Results) -> None:
    for training, colour, label in (("W", BLUE, r"$W$"), ("KQ", ORANGE, r"$(K, Q)$")):
        _curve(axis, results, training, "probability", colour, label)
        _published(axis, f"probability-{training}", colour)
    axis.set(title="largest softmax probability", ylim=(0, 1.03), xlim=(1, 1.1 * results.spec.steps))
    axis.legend(loc="lower right")


def _correlation(axis: Axes, results: Results, training: str, names: dict[str, tuple[str, ...]]) -> None:
    weight = "W" if training == "W" else r"KQ^\top"
    for norm, colour in (("fro", BLUE), ("nuc", ORANGE)):
        svm = r"W_{\mathrm{mm}}" + ("" if norm == "fro" else r"^{\star}")
        _curve(axis, results, training, f"corr_{norm}", colour, rf"$\mathrm{{corr}}({weight}, {svm})$")
        for name in names[norm]:
            _published(axis, name, colour)
    trained = r"$W$" if training == "W" else r"$(K, Q)$, $\lambda = 2.2\cdot10^{-16}$"
    axis.set(title=f"training of {trained}", ylim=(0, 1.03), xlim=(1, 1.1 * results.spec.steps))
    axis.legend(loc="lower right")


def _left(axis: Axes, results: Results) -> None:
    """Medians: the mean would show the few runs that change their choice after step 2,000 and nothing else."""
    lines = (
        ("W", "corr_fro", BLUE, r"$W$ to $W_{\mathrm{mm}}$"),
        ("KQ", "corr_nuc", ORANGE, r"$(K,Q)$ to $W_{\mathrm{mm}}^{\star}$, $\lambda = 2.2\cdot10^{-16}$"),
        ("KQ-tiny", "corr_nuc", GREEN, r"$(K,Q)$ to $W_{\mathrm{mm}}^{\star}$, $\lambda = 10^{-100}$"),
    )
    for training, column, colour, label in lines:
        for source, style in (("authors", "-"), ("sphere", ":")):
            steps, values = _values(results, training, column, source)
            if len(values):
                low, middle, high = np.quantile(1 - values, (0.1, 0.5, 0.9), axis=0)
                axis.plot(steps, middle, style, color=colour, label=label if source == "authors" else None)
                if source == "authors":
                    axis.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0)
    axis.set(title="1 - correlation, median", xscale="log", yscale="log", ylim=(1e-6, 1.5))
    axis.set_xlim(1, results.spec.long_steps)
    axis.legend(loc="lower left")


def _curve(axis: Axes, results: Results, training: str, column: str, colour: str, label: str) -> None:
    plots.band(axis, *_values(results, training, column, "authors"), label=label, colour=colour)
    steps, values = _values(results, training, column, "sphere")
    if len(values):
        axis.plot(steps, np.mean(values, axis=0), ":", color=colour, linewidth=1.1)


def _values(results: Results, training: str, column: str, source: str) -> tuple[Array, Float[Array, "R S"]]:
    """A column of the curves by run and step, without step 0."""
    rows = results.tables["curves"].filter(
        pl.col("training") == training, pl.col("source") == source, pl.col("step") > 0
    )
    steps = rows["step"].unique().sort().to_numpy()
    return steps, rows[column].to_numpy().reshape(-1, max(len(steps), 1))


def _published(axis: Axes, name: str, colour: str) -> None:
    points = PUBLISHED[name]
    axis.plot(list(points), list(points.values()), "x", color=colour, markersize=6, markeredgewidth=1.4, zorder=5)
