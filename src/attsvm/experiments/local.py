"""`local`: where gradient descent goes, step by step, and to which attention SVM (Figures 4 and 5 of the paper)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float, Int

from attsvm import datasets
from attsvm.compare import correlation
from attsvm.data import TokenData
from attsvm.experiments.base import Block, Experiment, once
from attsvm.experiments.local_claims import AUTHORS, claims
from attsvm.experiments.local_figures import figures, interactive
from attsvm.solution import Solution
from attsvm.solvers import solve
from attsvm.store import Part
from attsvm.theory import local_optimality
from attsvm.training import train
from attsvm.trajectory import Trajectory

Array = np.ndarray

ARRIVED = 0.999  # correlation at which a run of the third training counts as arrived
BLOCK = 50  # data sets trained at once
FINE = 0.01  # step of those that have not, in the end

ABOUT = """
Random data, n = 6, T = 8, d = 10, v, tokens and queries uniform on the unit sphere, labels ±1: the authors' own 100
data sets, and as many of our own law beside them. Initial weights uniform in ±1/√d, a seed of its own for each run;
normalised gradient descent, step 0.1, with the exact log-domain gradient. α: the most attended tokens at the last
published step, 2,000. Correlations are with W_mm(α) (Frobenius) and W_mm*(α) (nuclear), in the Frobenius inner
product, means over runs with a band from the 10 % to the 90 % quantile. Softmax probability: the largest of each
example, mean over examples and runs.

