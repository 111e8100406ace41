"""`rank`: how many singular values the attention SVM needs, in both norms, against the width d (Figure 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from attsvm import datasets, plots
from attsvm.data import TokenData
from attsvm.errors import NotSolvedError, TieError
from attsvm.experiments import estimate
from attsvm.experiments.base import Block, Claim, Experiment, Results, artefact, difference, near, once, unstated
from attsvm.experiments.loose import first_order
from attsvm.solution import Status
from attsvm.solvers import is_separable, solve
from attsvm.store import Part, stack

PUBLISHED = {15: {10: 9.7, 15: 13.9, 20: 14.9}, 10: {10: 9.1, 15: 9.97, 20: 10.0}, 5: {10: 5.0, 15: 5.0, 20: 5.0}}
EXPECTED = {5: 2.5, 10: 3.9, 15: 4.8}  # certified nuclear rank at T = 5, d >= 10
CUT = 1e-7  # absolute, as published
EMULATION_TOLERANCE = 1.2

ABOUT = """
The attention SVM of the optimal tokens on random data (v, tokens and queries uniform on the unit sphere), mean rank
over feasible data sets. Seeds 0, 1, 2, ... are tried until enough of them are feasible; an infeasible data set
(with a checked Farkas vector, or with identical tokens tied for the best score, as happens for d = 1) is counted
apart and has no rank. Certified rank: singular values above 1e-6 of the largest, of a solution with relative gap
below 1e-8. Rank bound: unit singular values of the dual, a bound on the rank of every nuclear optimum. Emulated
rank: the published procedure, that is a first-order solution stopped at a residual of 1e-5, singular values above
1e-7 counted, an infeasible data set counted as 1.
"""


@dataclass(frozen=True)
class Spec:
    """Settings of `rank`.

    Attributes:
        pairs: the (n, T) shown.
        widths: the d shown.
        seeds: feasible data sets wanted for each (n, T, d).
        tries: data sets tried at most, in multiples of `seeds`.
    """

    pairs: tuple[tuple[int, int], ...] = ((5, 5), (10, 5), (15, 5), (5, 10), (5, 15))
    widths: tuple[int, ...] = (1, 2, 3, 4, 5, 10, 15, 20)
    seeds: int = 100
    tries: int = 20


def blocks(spec: Spec) -> list[Block]:
    """One for each (n, T, d), the slow ones first."""
    cells = [{"n": n, "T": T, "d": d} for n, T in spec.pairs for d in spec.widths]
    return sorted(cells, key=lambda cell: -cell["n"] * cell["T"])


def run(spec: Spec, block: Block) -> Part:
    """Table `instances`, one row per data set tried."""
    rows: list[dict[str, Any]] = []
    feasible = 0
    for start in range(0, spec.tries * spec.seeds, spec.seeds):
        seeds = range(start, start + spec.seeds)
        for seed, data in zip(seeds, datasets.make_many("sphere", seeds, **block), strict=True):
            rows.append(block | {"seed": seed} | _instance(data))
            feasible += rows[-1]["state"] == "feasible"
            if feasible == spec.seeds:
                return Part({"instances": pl.DataFrame(rows, infer_schema_length=None)})
    return Part({"instances": pl.DataFrame(rows, infer_schema_length=None)})


def gather(spec: Spec, parts: Sequence[Part]) -> Results:
    """Tables `instances` and `summary`, one row per (n, T, d)."""
    instances = stack(parts).tables["instances"].sort("n", "T", "d", "seed")
    return Results(spec, {"instances": instances, "summary": _summary(instances, spec)})


def _instance(data: TokenData) -> dict[str, Any]:
    empty = dict.fromkeys(("fro_rank", "supported", "nuc_rank", "nuc_bound", "fro_gap", "nuc_gap", "loose_rank"))
    state = _state(data)
    if state != "feasible":
        return {"state": state} | empty
    fro, nuc = solve(data, norm="fro", throw=False), solve(data, norm="nuc", throw=False)
    if not fro.status is nuc.status is Status.OPTIMAL or fro.certificate is None or nuc.certificate is None:
        return {"state": "not certified"} | empty
    sigma = np.linalg.svd(first_order(data), compute_uv=False)
    return {
        "state": state,
        "fro_rank": fro.rank,
        "supported": 0 if fro.support is None else len(np.unique(fro.support[:, 0])),
        "nuc_rank": nuc.rank,
        "nuc_bound": nuc.rank_bound,
        "fro_gap": fro.certificate.gap,
        "nuc_gap": nuc.certificate.gap,
        "loose_rank": int(np.sum(sigma > CUT)),
    }


def _state(data: TokenData) -> str:
    try:
        return "feasible" if is_separable(data) else "infeasible"
    except TieError:
        return "tied"
    except NotSolvedError:
        return "not certified"


def _summary(instances: pl.DataFrame, spec: Spec) -> pl.DataFrame:
    feasible = pl.col("state") == "feasible"
    first = pl.col("seed") < spec.seeds  # what the published procedure would have drawn

    def emulated(column: str) -> pl.Expr:
        return pl.when(feasible).then(column).otherwise(1).filter(first).mean()

    return (
        instances.group_by("n", "T", "d", maintain_order=True)
        .agg(
            pl.len().alias("tried"),
            feasible.sum().alias("feasible"),
            (pl.col("state") == "tied").sum().alias("tied"),
            (pl.col("state") == "not certified").sum().alias("not_certified"),
            pl.col("fro_rank").mean(),
            pl.col("nuc_rank").mean(),
            pl.col("nuc_rank").std().alias("nuc_std"),
            (pl.col("nuc_rank") == pl.col("nuc_bound")).sum().alias("certificate_equal"),
            pl.max_horizontal("fro_gap", "nuc_gap").max().alias("largest_gap"),
            emulated("fro_rank").alias("emulated_fro"),
            emulated("loose_rank").alias("emulated_nuc"),
        )
        .sort("n", "T", "d")
    )


def claims(results: Results) -> list[Claim]:
    """Frobenius rank as published; nuclear rank and small d as artefacts, with the certified values."""
    table = results.tables["summary"]
    found = [_frobenius(table, results.tables["instances"])]
    found += [_nuclear(table, results.tables["instances"], n) for n in (15, 10, 5)]
    found += [_certified_level(table), _certificates(results.tables["instances"]), _small(table)]
    return [claim for claim in found if claim is not None]


def _frobenius(table: pl.DataFrame, instances: pl.DataFrame) -> Claim | None:
    wide = table.filter(pl.col("T") == 5, pl.col("d") >= 5, pl.col("feasible") > 0)
    if not len(wide):
        return None
    off = float(np.abs(wide["fro_rank"] - wide.select(pl.min_horizontal("n", "d")).to_series()).max())
    statement = "Frobenius rank is min(n, d) once d >= 5 (T = 5): largest departure of a mean"
    short = instances.filter(pl.col("T") == 5, pl.col("d") >= 5, pl.col("fro_rank") < pl.min_horizontal("n", "d"))
    idle = int((short["supported"] < short["n"]).sum())
    note = f"Data sets short of it: {len(short)}; of these, with an example that has no support token: {idle}."
    return Claim("rank", "frobenius", statement, 0.0, off, near(0.0, off, 0.2), note, error=0.2)


def _nuclear(table: pl.DataFrame, instances: pl.DataFrame, n: int) -> Claim | None:
    rows = table.filter(
        pl.col("n") == n, pl.col("T") == 5, pl.col("d").is_in(list(PUBLISHED[n])), pl.col("feasible") > 0
    )
    if not len(rows):
        return None
    published = [PUBLISHED[n][d] for d in rows["d"]]
    measured, emulated = rows["nuc_rank"].to_list(), rows["emulated_nuc"].to_list()
    equal = int(rows["certificate_equal"].sum()) >= 0.99 * int(rows["feasible"].sum())
    explained = equal and difference(published, emulated) <= EMULATION_TOLERANCE < difference(published, measured)
    return Claim(
        "rank",
        f"nuclear-n{n}",
        f"mean nuclear rank, n = {n}, T = 5, d = {', '.join(map(str, rows['d']))}",
        published,
        verdict=artefact(explained),
        note=f"The published procedure, emulated, gives {_words(emulated)} (within {EMULATION_TOLERANCE}).",
        **estimate.measured([_ranks(instances, n, d) for d in rows["d"]]),
    )


def _ranks(instances: pl.DataFrame, n: int, d: int) -> estimate.Estimate:
    cell = instances.filter(pl.col("n") == n, pl.col("T") == 5, pl.col("d") == d, pl.col("state") == "feasible")
    return estimate.mean(cell["nuc_rank"])


def _certified_level(table: pl.DataFrame) -> Claim | None:
    wide = table.filter(pl.col("T") == 5, pl.col("d") >= 10, pl.col("feasible") > 0)
    ns = sorted(set(wide["n"]) & set(EXPECTED))
    if not ns:
        return None
    measured = [float(wide.filter(pl.col("n") == n)["nuc_rank"].mean()) for n in ns]  # type: ignore[arg-type]
    ok = difference([EXPECTED[n] for n in ns], measured) <= 0.3
    words = ", ".join(f"{EXPECTED[n]}" for n in ns)
    statement = f"certified nuclear rank for d >= 10, T = 5, n = {', '.join(map(str, ns))}: within 0.3 of {words}"
    return Claim("rank", "nuclear-certified", statement, None, measured, unstated(ok))


def _certificates(instances: pl.DataFrame) -> Claim | None:
    solved = instances.filter(pl.col("state") == "feasible")
    if not len(solved):
        return None
    share = float((solved["nuc_rank"] == solved["nuc_bound"]).mean())  # type: ignore[arg-type]
    open_ones = int((instances["state"] == "not certified").sum())
    gap = float(max(solved["fro_gap"].max(), solved["nuc_gap"].max()))  # type: ignore[type-var]
    note = f"{len(solved)} solved data sets, largest gap {gap:.1e}; {open_ones} data sets not certified either way."
    statement = "share of data sets whose nuclear rank equals its certificate: at least 0.99"
    ok = share >= 0.99 and open_ones <= 0.01 * len(instances)
    return Claim("rank", "certificate", statement, None, share, unstated(ok), note)


def _small(table: pl.DataFrame) -> Claim | None:
    rows = table.filter(pl.col("n") == 15, pl.col("T") == 5, pl.col("d") <= 2)
    if not len(rows):
        return None
    tried, feasible = int(rows["tried"].sum()), int(rows["feasible"].sum())
    tied = int(rows["tied"].sum())
    return Claim(
        "rank",
        "small-d",
        "rank at n = 15, T = 5, d <= 2: data sets that have a solution at all",
        "rank 1",
        f"{feasible} of {tried} feasible",
        artefact(feasible <= 0.01 * tried),
        f"A rank was taken of no solution: {tied} have identical tokens tied for the best, the rest a Farkas vector.",
    )


@rc_context(plots.STYLE)
def figures(results: Results) -> dict[str, Figure]:
    """Mean ranks against d: varying n above, varying T below; Frobenius left, nuclear right."""
    table = results.tables["summary"]
    figure = Figure(figsize=(plots.WIDTH, 4.9), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True)
    for row, vary, fixed in ((0, "n", "T"), (1, "T", "n")):
        part = table.filter(pl.col(fixed) == 5)
        for axis, norm in zip(axes[row], ("fro", "nuc"), strict=True):
            _panel(axis, part, vary, norm)
            name = "Frobenius" if norm == "fro" else "nuclear"
            axis.set(title=rf"{name} norm, ${fixed} = 5$", xticks=[1, 5, 10, 15, 20], ylim=(0, 16 if row == 0 else 6))
        axes[row, 0].set_ylabel(r"mean rank of $W_{\mathrm{mm}}$")
        axes[row, 1].set_ylabel(r"mean rank of $W_{\mathrm{mm}}^{\star}$")
    for axis in axes[1]:
        axis.set_xlabel(r"width $d$")
    handles = [
        Line2D([], [], color="black", marker=".", label="certified"),
        Line2D([], [], color="black", linestyle="--", label="published procedure, emulated"),
        Line2D([], [], color="black", linestyle="", marker="x", label="published"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return {"rank": figure}


def _panel(axis: Axes, part: pl.DataFrame, vary: str, norm: str) -> None:
    for value, colour, marker in zip(sorted(set(part[vary])), plots.COLOURS, plots.MARKERS, strict=False):
        line = part.filter(pl.col(vary) == value).sort("d")
        solved = line.filter(pl.col("feasible") > 0)
        axis.plot(line["d"], line[f"emulated_{norm}"], "--", color=colour, linewidth=0.9, alpha=0.8)
        axis.plot(
            solved["d"], solved[f"{norm}_rank"], marker=marker, markersize=4, color=colour, label=f"${vary} = {value}$"
        )
        if norm == "nuc" and vary == "n" and value in PUBLISHED:
            axis.plot(list(PUBLISHED[value]), list(PUBLISHED[value].values()), "x", color=colour, markersize=6)
    if norm == "fro":
        axis.legend(loc="upper left", ncols=3 if vary == "T" else 1)


def _words(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


EXPERIMENT = Experiment(
    id="rank",
    title="Rank of the attention SVM in both norms",
    about=ABOUT.strip(),
    presets={"quick": Spec(seeds=12), "paper": Spec()},
    seeds={"data": "law `sphere` of each (n, T, d), seeds 0, 1, 2, ... in order"},
    blocks=once(blocks),
    run=run,
    gather=gather,
    claims=claims,
    figures=figures,
)

__all__ = ["EXPERIMENT", "Spec"]
