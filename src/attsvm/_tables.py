"""What the command line prints: one JSON object, or a table."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from attsvm import Comparison, Solution, Trajectory

FEW = 8  # rows or tokens shown where there may be thousands


def show(content: dict[str, Any] | Table) -> None:
    """Print a dictionary as JSON, anything else as rich does."""
    if isinstance(content, dict):
        print(json.dumps(_jsonable(content), allow_nan=False))  # noqa: T201
        return
    Console().print(content)


def own_norm(trajectory: Trajectory) -> str:
    """The norm whose attention SVM this form of training turns to: Frobenius for W, nuclear for (K, Q)."""
    return "fro" if trajectory.form == "W" else "nuc"


def grid(pairs: dict[str, Any]) -> Table:
    """One line per name and value; None is left out."""
    table = Table.grid(padding=(0, 2))
    for name, value in pairs.items():
        if value is not None:
            table.add_row(Text(name, style="bold"), Text(str(value)))
    return table


def solution_table(solution: Solution, out: Path | None) -> Table:
    """A solution, with the first of its support tokens."""
    pairs: dict[str, Any] = {"status": str(solution.status), "norm": solution.norm, "rows": solution.problem.n_rows}
    if solution.certificate is not None and solution.support is not None:
        proof = solution.certificate
        pairs |= {"value": f"{solution.value:.10g}", "margin": f"{solution.margin:.10g}"}
        pairs |= {"gap": f"{proof.gap:.1e}", "violation": f"{proof.violation:.1e}"}
        pairs |= {"rank": f"{solution.rank} (at most {solution.rank_bound} for every optimum)"}
        pairs |= {"support tokens": f"{len(solution.support)}, as (example, query, token): {_few(solution.support)}"}
    if solution.farkas is not None:
        pairs |= {"farkas residual": f"{solution.farkas.residual:.1e}"}
    method = f"{solution.method}, {solution.iterations} iterations, {1e3 * solution.seconds:.1f} ms"
    return grid(pairs | {"method": method, "message": solution.message, "written": out})


def training(trajectory: Trajectory, correlation: list[float | None]) -> dict[str, Any]:
    """The end of training as plain values."""
    chosen = trajectory.chosen[:, -1]
    return {
        "form": trajectory.form,
        "runs": trajectory.runs,
        "step": int(trajectory.steps[-1]),
        "seeds": trajectory.seeds.tolist(),
        "loss": trajectory.loss[:, -1].tolist(),
        "norm": trajectory.norms[:, -1].tolist(),
        "chosen": (chosen[..., 0] if chosen.shape[-1] == 1 else chosen).tolist(),
        "correlation_with": own_norm(trajectory),
        "correlation": correlation,
        "seconds": trajectory.seconds,
        "compile_seconds": trajectory.compile_seconds,
    }


def training_table(trajectory: Trajectory, correlation: list[float | None], out: Path | None) -> Table:
    """The end of training, one line per run for the first of them."""
    svm = {"fro": "W_mm", "nuc": "W_mm*"}[own_norm(trajectory)]
    runs = Table(box=None, padding=(0, 2))
    for name in ("seed", "loss", "‖W‖", f"corr to {svm}", "chosen tokens"):
        runs.add_column(name, justify="left" if name == "chosen tokens" else "right")
    for r in range(min(trajectory.runs, FEW)):
        numbers = (trajectory.loss[r, -1], trajectory.norms[r, -1], correlation[r])
        words = ["none" if value is None else f"{value:.6g}" for value in numbers]
        runs.add_row(str(trajectory.seeds[r]), *words, _few(trajectory.chosen[r, -1].ravel()))
    if trajectory.runs > FEW:
        runs.add_row("...")
    table = Table.grid()
    about = f"{trajectory.seconds:.1f} s, and {trajectory.compile_seconds:.1f} s to compile"
    tail = {
        "correlation": f"with the attention SVM {svm} of the tokens each run chose",
        "written": out,
        "next": None if out is None else f"attsvm compare {out} [SOL.npz ...] --plot curves.svg",
    }
    table.add_row(grid({"form": trajectory.form, "steps": trajectory.steps[-1], "time": about}))
    for part in (runs, grid(tail)):
        table.add_row("")
        table.add_row(part)
    return table


def comparison_table(comparison: Comparison) -> Table:
    """Every quantity at the last step: mean, least and greatest over the runs."""
    at = comparison.summary()
    title = f"{at['form']} against the {at['svm']} attention SVM: {at['runs']} run(s) at step {at['step']}"
    table = Table(box=None, padding=(0, 2))
    for name in ("", "mean", "min", "max"):
        table.add_column(name, justify="right" if name else "left")
    for name, values in at.items():
        if isinstance(values, dict):
            table.add_row(name, *("none" if value is None else f"{value:.6g}" for value in values.values()))
    whole = Table.grid()
    whole.add_row(title)
    whole.add_row(table)
    return whole


def _jsonable(value: Any) -> Any:
    """NaN and infinity have no JSON: null."""
    if isinstance(value, dict):
        return {key: _jsonable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_jsonable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _few(rows: Any) -> str:
    more = " ..." if len(rows) > FEW else ""
    return " ".join(str(tuple(row)) if isinstance(row, list) else str(row) for row in rows[:FEW].tolist()) + more
