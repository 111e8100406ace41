"""Entrywise norms: `‖W‖_max` as a linear program, `‖W‖_p` by projected Newton on the dual.

These norms are tied to the coordinates, so the rows stay in them and `vec(δ zᵀ)` is what the solvers see: for widths at
which `d_k d_q` numbers per row are no trouble.

    p-norm dual:  max bᵀu - ‖G(u)‖_q^q / q,  0 <= u (<= C),  1/p + 1/q = 1,   W = sign(G)|G|^(q-1)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attsvm.problem import Reduced
from attsvm.solvers import cone

Array = np.ndarray

LINEAR_PROGRAM = "linear program"
NEWTON = "projected Newton"
MAX_ITERATIONS = 300
SMALLEST_DAMPING, LARGEST_DAMPING = 1e-14, 1e8  # relative to the mean curvature


@dataclass(frozen=True, eq=False)
class Entrywise:
    """`V (d_k, d_q)` and multipliers `u (K,)`."""

    V: Float[Array, "d_k d_q"]
    u: Float[Array, " K"]
    iterations: int


def largest(rows: Reduced, *, slack: float | None = None) -> Entrywise:
    """Minimise `max |V_ij|` (`+ slack·Σξ`) over the rows."""
    from scipy.optimize import linprog  # here, so that other solves need not wait for the import

    A, free = rows.features(), ~rows.equality
    d, soft = A.shape[1], int(free.sum()) if slack is not None else 0
    cost = np.concatenate([np.zeros(d), [1.0], np.full(soft, slack or 0.0)])
    box = np.hstack([np.vstack([np.eye(d), -np.eye(d)]), -np.ones((2 * d, 1)), np.zeros((2 * d, soft))])
    reach = np.hstack([-A[free], np.zeros((free.sum(), 1)), -np.eye(free.sum(), soft)])
    equal = np.hstack([A[~free], np.zeros(((~free).sum(), 1 + soft))])
    result = linprog(
        cost,
        A_ub=np.vstack([reach, box]),
        b_ub=np.concatenate([-rows.target[free], np.zeros(2 * d)]),
        A_eq=equal if len(equal) else None,
        b_eq=np.zeros(len(equal)) if len(equal) else None,
        bounds=[(None, None)] * d + [(0, None)] * (1 + soft),
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if result.x is None:
        raise np.linalg.LinAlgError(result.message)
    u = np.zeros(len(A))
    u[free] = -result.ineqlin.marginals[: free.sum()]
    if len(equal):
        u[~free] = result.eqlin.marginals
    return Entrywise(result.x[:d].reshape(rows.spans), u, int(result.nit))


def power(rows: Reduced, p: float, u: Array, keep: Array, *, target: float, slack: float | None = None) -> Entrywise:
    """Minimise `Σ|V_ij|^p / p` (`+ slack·Σξ`) over the rows, from the multipliers `u` of the Frobenius solution."""
    dual = _Dual(rows, p, keep, slack)
    u, damping = dual.onto(dual.best_multiple(u[keep])), SMALLEST_DAMPING
    iteration = 0
    for iteration in range(1, MAX_ITERATIONS + 1):  # noqa: B007 - reported
        gradient, curvature = dual.derivatives(u)
        blocked = ((u <= dual.low) & (gradient <= 0)) | ((u >= dual.high) & (gradient >= 0))
        index = np.flatnonzero(~blocked)
        if dual.gap(u) <= target or not len(index):
            break
        a = dual.A[index]
        hessian = a @ (curvature[:, None] * a.T)
        scale = max(float(np.trace(hessian)) / len(index), np.finfo(float).tiny)
        before = u
        while u is before and damping < LARGEST_DAMPING:
            move = np.zeros_like(u)
            move[index] = cone.backsolve(cone.factor(hessian.copy(), damping * scale), gradient[index])
            u = _search(dual, u, gradient, move)
            damping = max(damping / 30, SMALLEST_DAMPING) if u is not before else damping * 30
        if u is before:
            break
    full = np.zeros(len(keep))
    full[keep] = u
    return Entrywise(dual.weight(u).reshape(rows.spans), full, iteration)


def _search(dual: _Dual, u: Array, gradient: Array, move: Array) -> Array:
    """Backtracking along the projected arc; u itself where a few halvings do not help and damping must."""
    value, step = dual.value(u), 1.0
    while step > 0.05:
        trial = dual.onto(u + step * move)
        if dual.value(trial) >= value + 1e-4 * gradient @ (trial - u) and (trial != u).any():
            return trial
        step *= 0.5
    return u


class _Dual:
    def __init__(self, rows: Reduced, p: float, keep: Array, slack: float | None) -> None:
        self.A, self.b, self.p, self.q = rows.features()[keep], rows.target[keep], p, p / (p - 1.0)
        free = ~rows.equality[keep]
        self.low = np.where(free, 0.0, -np.inf)
        self.high = np.where(free, np.inf if slack is None else slack, np.inf)
        self.free, self.slack = free, slack

    def onto(self, u: Array) -> Array:
        return np.clip(u, self.low, self.high)

    def best_multiple(self, u: Array) -> Array:
        size = float(np.sum(np.abs(self.A.T @ u) ** self.q))
        return u * (max(float(self.b @ u), np.finfo(float).tiny) / size) ** (1.0 / (self.q - 1.0))

    def weight(self, u: Array) -> Array:
        g = self.A.T @ u
        return np.sign(g) * np.abs(g) ** (self.q - 1.0)

    def value(self, u: Array) -> float:
        return float(self.b @ u - np.sum(np.abs(self.A.T @ u) ** self.q) / self.q)

    def derivatives(self, u: Array) -> tuple[Array, Array]:
        g = np.abs(self.A.T @ u)
        g = np.maximum(g, 1e-12 * g.max())
        return self.b - self.A @ self.weight(u), (self.q - 1.0) * g ** (self.q - 2.0)

    def gap(self, u: Array) -> float:
        """Relative gap between both sides, each made feasible."""
        w, size = self.weight(u), float(np.sum(np.abs(self.A.T @ u) ** self.q))
        margins = self.A @ w
        unequal = float(np.abs(margins[~self.free]).max(initial=0.0))
        if self.slack is not None:
            short = np.maximum(self.b - margins, 0.0)[self.free].sum()
            primal = float(np.sum(np.abs(w) ** self.p)) / self.p + self.slack * short
            return max((primal - self.value(u)) / primal, unequal)
        reach = float(margins[self.b > 0].min())
        if reach <= 0:
            return np.inf
        primal = float(np.sum(np.abs(w) ** self.p)) ** (1.0 / self.p) / reach
        return max(1.0 - float(self.b @ u) / size ** (1.0 / self.q) / primal, unequal / reach)
