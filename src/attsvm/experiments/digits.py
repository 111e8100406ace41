"""`digits`: real data. Images ask which patch to look at; attention is trained and held against both SVMs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Bool, Float
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from attsvm import datasets, plots
from attsvm.compare import correlation, margin
from attsvm.data import TokenData
from attsvm.experiments.base import Block, Claim, Experiment, Results, Value, once, unstated
from attsvm.selection import optimal
from attsvm.solution import Solution
from attsvm.solvers import solve
from attsvm.store import Part, stack
from attsvm.theory import local_optimality
from attsvm.training import train
from attsvm.trajectory import Trajectory

Array = np.ndarray

NORMS = {"W": "fro", "KQ": "nuc"}  # the norm each form prefers
WEIGHTS = {"W": r"$W$", "KQ": r"$(K, Q)$"}
SYMBOLS = {"fro": r"$W_{\mathrm{mm}}(\alpha)$", "nuc": r"$W_{\mathrm{mm}}^{\star}(\alpha)$"}
CORRELATION = 0.98  # with the SVM of its own norm, after the steps of either preset
_TURNS = {
    "W": f"W turns to W_mm(α), correlation at least {CORRELATION}, not to W_mm*(α): both, mean over seeds",
    "KQ": f"K Qᵀ turns to W_mm*(α), correlation at least {CORRELATION}, not to W_mm(α): both, mean over seeds",
}

ABOUT = """
Handwritten ones and sevens of scikit-learn's digits, 8 × 8 pixels. Tokens: the nine overlapping 4 × 4 patches of an
image. Query: the image's leading principal components. Value: a ridge regression of the class on single patches, so
the optimal patch is the one that speaks most for the true class. Normalised gradient descent, step 0.1; (K, Q) with
λ = 1e-100.

