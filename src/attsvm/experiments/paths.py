"""`paths-1`, `paths-2`: two examples in the plane, paths of `W(k) z_i` and the lines they turn to (Figures 1 and 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float
from matplotlib.figure import Figure

from attsvm import datasets, plots
from attsvm.data import TokenData
from attsvm.experiments import closer
from attsvm.experiments.base import Block, Claim, Experiment, Results, Verdict, once, unstated
from attsvm.solution import Solution
from attsvm.solvers import solve
from attsvm.store import Part
from attsvm.training import train

Array = np.ndarray

ANGLE = 3.0  # degrees
WEIGHTS = (("W(k)", "W"), ("K(k)Q(k)ᵀ", "KQ"), ("W_mm", "W_mm"), ("W_mm*", "W_mm_star"))
EXIT = 0.1  # of the side of the box

ABOUT = """
The authors' own two examples. W starts at zero, so its path is determined; Q starts at zero and K at 0.1 times a
standard normal matrix. Normalised gradient descent with the exact log-domain gradient, step 0.1; (K, Q) with a
penalty λ(‖K‖² + ‖Q‖²), λ = 2.2e-16. Solid: W(k) z_i. Dashed: K(k) Q(k)ᵀ z_i. Dotted: the lines of W_mm z_i; dash-
dotted: W_mm* z_i.

