"""Regularisation paths `W̄_R` and `(K̄_R, Q̄_R)` and their distance to the attention SVM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np
import polars as pl
from jaxtyping import Float, Int

from attsvm.data import TokenData
from attsvm.errors import InputError
from attsvm.paths.descent import Descent, descend
from attsvm.paths.nuclear_set import nearest_nuclear_optimum
from attsvm.paths.objective import Objective
from attsvm.solution import Solution
from attsvm.solvers import solve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = np.ndarray
_SVM: dict[str, Literal["fro", "nuc"]] = {"W": "fro", "KQ": "nuc"}
_DECADES = 3.0  # starts have norms from R down to R / 10^3, evenly in the logarithm
_SAME = 1e-6  # objectives this close, relative to their size, count as equal


@dataclass(frozen=True, eq=False)
class RegularizationPath:
    """Result of `regularization_path`: the best of L starts at each of S radii.

    Attributes:
        form: `"W"` or `"KQ"`.
        data: the data set.
        radii: `(S,)`, R, rising.
        W: `(S, d_k, d_q)`, `W̄_R`, or `K̄_R Q̄_Rᵀ`.
        K, Q: `(S, d_k, r)` and `(S, d_q, r)`, or None in W form.
        loss: `(S, L)`, where each start ended.
        objective: `(S, L)`, what the starts were compared by: `log(L - L_inf)`, which goes on falling where the loss
            has rounded to its infimum; the loss itself where the head is not linear and the infimum unknown.
        residual: `(S, L)`, `‖P(V - R g/s) - V‖/R` at the weights V, P the projection onto the ball (of radius √(2R) for
            V = (K, Q), instead of R) and s the sum of the sizes of the terms the gradient g is a sum of: zero at
            stationary points alone, and not merely because the gradient has faded.
        iterations: `(S, L)`.
        best: `(S,)`, the start with the least objective, kept in `W`. Start 0 is the last radius's best, scaled up;
            start 1 a weight that separates the optimal tokens, see `regularization_path`.
        seed: of the other starts.
    """

    form: str
    data: TokenData
    radii: Float[Array, " S"]
    W: Float[Array, "S d_k d_q"]
    K: Float[Array, "S d_k r"] | None
    Q: Float[Array, "S d_q r"] | None
    loss: Float[Array, "S L"]
    objective: Float[Array, "S L"]
    residual: Float[Array, "S L"]
    iterations: Int[Array, "S L"]
    best: Int[Array, " S"]
    seed: int

    @property
    def spread(self) -> Float[Array, " S"]:
        """Largest less least objective over the starts: zero if they agree, as they would on a convex problem."""
        return self.objective.max(1) - self.objective.min(1)

    @property
    def agreeing(self) -> Int[Array, " S"]:
        """How many starts reach the least objective, to 1e-6 of its size."""
        least = self.objective.min(1, keepdims=True)
        return (self.objective <= least + _SAME * np.maximum(np.abs(least), 1.0)).sum(1)

    def distance(self, solution: Solution) -> Float[Array, " S"]:
        """Frobenius distance of `W̄_R / R` to the optima of the attention SVM over their norm.

        In W form to the one point `W_mm / ‖W_mm‖_F`; in `(K, Q)` form to the SET `{W_mm*} / ‖W_mm*‖_*`, from which
        K̄Q̄ᵀ/R may choose another member than the solver did. By the theory of arXiv 2308.16898 both fall to zero
        as R grows without bound, for the SVM of the optimal tokens; at small R they need not fall from one to the next.

        Args:
            solution: of this data, `norm="fro"` for W form and `"nuc"` for `(K, Q)` form.

        Raises:
            InputError: another norm, a soft margin, a solution without a weight or of other data.
        """
        W, value = self._checked(solution)
        if self.form == "W":
            return np.linalg.norm(self.W / self.radii[:, None, None] - W / value, axis=(1, 2))
        ours = self.W / self.radii[:, None, None]
        nearest = [nearest_nuclear_optimum(solution, A * value) / value for A in ours]
        return np.linalg.norm(ours - np.array(nearest), axis=(1, 2))

    def _checked(self, solution: Solution) -> tuple[Array, float]:
        if solution.norm != _SVM[self.form] or solution.slack is not None:
            raise InputError(
                f'A path in {self.form} form is compared with the hard-margin SVM of norm="{_SVM[self.form]}"; got '
                f"norm={solution.norm!r}, slack={solution.slack!r}."
            )
        mine, theirs = self.data, solution.problem.data
        same = all(np.array_equal(getattr(mine, a), getattr(theirs, a)) for a in ("tokens", "queries", "mask"))
        if solution.W is None or solution.value is None or not same:
            raise InputError("distance needs a solution with a weight, of the same data as the path: path.data.")
        return solution.W, solution.value

    def table(self, solution: Solution | None = None) -> pl.DataFrame:
        """One row per radius: `radius`, `norm` (‖W‖ in the norm of the SVM, over R), `loss`, `objective`, `residual` of
        the best start, `spread` and `agreeing` of all, `best`; with a solution, `distance`."""
        order = _SVM[self.form]
        at = np.arange(len(self.radii)), self.best
        columns: dict[str, Any] = {
            "radius": self.radii,
            "norm": np.array([np.linalg.norm(W, order) for W in self.W]) / self.radii,
            "loss": self.loss[at],
            "objective": self.objective[at],
            "residual": self.residual[at],
            "spread": self.spread,
            "agreeing": self.agreeing,
            "best": self.best,
        }
        return pl.DataFrame(columns | ({} if solution is None else {"distance": self.distance(solution)}))

    def plot(self, solution: Solution, path: str | Path | None = None) -> Figure:
        """Distance to the attention SVM, and the residual of the best start, against R.

        Args:
            solution: as for `distance`.
            path: also save there: `.svg` or `.png`, or a stem for both.
        """
        from attsvm import plots

        figure, axes = plots.grid(2, width=5.2)
        table = self.table(solution)
        for axis, name, label in zip(axes, ("distance", "residual"), ("distance to the SVM", "residual"), strict=True):
            axis.loglog(self.radii, np.maximum(table[name].to_numpy(), np.finfo(float).tiny), color=plots.COLOURS[0])
            axis.set_xlabel("R")
            axis.set_ylabel(label)
        if path is not None:
            plots.save(figure, path)
        return figure

    def __repr__(self) -> str:
        return (
            f"RegularizationPath({self.form}, R = {self.radii[0]:.4g} to {self.radii[-1]:.4g} in {len(self.radii)} "
            f"steps, {self.loss.shape[1]} starts, seed {self.seed}: largest residual {self._worst():.1e})"
        )

    def _worst(self) -> float:
        return float(np.take_along_axis(self.residual, self.best[:, None], 1).max())


def regularization_path(
    data: TokenData,
    radii: Sequence[float] | Array,
    *,
    form: str = "W",
    loss: str | Callable[[Any], Any] = "logistic",
    head: Callable[[Any], Any] | None = None,
    starts: int = 16,
    seed: int = 0,
    steps: int = 3000,
    tolerance: float = 1e-8,
) -> RegularizationPath:
    """Least training loss in balls of growing radius (section 2 of arXiv 2308.16898).

    `W̄_R = argmin L(W)` over `‖W‖_F <= R`, or `(K̄_R, Q̄_R) = argmin L(K Qᵀ)` over `‖K‖_F² + ‖Q‖_F² <= 2R`, K and Q with
    `min(d_k, d_q)` columns. The problem is not convex: at every radius the descent is started from the best weights
    of the last one, scaled up; from a weight that separates the optimal tokens, where the head is linear and there is
    one; and from random ones, of norms spread over three decades below the largest allowed. The best is kept; how far
    the others fall short is in the result. Nothing proves that the best is a global minimum. The separating weight is
    the SVM in the OTHER form's norm, so that no path starts at what it is compared with.

    Spectral projected gradient with the exact log-domain gradient. With a linear head starts are compared, and
    descended, by `log(L - L_inf)`, so that radii are not limited by the loss rounding to its infimum; with another head
    the loss itself is, and large radii end early, with a residual that says so.

    Args:
        data: the examples, with a `value` or a `head` unless `head` is given.
        radii: R, positive and rising. The scale of the SVM is its `value`: at R of this size margins reach one.
        form: `"W"` or `"KQ"`.
        loss: as in `attsvm.train`; strictly decreasing.
        head: as in `attsvm.train`; default: that of the data.
        starts: at every radius, at least 1. They cost little together, and radii near the norm of the SVM, where the
            best weights need not attend to the optimal tokens, ask for many: 64 at n, T, d = 6, 8, 10.
        seed: of NumPy's default generator.
        steps: at most, for every start.
        tolerance: of the residual, at which a start ends.

    Raises:
        InputError: an argument that cannot be used as given.
    """
    grid = _check(data, radii, form, {"starts": (starts, 1), "seed": (seed, 0), "steps": (steps, 1)}, tolerance)
    rng = np.random.default_rng(int(seed))
    with jax.enable_x64(True):
        objective, ends = Objective(data, form, loss, head), []
        separating = _separating(data, objective.optimal, form)
        for radius in grid if form == "W" else np.sqrt(2 * grid):
            first = ends[-1].V[:, ends[-1].point.value.argmin()] if ends else None
            V = _starts(objective.size, int(starts), radius, rng)
            for column, known in enumerate((first, separating)[: int(starts)]):
                V[:, column] = V[:, column] if known is None else known * (radius / np.linalg.norm(known))
            ends.append(descend(objective, V, float(radius), int(steps), float(tolerance)))
    return _result(data, form, grid, objective, ends, int(seed))


def _separating(data: TokenData, optimal: Array | None, form: str) -> Float[Array, " N"] | None:
    """The SVM of the optimal tokens in the norm of the other form, as a column of weights; None where there is none."""
    if optimal is None:
        return None
    W = solve(data, optimal, norm="nuc" if form == "W" else "fro", throw=False).W
    if W is None or form == "W":
        return W if W is None else W.T.ravel()
    U, sigma, Vt = np.linalg.svd(W, full_matrices=False)
    return np.concatenate([U * np.sqrt(sigma), Vt.T * np.sqrt(sigma)]).ravel()


def _starts(size: int, count: int, radius: float, rng: np.random.Generator) -> Float[Array, "N L"]:
    V = rng.standard_normal((size, count))
    length = radius * 10.0 ** rng.uniform(-_DECADES, 0.0, count)
    return V * (length / np.linalg.norm(V, axis=0))


def _result(
    data: TokenData, form: str, grid: Array, objective: Objective, ends: list[Descent], seed: int
) -> RegularizationPath:
    best = np.array([end.point.value.argmin() for end in ends])
    kept = np.stack([end.V[:, b] for end, b in zip(ends, best, strict=True)], axis=1)
    matrices = [np.moveaxis(part, -1, 0) for part in objective.split(kept)]
    K, Q = matrices if form == "KQ" else (None, None)
    W = matrices[0].swapaxes(1, 2) if K is None or Q is None else K @ Q.swapaxes(1, 2)
    fields = {"loss": [end.point.loss for end in ends], "objective": [end.point.value for end in ends]}
    fields |= {"residual": [end.residual for end in ends], "iterations": [end.iterations for end in ends]}
    arrays = {name: np.stack(parts) for name, parts in fields.items()}
    return RegularizationPath(form=form, data=data, radii=grid, W=W, K=K, Q=Q, **arrays, best=best, seed=seed)


def _check(
    data: Any, radii: Any, form: str, counts: dict[str, tuple[Any, int]], tolerance: float
) -> Float[Array, " S"]:
    if not isinstance(data, TokenData):
        raise InputError(f"data must be a TokenData; got {type(data).__name__}.")
    if form not in _SVM:
        raise InputError(f'form: got {form!r}, expected "W" or "KQ".')
    for name, (value, least) in counts.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise InputError(f"{name} must be an integer of at least {least}; got {value!r}.")
    if not 0 < tolerance < 1:
        raise InputError(f"tolerance must lie between 0 and 1; got {tolerance!r}.")
    try:
        grid = np.asarray(radii, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"radii must be positive numbers, rising; {error}.") from error
    rising = grid.ndim == 1 and grid.size > 0 and np.isfinite(grid).all() and grid[0] > 0 and (np.diff(grid) > 0).all()
    if not rising:
        raise InputError(f"radii must be positive, finite and rising; got {radii!r}.")
    return grid


__all__ = ["RegularizationPath", "regularization_path"]
