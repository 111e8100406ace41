"""What `local` claims."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from attsvm.experiments import estimate
from attsvm.experiments.base import Claim, Results, Verdict, near, unstated

PUBLISHED: dict[str, dict[int, float]] = {
    "probability-W": {100: 0.74, 200: 0.967, 300: 0.995},
    "probability-KQ": {50: 0.88, 75: 0.99},
    "corr-W-to-fro": {100: 0.75, 200: 0.88, 500: 0.974, 1000: 0.993},
    "corr-W-to-nuc": {1000: 0.862},
    "corr-KQ-to-nuc": {100: 0.857, 500: 0.975},
    "corr-KQ-to-nuc-late": {1000: 0.996, 2000: 0.997},
    "corr-KQ-to-fro": {2000: 0.853},
}
CURVES = {  # training, column, tolerance, statement
    "probability-W": ("W", "probability", 0.02, "softmax probability of the most attended token, W"),
    "probability-KQ": ("KQ", "probability", 0.03, "softmax probability of the most attended token, (K, Q)"),
    "corr-W-to-fro": ("W", "corr_fro", 0.02, "correlation of W with W_mm"),
    "corr-W-to-nuc": ("W", "corr_nuc", 0.02, "correlation of W with W_mm*"),
    "corr-KQ-to-nuc": ("KQ", "corr_nuc", 0.02, "correlation of K Qᵀ with W_mm*"),
    "corr-KQ-to-nuc-late": ("KQ", "corr_nuc", 0.005, "correlation of K Qᵀ with W_mm*, where it ends"),
    "corr-KQ-to-fro": ("KQ", "corr_fro", 0.02, "correlation of K Qᵀ with W_mm"),
}
MEAN, LEAST = 0.9998, 0.999  # correlation with W_mm* at a vanishing penalty
AUTHORS = 100  # data sets behind the published values


def claims(results: Results) -> list[Claim]:
    """Published curves, where runs end, local optimality, the vanishing penalty."""
    within = [name for name, points in PUBLISHED.items() if min(points) <= results.spec.steps]
    found = [_curve(results, name) for name in within]
    found += [_global(results), *(_local(results, training) for training in ("W", "KQ", "KQ-tiny"))]
    return [*found, *_vanishing(results)]


def _curve(results: Results, name: str) -> Claim:
    training, column, error, statement = CURVES[name]
    published = {step: value for step, value in PUBLISHED[name].items() if step <= results.spec.steps}
    found = [_at(results, training, column, step) for step in published]
    values = list(published.values())
    return Claim(
        "local",
        name,
        f"{statement}, at step {', '.join(map(str, published))}",
        values,
        verdict=_judge(results, values, found, error),
        note=_beside(results, training, column, list(published)),
        error=error,
        **estimate.measured(found),
    )


def _judge(results: Results, published: list[float], found: list[estimate.Estimate], error: float) -> Verdict:
    """On all published data sets the means themselves must agree; on a sample of them the intervals."""
    if results.spec.seeds < AUTHORS:
        return estimate.judge(published, found, error)
    return near(published, [one.value for one in found], error)


def _at(results: Results, training: str, column: str, step: int, source: str = "authors") -> estimate.Estimate:
    """Mean over the runs."""
    rows = results.tables["curves"].filter(
        pl.col("training") == training, pl.col("source") == source, pl.col("step") == step
    )
    return estimate.mean(rows[column])


def _beside(results: Results, training: str, column: str, steps: Sequence[int]) -> str:
    ours = [_at(results, training, column, step, "sphere").value for step in steps]
    notes = [f"On {results.spec.seeds} data sets of our own law: {_words(ours)}."]
    if column == "probability":
        chosen = [_at(results, training, "probability_chosen", step).value for step in steps]
        notes.append(f"Of the token chosen in the end: {_words(chosen)}.")
    return " ".join(notes)


def _global(results: Results) -> Claim:
    shares = [_share(results, training) for training in ("W", "KQ")]
    beside = [_share(results, training, "sphere").value for training in ("W", "KQ")]
    return Claim(
        "local",
        "global-share",
        f"share of runs whose chosen tokens are `opt` at step {results.spec.steps}, W and (K, Q)",
        [0.8, 0.8],
        verdict=estimate.judge([0.8, 0.8], shares, 0.02),
        note=f"Published as about 80 %. On our own law: {_words(beside)}.",
        error=0.02,
        **estimate.measured(shares),
    )


def _share(results: Results, training: str, source: str = "authors") -> estimate.Estimate:
    rows = results.tables["runs"].filter(
        pl.col("training") == training, pl.col("source") == source, pl.col("step") == results.spec.steps
    )
    return estimate.share(rows["globally_optimal"])


def _local(results: Results, training: str) -> Claim:
    """Local optimality of every α at the last step trained; where it fails at the published step, what became of it."""
    rows = results.tables["runs"].filter(pl.col("training") == training)
    last = rows.filter(pl.col("step") == pl.col("step").max())
    early = rows.filter(pl.col("step") == results.spec.steps)
    share = float(last["locally_optimal"].mean())  # type: ignore[arg-type]
    missed = early.filter(~pl.col("locally_optimal"))
    note = f"At step {results.spec.steps}: {len(early) - len(missed)} of {len(early)}."
    for row in missed.iter_rows(named=True):
        later = last.filter(pl.col("source") == row["source"], pl.col("data") == row["data"]).row(0, named=True)
        note += f" {_fate(row, later)}"
    return Claim(
        "local",
        f"locally-optimal-{training}",
        f"share of runs whose α is locally optimal at step {last['step'].max()}, {_name(training)}, both data sources",
        "all",
        share,
        near(1.0, share, 0.0),
        note,
    )


def _fate(row: dict, later: dict) -> str:
    moved = "still the same α" if row["alpha"] == later["alpha"] else f"another α by step {later['step']}"
    return (
        f"{row['source']} {row['data']}: a support token scores higher by {-row['smallest_score_margin']:.4f}; "
        f"{moved}, there with a score margin of {later['smallest_score_margin']:+.4f} "
        f"and correlation {later['correlation']:.5f}."
    )


def _vanishing(results: Results) -> list[Claim]:
    spec, left = results.spec, results.tables["stragglers"]
    rows = results.tables["curves"].filter(pl.col("training") == "KQ-tiny", pl.col("step") == spec.long_steps)
    values = rows.filter(pl.col("source") == "authors")["corr_nuc"].to_numpy()
    arrived = float(min([*rows.filter(pl.col("corr_nuc") >= LEAST)["corr_nuc"], *left["finer"]]))
    reached = int((values >= LEAST).sum())
    note = (
        f"Authors' data: {reached} of {len(values)} runs have it at step {spec.long_steps}, least {values.min():.5f}."
    )
    note += "".join(_straggler(spec.longer * spec.long_steps, row) for row in left.iter_rows(named=True))
    mean = f"(K, Q) with λ = 1e-100, {spec.long_steps} steps: mean correlation with W_mm*, at least {MEAN}"
    least = f"the same in every run, at least {LEAST}, where a run short of it is continued"
    ours = rows.filter(pl.col("source") == "sphere")["corr_nuc"].to_numpy()
    beside = f"With λ = 2.2e-16 at step {spec.steps}: {_at(results, 'KQ', 'corr_nuc', spec.steps).value:.5f}."
    beside += f" Our own law: mean {ours.mean():.5f}, least {ours.min():.5f}."
    average = float(values.mean())
    return [
        Claim("local", "vanishing-mean", mean, None, average, unstated(average >= MEAN), beside),
        Claim("local", "vanishing-least", least, None, arrived, unstated(arrived >= LEAST), note),
    ]


def _straggler(steps: int, row: dict) -> str:
    return (
        f" {row['source']} {row['data']}: {row['before']:.5f}, after {steps} more steps {row['continued']:.5f}, after "
        f"finer steps {row['finer']:.5f} (W_mm*: least singular value {row['least_singular']:.1e} of the largest)."
    )


def _name(training: str) -> str:
    return {"W": "W", "KQ": "(K, Q)", "KQ-tiny": "(K, Q) with λ = 1e-100"}[training]


def _words(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)