Three trainings: W; (K, Q) with the penalty λ = 2.2e-16 of the published program; (K, Q) with λ = 1e-100, which only
a gradient in the log domain can resolve, where α is taken at the last step. A run of the third short of correlation
0.999 is continued ten times as long. α is locally optimal when the chosen tokens score higher than all support
tokens, those of W_mm(α) for W and those of W_mm*(α) for (K, Q).
"""


@dataclass(frozen=True)
class Spec:
    """Settings of `local`.

    Attributes:
        seeds: how many of the authors' data sets, of which there are 100, and as many of our own law.
        steps: published length; α of the first two trainings is taken there.
        long_steps: length of the training of W and of (K, Q) with `tiny`.
        longer: a straggler is continued to `longer * long_steps`.
        log_regularization: ln λ of the published (K, Q) training.
        tiny: ln λ of the third training.
        records: steps shown.
    """

    seeds: int = 100
    steps: int = 2000
    long_steps: int = 20_000
    longer: int = 10
    log_regularization: float = float(np.log(2.2e-16))
    tiny: float = float(-100 * np.log(10))
    records: tuple[int, ...] = (
        *(0, 1, 2, 5, 10, 15, 20, 30, 40, 50, 60, 75, 100, 125, 150, 200, 250, 300, 400, 500, 700, 1000, 1400, 2000),
        *(3000, 5000, 7000, 10_000, 14_000, 20_000),
    )


@dataclass(frozen=True, eq=False)
class _Runs:
    """The data sets of a block, their source and indices, and the SVMs solved so far."""

    data: list[TokenData]
    source: str
    index: range
    solved: dict[tuple[int, str, bytes], Solution]

    def svm(self, run: int, alpha: Int[Array, " n"], norm: str) -> Solution:
        key = (run, norm, alpha.tobytes())
        if key not in self.solved:
            self.solved[key] = solve(self.data[run], alpha, norm=norm)
        return self.solved[key]


def blocks(spec: Spec) -> list[Block]:
    """Data sets of one source, at most `BLOCK` of them."""
    limits = {"authors": min(spec.seeds, AUTHORS), "sphere": spec.seeds}
    return [
        {"source": source, "first": first, "last": min(first + BLOCK, limit)}
        for source, limit in limits.items()
        for first in range(0, limit, BLOCK)
    ]


def run(spec: Spec, block: Block) -> Part:
    """Train and compare: tables `curves` (by run and step), `runs` (α and its optimality), arrays of the weights."""
    index = range(block["first"], block["last"])
    runs = _Runs(_data(block["source"], index), block["source"], index, {})
    curves, rows, trained = [], [], {}
    for name, form, log_lambda, steps, norm in _trainings(spec):
        trajectory = trained[name] = _train(spec, form, log_lambda, steps, runs)
        at = spec.steps if log_lambda != spec.tiny else spec.long_steps
        curves.append(_curves(runs, trajectory, name, at))
        rows += _optimality(runs, trajectory, name, norm, sorted({spec.steps, steps}))
    return Part(
        {
            "curves": pl.concat(curves),
            "runs": pl.DataFrame(rows),
            "stragglers": _stragglers(spec, runs, trained["KQ-tiny"]),
        },
        {name: trajectory.final for name, trajectory in trained.items()},
    )


def _data(source: str, index: range) -> list[TokenData]:
    if source == "sphere":
        return datasets.make_many("sphere", index, n=6, T=8, d=10)
    authors = datasets.paper("local")
    assert isinstance(authors, list)
    return authors[index.start : index.stop]


def _trainings(spec: Spec) -> list[tuple[str, str, float | None, int, str]]:
    """Name, form, ln λ, steps and the norm whose SVM it prefers."""
    return [
        ("W", "W", None, spec.long_steps, "fro"),
        ("KQ", "KQ", spec.log_regularization, spec.steps, "nuc"),
        ("KQ-tiny", "KQ", spec.tiny, spec.long_steps, "nuc"),
    ]


def _train(spec: Spec, form: str, log_lambda: float | None, steps: int, runs: _Runs) -> Trajectory:
    record = [step for step in spec.records if step <= steps] + [min(spec.steps, steps)]
    return train(
        runs.data,
        form=form,
        steps=steps,
        log_regularization=log_lambda,
        seeds=np.array(runs.index)[:, None],
        record=record,
        progress=False,
    )


def _curves(runs: _Runs, trajectory: Trajectory, name: str, at: int) -> pl.DataFrame:
    """Correlations with both SVMs of the tokens chosen at step `at`, and softmax probabilities."""
    k = int(np.flatnonzero(trajectory.steps == at)[0])
    alpha = trajectory.chosen[:, k, :, 0]
    R, S = trajectory.norms.shape
    columns = {norm: _correlations(runs, trajectory.W, alpha, norm) for norm in ("fro", "nuc")}
    chosen = np.take_along_axis(trajectory.probabilities[:, :, :, 0], alpha[:, None, :, None], axis=-1)[..., 0]
    return pl.DataFrame(
        {
            "training": name,
            "source": runs.source,
            "data": np.repeat(runs.index, S),
            "step": np.tile(trajectory.steps, R),
            "probability": trajectory.probabilities.max(-1).mean((2, 3)).ravel(),
            "probability_chosen": chosen.mean(-1).ravel(),
            "corr_fro": columns["fro"].ravel(),
            "corr_nuc": columns["nuc"].ravel(),
            "norm": trajectory.norms.ravel(),
        }
    )


def _correlations(runs: _Runs, W: Float[Array, "R S d d"], alpha: Int[Array, "R n"], norm: str) -> Float[Array, "R S"]:
    targets = np.stack([np.asarray(runs.svm(r, a, norm).W) for r, a in enumerate(alpha)])
    return np.asarray(correlation(W, targets[:, None]))


def _optimality(runs: _Runs, trajectory: Trajectory, name: str, norm: str, steps: list[int]) -> list[dict[str, Any]]:
    rows = []
    for step in steps:
        k = int(np.flatnonzero(trajectory.steps == step)[0])
        for r, alpha in enumerate(trajectory.chosen[:, k, :, 0]):
            svm = runs.svm(r, alpha, norm)
            found = local_optimality(runs.data[r], svm)
            rows.append(
                {
                    "training": name,
                    "source": runs.source,
                    "data": runs.index[r],
                    "step": step,
                    "alpha": alpha.tolist(),
                    "globally_optimal": found.globally_optimal,
                    "locally_optimal": bool(found),
                    "smallest_score_margin": found.smallest,
                    "correlation": float(correlation(trajectory.W[r, k], np.asarray(svm.W))),
                    "svm_rank": svm.rank,
                    "svm_rank_bound": svm.rank_bound,
                    "support_tokens": 0 if svm.support is None else len(svm.support),
                }
            )
    return rows


def _stragglers(spec: Spec, runs: _Runs, trajectory: Trajectory) -> pl.DataFrame:
    """Runs of the third training that have not arrived: continued as they are, then with finer steps."""
    alpha = trajectory.chosen[:, -1, :, 0]
    before = _correlations(runs, trajectory.W[:, -1:], alpha, "nuc")[:, 0]
    which = np.flatnonzero(before < ARRIVED)
    columns: dict[str, Any] = {
        "source": [runs.source for r in which],
        "data": [runs.index[r] for r in which],
        "before": before[which],
        "continued": np.zeros(len(which)),
        "finer": np.zeros(len(which)),
        "least_singular": [_least_singular(runs.svm(int(r), alpha[r], "nuc")) for r in which],
    }
    stages = (("continued", spec.longer * spec.long_steps, 0.1), ("finer", spec.long_steps, FINE))
    for name, steps, learning_rate in stages if len(which) else ():
        start = trajectory.K, trajectory.Q
        assert start[0] is not None
        assert start[1] is not None
        at = which if name == "continued" else slice(None)
        trajectory = train(
            [runs.data[r] for r in which],
            form="KQ",
            steps=steps,
            learning_rate=learning_rate,
            log_regularization=spec.tiny,
            initial=(start[0][at, -1], start[1][at, -1]),
            record=[steps],
            progress=False,
        )
        found = [runs.svm(int(r), trajectory.chosen[j, -1, :, 0], "nuc").W for j, r in enumerate(which)]
        columns[name] = correlation(trajectory.final, np.stack([np.asarray(W) for W in found]))
    floats = ("before", "continued", "finer", "least_singular")
    return pl.DataFrame(columns, schema={"source": pl.String, "data": pl.Int64} | dict.fromkeys(floats, pl.Float64))


def _least_singular(svm: Solution) -> float:
    """Of those that count towards the rank, over the largest."""
    assert svm.rank is not None
    sigma = np.linalg.svd(np.asarray(svm.W), compute_uv=False)
    return float(sigma[svm.rank - 1] / sigma[0])


EXPERIMENT = Experiment(
    id="local",
    title="Local convergence to the attention SVMs",
    about=ABOUT.strip(),
    presets={"quick": Spec(seeds=20), "paper": Spec()},
    seeds={
        "data": "the authors' numbers; law `sphere`, seeds 0, 1, ...",
        "initial weights": "the index of the data set",
    },
    blocks=once(blocks),
    run=run,
    claims=claims,
    figures=figures,
    interactive=interactive,
)

__all__ = ["EXPERIMENT", "Spec"]