Exit: where a path or a line first meets |y| = box, between recorded steps by a straight line. Angle of position:
between W(k) z_i and the line; angle of travel: between the last piece of the path and the line.
"""


@dataclass(frozen=True)
class Spec:
    """Settings of `paths-1` and `paths-2`.

    Attributes:
        name: the data, `"paths-1"` or `"paths-2"`.
        box: |y| at which the published figure ends.
        view: half-width of the closer view.
        hyperplanes: draw those of the margin.
        steps, learning_rate, regularization: of the training.
        seed: of K0.
    """

    name: str
    box: float
    view: float
    hyperplanes: bool
    steps: int = 2000
    learning_rate: float = 0.1
    regularization: float = 2.2e-16
    seed: int = 0


def run(spec: Spec, block: Block) -> Part:
    """Train both forms; table `exits` (one row per query and kind of path), arrays of the paths and of both SVMs."""
    data = _data(spec)
    record = [*range(min(200, spec.steps)), *range(200, spec.steps + 1, 5)]
    common: dict[str, Any] = {
        "steps": spec.steps,
        "learning_rate": spec.learning_rate,
        "record": record,
        "progress": False,
    }
    W = train(data, form="W", initial="zeros", **common)
    K0 = 0.1 * np.random.default_rng(spec.seed).standard_normal((data.d_k, 2))
    start = (K0, np.zeros((data.d_q, 2)))
    KQ = train(data, form="KQ", initial=start, regularization=spec.regularization, **common)
    svms = _svms(data)
    rows = [
        {"query": i + 1, "path": name, "svm": svm} | _row(path[0] @ z, W_svm @ z, W.steps, spec.box)
        for i, z in enumerate(data.queries[:, 0])
        for name, path, svm, W_svm in (
            ("W", W.W, "W_mm", svms[0].W),
            ("KQ", KQ.W, "W_mm*", svms[1].W),
        )
        if W_svm is not None
    ]
    arrays = {"steps": W.steps, "W": W.W[0], "KQ": KQ.W[0], "K0": K0, "W_mm": svms[0].W, "W_mm_star": svms[1].W}
    return Part({"exits": pl.DataFrame(rows)}, {name: np.asarray(array) for name, array in arrays.items()})


def _data(spec: Spec) -> TokenData:
    data = datasets.paper(spec.name)
    assert isinstance(data, TokenData)
    return data


def _svms(data: TokenData) -> tuple[Solution, Solution]:
    return solve(data, norm="fro"), solve(data, norm="nuc")


def _row(path: Float[Array, "S 2"], line: Float[Array, " 2"], steps: Array, box: float) -> dict[str, Any]:
    crossing, step = _exit(path, steps, box)
    target = line * box / abs(line[1])
    return {
        "line_x": target[0],
        "line_y": target[1],
        "path_x": crossing[0],
        "path_y": crossing[1],
        "exit_step": step,
        "exit_distance": float(np.linalg.norm(crossing - target)) / (2 * box),
        "angle_position": _angle(path[-1], line),
        "angle_travel": _angle(path[-1] - path[-2], line),
    }


def _exit(path: Float[Array, "S 2"], steps: Array, box: float) -> tuple[Float[Array, " 2"], float]:
    """Where and at which step the path meets |y| = box; NaN where it stays inside."""
    outside = np.flatnonzero(np.abs(path[:, 1]) >= box)
    if not len(outside):
        return np.full(2, np.nan), np.nan
    s = int(outside[0])
    before, after = np.abs(path[[s - 1, s], 1])
    part = (box - before) / (after - before)
    return path[s - 1] + part * (path[s] - path[s - 1]), float(steps[s - 1] + part * (steps[s] - steps[s - 1]))


def _angle(a: Float[Array, " 2"], b: Float[Array, " 2"]) -> float:
    """In degrees, accurate down to zero."""
    return float(np.degrees(np.abs(np.arctan2(a[0] * b[1] - a[1] * b[0], a @ b))))


def claims(results: Results) -> list[Claim]:
    """Both forms turn to their lines; the exits of the W path and of the line agree."""
    spec, table = results.spec, results.tables["exits"]
    found = []
    for path, svm in (("W", "W_mm"), ("KQ", "W_mm*")):
        angles = table.filter(pl.col("path") == path)["angle_position"].to_list()
        travel = table.filter(pl.col("path") == path)["angle_travel"].to_list()
        name = "W" if path == "W" else "K Qᵀ"
        found.append(
            Claim(
                spec.name,
                f"turns-{path}",
                f"the path of {name} z_i turns to the line of {svm} z_i: angle at step {spec.steps}, i = 1, 2, "
                f"at most {ANGLE:g} degrees",
                "turns to the line",
                angles,
                Verdict.HOLDS if max(angles) <= ANGLE else Verdict.FAILS,
                f"Direction of travel: {', '.join(f'{angle:.2g}' for angle in travel)} degrees from the line."
                if path == "W"
                else "The penalty ends the growth of K Qᵀ, so its last steps go to and fro.",
            )
        )
    return found + [_exits(spec, row) for row in table.filter(pl.col("path") == "W").iter_rows(named=True)]


def _exits(spec: Spec, row: dict[str, Any]) -> Claim:
    far = row["exit_distance"]
    inside = np.isnan(far)
    points = f"({row['path_x']:.2f}, {row['path_y']:.2f}) and ({row['line_x']:.2f}, {row['line_y']:.2f})"
    note = f"{100 * far:.1f} % of the side of the box apart; the path leaves at step {row['exit_step']:.0f}."
    return Claim(
        spec.name,
        f"exit-{row['query']}",
        f"path of W z_{row['query']} and line of W_mm z_{row['query']} leave |y| = {spec.box:g} at, "
        f"less than {EXIT:.0%} of its side apart",
        None,
        points,
        unstated(not inside and far <= EXIT),
        f"The path stays inside for {spec.steps} steps." if inside else note,
    )


def figures(results: Results) -> dict[str, Figure]:
    """A closer view and the published box side by side."""
    spec, arrays = results.spec, results.arrays
    data = _data(spec)
    fro, nuc = _svms(data)
    views = (spec.view, spec.box)
    drawn = plots.paths(
        data, fro, W=arrays["W"], KQ=arrays["KQ"], nuclear=nuc, boxes=views, hyperplanes=spec.hyperplanes
    )
    return {spec.name: drawn}


def interactive(results: Results) -> dict[str, Any]:
    """The paths with a slider over the steps."""
    spec, arrays = results.spec, results.arrays
    data = _data(spec)
    named = [[f"{name} z{i + 1}", key, z] for name, key in WEIGHTS for i, z in enumerate(data.queries[:, 0])]
    paths = {name: arrays[key] @ z for name, key, z in named if key in ("W", "KQ")}
    lines = {name: arrays[key] @ z for name, key, z in named if key not in ("W", "KQ")}
    return {"steps": closer.paths(arrays["steps"], paths, lines, data.tokens, spec.view)}


def _experiment(title: str, spec: Spec) -> Experiment:
    return Experiment(
        id=spec.name,
        title=title,
        about=ABOUT.strip(),
        presets={"quick": spec, "paper": spec},
        seeds={"data": f"the authors' numbers, {spec.name}", "K0": f"0.1 × standard normal, seed {spec.seed}"},
        blocks=once(lambda spec: [{"forms": "both"}]),
        run=run,
        claims=claims,
        figures=figures,
        interactive=interactive,
    )


PATHS_1 = _experiment("Paths of W z turn to the lines, n = 2, T = 3", Spec("paths-1", 100.0, 10.0, False))
PATHS_2 = _experiment("Paths of W z turn to the lines, n = 2, T = 5", Spec("paths-2", 5.0, 2.0, True))

__all__ = ["PATHS_1", "PATHS_2", "Spec"]
