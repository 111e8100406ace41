"""How close training comes to an attention SVM: correlation, margin, agreement of chosen tokens, distance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from jaxtyping import Float

from attsvm.data import TokenData
from attsvm.errors import InputError
from attsvm.problem import Problem
from attsvm.solution import Solution
from attsvm.verify import norm_named

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attsvm.trajectory import Trajectory

Array = np.ndarray

QUANTITIES = ("loss", "norm", "correlation", "margin", "efficiency", "agreement", "distance")
_CHUNK = 2**22  # numbers in a temporary array, 32 MiB


@dataclass(frozen=True, eq=False)
class Comparison:
    """Result of `attsvm.compare`: R runs at S recorded steps against their attention SVMs.

    Attributes:
        form: the trained form, `"W"` or `"KQ"`.
        svm: the name of the norm of the attention SVMs, such as `"fro"` or `"nuc"`.
        table: one row per run and recorded step, in this order. Columns: `run`; `data`, the index of its data set;
            `seed`; `step`; `norm`, `‖W‖_F`; `loss`; `correlation`, `<W, W_svm>/(‖W‖_F ‖W_svm‖_F)`; `margin`,
            `min_k δ_kᵀWz_k/‖W‖` over the separation rows, in the norm of the SVM; `efficiency`, that margin over
            `1/‖W_svm‖`, the best there is; `agreement`, the share of queries whose most attended token is a chosen
            one; `distance`, `‖W/‖W‖_F - W_svm/‖W_svm‖_F‖_F`. `W = 0` has no direction: null in these five.

    With several chosen tokens per query a trained W need not satisfy the equalities of the SVM, and its efficiency
    may exceed one.
    """

    form: str
    svm: str
    table: pl.DataFrame

    @property
    def steps(self) -> Array:
        """The recorded steps, `(S,)`."""
        return self.table["step"].unique(maintain_order=True).to_numpy()

    @property
    def final(self) -> pl.DataFrame:
        """The rows of the last step, one per run."""
        return self.table.filter(pl.col("step") == pl.col("step").max())

    def values(self, quantity: str) -> Float[Array, "R S"]:
        """A column of the table by run and step, NaN where null.

        Raises:
            InputError: no such column.
        """
        if quantity not in QUANTITIES:
            raise InputError(f"There is no quantity {quantity!r}; expected one of {', '.join(QUANTITIES)}.")
        return self.table[quantity].cast(pl.Float64).fill_null(np.nan).to_numpy().reshape(-1, len(self.steps))

    def summary(self) -> dict[str, Any]:
        """Mean, least and greatest value over the runs at the last step, ready for JSON."""
        final = self.final
        plain: dict[str, Any] = {"form": self.form, "svm": self.svm, "runs": len(final), "step": int(self.steps[-1])}
        for quantity in QUANTITIES:
            column = final[quantity]
            plain[quantity] = {"mean": column.mean(), "min": column.min(), "max": column.max()}
        return plain

    def plot(self, path: str | Path | None = None) -> Figure:
        """Correlation, distance, margin and agreement over the steps: means with a band over the runs.

        Args:
            path: also save there: `.svg` or `.png`, or a stem for both.
        """
        from attsvm import plots

        figure = plots.training_curves(self)
        if path is not None:
            plots.save(figure, path)
        return figure

    def __repr__(self) -> str:
        at = self.summary()
        mean = ", ".join(f"{name} {_short(at[name]['mean'])}" for name in ("correlation", "efficiency", "agreement"))
        return f"Comparison({self.form} against {self.svm}, {at['runs']} runs, means at step {at['step']}: {mean})"


def compare(trajectory: Trajectory, solution: Solution | Sequence[Solution]) -> Comparison:
    """Compare the weights of a training trajectory with attention SVMs as the experiments of arXiv 2308.16898 do.

    Args:
        trajectory: what `attsvm.train` returns.
        solution: one solution where the trajectory has one data set; or a list, one solution per data set or one per
            run, told apart by its length (where both counts are equal they are the same list).

    Raises:
        InputError: a list of another length, a solution without a weight or of other data, mixed norms.
    """
    solutions, run_solution = _assign(trajectory, solution)
    columns = {name: np.full(trajectory.norms.shape, np.nan) for name in QUANTITIES[2:]}
    for j, one in enumerate(solutions):
        runs = np.flatnonzero(run_solution == j)
        for name, values in _measure(trajectory.W[runs], trajectory.chosen[runs], one).items():
            columns[name][runs] = values
    return Comparison(trajectory.form, solutions[0].norm, _table(trajectory, columns))


def correlation(A: Float[Array, " ..."], B: Float[Array, " ..."]) -> Float[Array, " ..."] | float:
    """`corr(A, B) = <A, B>/(‖A‖_F ‖B‖_F)`; NaN where either is zero.

    Args:
        A: `(..., d_k, d_q)`.
        B: likewise; leading axes broadcast.

    Raises:
        InputError: matrices of different shapes.
    """
    A, B = (np.asarray(M, dtype=np.float64) for M in (A, B))
    if A.ndim < 2 or A.shape[-2:] != B.shape[-2:]:
        raise InputError(f"correlation compares matrices of one shape; got {A.shape} and {B.shape}.")
    return np.clip((_unit(A) * _unit(B)).sum((-2, -1)), -1.0, 1.0)


def margin(W: Float[Array, " ..."], problem: Problem, norm: str = "fro") -> Float[Array, " ..."] | float:
    """`min_k δ_kᵀ W z_k / ‖W‖` over the separation rows of `problem` (its best value is `1/‖W_svm‖`); NaN at W = 0.

    Args:
        W: `(..., d_k, d_q)`.
        problem: such as `solution.problem`.
        norm: the norm W is measured in, as in `attsvm.solve`.

    Raises:
        InputError: W does not fit the data.
    """
    W = np.asarray(W, dtype=np.float64)
    shape = (problem.data.d_k, problem.data.d_q)
    if W.shape[-2:] != shape:
        raise InputError(f"W has shape {W.shape}; these data need (..., {shape[0]}, {shape[1]}).")
    flat = W.reshape(-1, *shape)
    delta, pair = problem.delta[problem.separates], problem.pair[problem.separates]
    least = np.empty(len(flat))
    size = max(1, _CHUNK // delta.size)
    for part in (slice(i, i + size) for i in range(0, len(flat), size)):
        pulled = (flat[part] @ problem.queries.T).swapaxes(1, 2)  # W z of every query
        least[part] = np.einsum("kd,skd->sk", delta, pulled[:, pair]).min(1)
    return _divide(least, _norms(flat, norm)).reshape(W.shape[:-2])


def _measure(W: Float[Array, "R S d_k d_q"], attended: Array, solution: Solution) -> dict[str, Float[Array, "R S"]]:
    assert solution.W is not None
    problem = solution.problem
    margins = np.asarray(margin(W, problem, solution.norm))
    sets = problem.selection.sets
    i, k = np.nonzero(problem.data.active)
    agree = sets[i, k, attended[:, :, i, k]].mean(-1)
    return {
        "correlation": np.asarray(correlation(W, solution.W)),
        "margin": margins,
        "efficiency": margins * _norms(solution.W, solution.norm),
        "agreement": np.where(np.isnan(margins), np.nan, agree),
        "distance": np.linalg.norm(_unit(W) - _unit(solution.W), axis=(-2, -1)),
    }


def _table(trajectory: Trajectory, columns: dict[str, Array]) -> pl.DataFrame:
    R, S = trajectory.norms.shape
    run = np.repeat(np.arange(R), S)
    index = {"run": run, "data": trajectory.run_data[run], "seed": trajectory.seeds[run]}
    index["step"] = np.tile(trajectory.steps, R)
    values = {"norm": trajectory.norms, "loss": trajectory.loss, **columns}
    table = pl.DataFrame(index | {name: np.ravel(column) for name, column in values.items()})
    return table.with_columns(pl.col(*columns).fill_nan(None))


def _assign(trajectory: Trajectory, solution: Any) -> tuple[list[Solution], Array]:
    """The distinct solutions, and for every run the index of its own."""
    given = [solution] if isinstance(solution, Solution) else list(solution)
    runs, sets = len(trajectory.seeds), len(trajectory.data)
    wrong = [type(one).__name__ for one in given if not isinstance(one, Solution)]
    if wrong:
        raise InputError(f"compare needs attsvm.solve's Solution, or a list of them; got {wrong[0]}.")
    if len(given) not in (sets, runs):
        raise InputError(
            f"compare got {len(given)} solution(s) for a trajectory of {runs} runs on {sets} data set(s); give one for "
            f"each data set ({sets}) or one for each run ({runs}), as a list in their order."
        )
    chosen = trajectory.run_data if len(given) == sets else np.arange(runs)
    distinct = list({id(one): one for one in given}.values())
    position = {id(one): j for j, one in enumerate(distinct)}
    for r, one in _first_uses(given, chosen):
        _check(one, trajectory.data[int(trajectory.run_data[r])], r)
    norms = sorted({one.norm for one in distinct})
    if len(norms) > 1:
        raise InputError(f"The solutions mix the norms {norms}; compare with one norm at a time.")
    return distinct, np.array([position[id(given[j])] for j in chosen])


def _first_uses(given: list[Solution], chosen: Array) -> Iterator[tuple[int, Solution]]:
    """Every solution with the first run it serves."""
    used, first = np.unique(chosen, return_index=True)
    for j, r in zip(used, first, strict=True):
        yield int(r), given[j]


def _check(solution: Solution, data: TokenData, run: int) -> None:
    if solution.W is None:
        raise InputError(
            f"The solution for run {run} has no weight to compare with; its status is {solution.status}: "
            f"{solution.message} Compare with the attention SVM of the tokens that training chose, or drop that run."
        )
    mine = solution.problem.data
    for name in ("tokens", "queries", "mask"):
        ours, theirs = getattr(data, name), getattr(mine, name)
        if not np.array_equal(ours, theirs):
            how = f"shape {theirs.shape}, not {ours.shape}" if ours.shape != theirs.shape else "other values"
            raise InputError(
                f"The solution for run {run} was solved on other data than that run was trained on: its {name} have "
                f"{how}. Solve the attention SVM of the trajectory's own data (trajectory.data)."
            )


def _norms(W: Float[Array, "... d_k d_q"], norm: str) -> Float[Array, " ..."]:
    value = norm_named(norm).value
    return np.array([value(one) for one in W.reshape(-1, *W.shape[-2:])]).reshape(W.shape[:-2])


def _unit(W: Float[Array, "... d_k d_q"]) -> Float[Array, "... d_k d_q"]:
    """Directions `W/‖W‖_F`, NaN at zero; scaled by the largest entry first, so that no square over- or underflows."""
    scaled = _divide(W, np.abs(W).max((-2, -1), keepdims=True))
    return scaled / np.linalg.norm(scaled, axis=(-2, -1), keepdims=True)


def _divide(a: Array, b: Array) -> Array:
    return np.divide(a, b, out=np.full(np.broadcast_shapes(a.shape, b.shape), np.nan), where=b > 0)


def _short(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


__all__ = ["Comparison", "compare", "correlation", "margin"]
