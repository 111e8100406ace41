"""How wide must tokens be before one token per example, chosen at random, can be separated from the others?"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from attsvm import datasets, is_separable, plots
from attsvm.experiments import Block, Claim, Experiment, Part, Results, estimate, near, once


@dataclass(frozen=True)
class Spec:
    """Settings: shapes of the data, and how many data sets of each width."""

    n: int = 4
    T: int = 5
    widths: tuple[int, ...] = (1, 2, 3, 4, 6)
    seeds: int = 40


def blocks(spec: Spec) -> list[Block]:
    """Twenty data sets of one width each: what a process does at once, and what is kept when it is interrupted."""
    starts = range(0, spec.seeds, 20)
    return [{"d": d, "first": k, "last": min(k + 20, spec.seeds)} for d in spec.widths for k in starts]


def run(spec: Spec, block: Block) -> Part:
    """Pure: the same spec and block give the same table."""
    rows = []
    for seed in range(block["first"], block["last"]):
        data = datasets.make("sphere", n=spec.n, T=spec.T, d=block["d"], seed=seed)
        chosen = np.random.default_rng([seed, 1]).integers(0, spec.T, spec.n)
        rows.append({"d": block["d"], "seed": seed, "separable": bool(is_separable(data, chosen))})
    return Part({"runs": pl.DataFrame(rows)})


def claims(results: Results) -> list[Claim]:
    """As the paper proves: always separable once d >= max(T - 1, n)."""
    spec, runs = results.spec, results.tables["runs"]
    enough = max(spec.T - 1, spec.n)
    wide = estimate.share(runs.filter(pl.col("d") >= enough)["separable"])
    return [
        Claim(
            "separable",
            "wide",
            f"share of data sets that are separable where d >= max(T - 1, n) = {enough}",
            published=1.0,
            verdict=near(1.0, wide.value, 0.0),
            **estimate.measured([wide]),
        )
    ]


def figures(results: Results) -> dict:
    """Share against width."""
    shares = results.tables["runs"].group_by("d").agg(pl.col("separable").mean()).sort("d")
    figure, (axis,) = plots.grid(width=plots.WIDTH / 2)
    axis.plot(shares["d"], shares["separable"], marker="o")
    axis.set(xlabel="width $d$", ylabel="share separable", ylim=(0, 1.03))
    return {"separable": figure}


EXPERIMENT = Experiment(
    id="separable",
    title="When random choices can be separated",
    about=__doc__,
    presets={"quick": Spec()},
    seeds={"data": "law `sphere`, seeds 0, 1, ...", "choices": "the pair (seed of the data, 1)"},
    blocks=once(blocks),
    run=run,
    claims=claims,
    figures=figures,
)