α: the most attended patches at the last step. Efficiency: the margin of the trained weight, in the norm of the SVM,
over the best possible, negative while some image attends to another patch. Local optimality: the chosen patch
scores higher than every support token of W_mm(α), or of W_mm*(α) for (K, Q). The picture shows seed 0, images on
which a trained form departs from the optimal patch first.
"""


@dataclass(frozen=True)
class Spec:
    """Settings of `digits`.

    Attributes:
        n: images.
        seeds: how many initial weights, seeds 0, 1, ...
        steps: of the training.
        tiny: ln λ in (K, Q) form.
        records: steps recorded.
        shown: images in the picture.
    """

    n: int = 48
    seeds: int = 10
    steps: int = 50_000
    tiny: float = float(-100 * np.log(10))
    records: int = 40
    shown: int = 16


def blocks(spec: Spec) -> list[Block]:
    """One for each form."""
    return [{"form": form} for form in NORMS]


def run(spec: Spec, block: Block) -> Part:
    """Train one form from every seed; tables `svms`, `runs`, `curves`; arrays of choices and weights."""
    data, form = datasets.digits(n=spec.n), block["form"]
    svms = {norm: solve(data, norm=norm) for norm in ("fro", "nuc")}
    trajectory = train(
        data,
        form=form,
        steps=spec.steps,
        log_regularization=spec.tiny if form == "KQ" else None,
        seeds=np.arange(spec.seeds),
        record=spec.records,
        progress=False,
    )
    rows, curves = [], []
    for r in range(spec.seeds):
        row, curve = _judge(trajectory, r, svms)
        rows.append({"training": form, "seed": r} | row)
        curves.append(pl.DataFrame({"training": form, "seed": r} | curve))
    return Part(
        {
            "svms": pl.DataFrame([_svm(svms[NORMS[form]])]),
            "runs": pl.DataFrame(rows),
            "curves": pl.concat(curves),
        },
        {f"chosen_{form}": trajectory.chosen[:, -1, :, 0], f"weights_{form}": trajectory.final},
    )


def gather(spec: Spec, parts: Sequence[Part]) -> Results:
    """Both forms, and the optimal tokens beside what they chose."""
    whole = stack(parts)
    return Results(spec, whole.tables, {"optimal": optimal(datasets.digits(n=spec.n)).indices[:, 0], **whole.arrays})


def _svm(svm: Solution) -> dict[str, Any]:
    summary = svm.summary()
    names = ("norm", "value", "margin", "rank", "rank_bound", "n_support", "n_rows", "gap", "violation")
    return {name: summary[name] for name in names}


def _judge(trajectory: Trajectory, r: int, optimum: dict[str, Solution]) -> tuple[dict[str, Any], dict[str, Array]]:
    """One run against both SVMs of its own choice, and of the optimal tokens."""
    data, W = trajectory.data[0], trajectory.W[r]
    alpha = trajectory.chosen[r, -1, :, 0]
    own = {norm: solve(data, alpha, norm=norm) for norm in ("fro", "nuc")}
    preferred = own[NORMS[trajectory.form]]
    found = local_optimality(data, preferred)
    row: dict[str, Any] = {
        "optimal_share": float((alpha == optimal(data).indices[:, 0]).mean()),
        "locally_optimal": bool(found),
        "smallest_score_margin": found.smallest,
        "n_support": len(preferred.support) if preferred.support is not None else 0,
    }
    curve = {"step": trajectory.steps, "chosen_probability": trajectory.chosen_probability[r].mean((1, 2))}
    for norm, svm in own.items():
        assert svm.W is not None
        assert svm.value is not None
        curve[f"corr_{norm}"] = correlation(W, svm.W)
        curve[f"efficiency_{norm}"] = margin(W, svm.problem, norm) * svm.value
        row |= {f"{name}_{norm}": float(curve[f"{name}_{norm}"][-1]) for name in ("corr", "efficiency")}
        row |= {f"margin_{norm}": svm.margin, f"corr_optimal_{norm}": float(correlation(W[-1], optimum[norm].W))}  # type: ignore[arg-type]
    return row, curve


def claims(results: Results) -> list[Claim]:
    """Each form turns to its own SVM, on real data too; none of this is in the paper."""
    runs = results.tables["runs"]
    found = [_svm_claim(results)]
    for form, norm in NORMS.items():
        rows, other = runs.filter(pl.col("training") == form), "nuc" if norm == "fro" else "fro"
        means = [_mean(rows, f"corr_{norm}"), _mean(rows, f"corr_{other}")]
        ok = means[0] >= CORRELATION and means[0] > means[1]
        note = f"Least correlation with its own: {float(rows[f'corr_{norm}'].min()):.4f}."  # type: ignore[arg-type]
        found += [
            _claim(f"corr-{form}", _TURNS[form], means, ok, note),
            _efficiency(rows, form, norm),
            _locally(rows, form),
        ]
    return found


def _svm_claim(results: Results) -> Claim:
    table = results.tables["svms"]
    notes = [
        f"{row['norm']}: margin {row['margin']:.4g}, rank {row['rank']} (bound {row['rank_bound']}), "
        f"{row['n_support']} support tokens of {row['n_rows']}, gap {row['gap']:.1e}."
        for row in table.iter_rows(named=True)
    ]
    gap = float(table.select(pl.max_horizontal(pl.col("gap").abs().max(), pl.col("violation").max())).item())
    return _claim(
        "separable",
        "the best patches are separable; largest gap or violation of both SVMs",
        gap,
        gap <= 1e-8,
        " ".join(notes),
    )


def _efficiency(rows: pl.DataFrame, form: str, norm: str) -> Claim:
    mean = _mean(rows, f"efficiency_{norm}")
    norm_name = "Frobenius" if norm == "fro" else "nuclear"
    statement = f"margin of the trained weight over the best, {form}, {norm_name} norm, mean over seeds, at least 0.9"
    return _claim(f"efficiency-{form}", statement, mean, mean >= 0.9)


def _locally(rows: pl.DataFrame, form: str) -> Claim:
    share = _mean(rows, "locally_optimal")
    note = f"The chosen patch is the best one in {100 * _mean(rows, 'optimal_share'):.1f} % of the images."
    return _claim(
        f"locally-optimal-{form}", f"share of runs whose α is locally optimal, {form}", share, share == 1.0, note
    )


def _claim(name: str, statement: str, measured: Value, ok: bool, note: str = "") -> Claim:
    return Claim("digits", name, statement, None, measured, unstated(ok), note)


def _mean(rows: pl.DataFrame, column: str) -> float:
    return float(rows[column].mean())  # type: ignore[arg-type]


@rc_context(plots.STYLE)
def figures(results: Results) -> dict[str, Figure]:
    """The images with their chosen patches, and training against both SVMs."""
    return {"patches": _patches(results), "training": _training(results)}


def _patches(results: Results) -> Figure:
    spec, arrays = results.spec, results.arrays
    images = _images(datasets.digits(n=spec.n))
    shown = _worth_showing(results)
    columns = 8
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(plots.WIDTH, 0.35 + 0.85 * rows), layout="constrained")
    for axis, i in zip(figure.subplots(rows, columns, squeeze=False).flat, shown, strict=False):
        axis.imshow(images[i], cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
        for token, look in zip(
            (arrays["optimal"][i], arrays["chosen_W"][0, i], arrays["chosen_KQ"][0, i]), _looks(), strict=True
        ):
            _frame(axis, int(token), **look)
    for axis in figure.axes:
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set(visible=True, color="#cccccc", linewidth=0.6)
    labels = ("optimal patch", "chosen by $W$", "chosen by $(K, Q)$")
    handles = [
        Line2D([], [], color=look["colour"], linestyle=look["style"], linewidth=1.8, label=label)
        for label, look in zip(labels, _looks(), strict=True)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def _looks() -> tuple[dict[str, Any], ...]:
    return (
        {"colour": plots.COLOURS[0], "style": "-", "inset": 0.0},
        {"colour": plots.COLOURS[1], "style": "-", "inset": 0.28},
        {"colour": plots.COLOURS[2], "style": (0, (2, 1)), "inset": 0.56},
    )


def _frame(axis: Axes, token: int, colour: str, style: Any, inset: float) -> None:
    row, column = (datasets.STRIDE * k for k in divmod(token, 3))
    side = datasets.PATCH - 2 * inset
    corner = (column - 0.5 + inset, row - 0.5 + inset)
    axis.add_patch(
        Rectangle(
            corner, side, side, fill=False, edgecolor=colour, linestyle=style, linewidth=1.8, clip_on=False, zorder=3
        )
    )


def _images(data: TokenData) -> Float[Array, "n 8 8"]:
    """The images back from their patches: every pixel is blank in some patch, so the least value is minus the mean."""
    ink = (data.tokens - data.tokens.min((0, 1))).reshape(data.n, 3, 3, datasets.PATCH, datasets.PATCH)
    images = np.zeros((data.n, 8, 8))
    for row in range(3):
        for column in range(3):
            top, left = datasets.STRIDE * row, datasets.STRIDE * column
            images[:, top : top + datasets.PATCH, left : left + datasets.PATCH] = ink[:, row, column]
    return images


def _worth_showing(results: Results) -> list[int]:
    """The first images, those on which a form departs from the optimal patch in front."""
    arrays = results.arrays
    departs: Bool[Array, " n"] = (arrays["chosen_W"][0] != arrays["optimal"]) | (
        arrays["chosen_KQ"][0] != arrays["optimal"]
    )
    order = np.argsort(~departs, kind="stable")
    return [int(i) for i in order[: results.spec.shown]]


def _training(results: Results) -> Figure:
    figure, axes = plots.grid(3, height=2.7)
    for axis, form in zip(axes[:2], NORMS, strict=True):
        for norm, colour in zip(("fro", "nuc"), plots.COLOURS, strict=False):
            plots.band(axis, *_values(results, form, f"corr_{norm}"), label=f"to {SYMBOLS[norm]}", colour=colour)
        axis.set(title=f"correlation, training of {WEIGHTS[form]}", ylim=(0, 1.03))
        axis.legend(loc="lower right")
    for (form, norm), colour in zip(NORMS.items(), plots.COLOURS, strict=False):
        plots.band(axes[2], *_values(results, form, f"efficiency_{norm}"), label=WEIGHTS[form], colour=colour)
    axes[2].set(title="margin / best margin", ylim=(-0.5, 1.03))
    axes[2].legend(loc="upper left")
    for axis in axes:
        axis.set_xlabel("step")
        axis.set_xlim(10, results.spec.steps)
    return figure


def _values(results: Results, form: str, column: str) -> tuple[Array, Float[Array, "R S"]]:
    rows = results.tables["curves"].filter(pl.col("training") == form)
    steps = rows["step"].unique().sort().to_numpy()
    return steps, rows[column].to_numpy().reshape(-1, len(steps))


EXPERIMENT = Experiment(
    id="digits",
    title="Attention trained on handwritten digits",
    about=ABOUT.strip(),
    presets={"quick": Spec(seeds=3, steps=20_000), "paper": Spec()},
    seeds={"data": "scikit-learn's digits, the first images of each class", "initial weights": "0, 1, 2, ..."},
    blocks=once(blocks),
    run=run,
    gather=gather,
    claims=claims,
    figures=figures,
)

__all__ = ["EXPERIMENT", "Spec"]
