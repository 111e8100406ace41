"""Frobenius norm with a soft margin: `min ½‖V‖_F² + Σ C ξ_k` with `δ_kᵀ V z_k >= 1 - ξ_k`.

The dual is `max bᵀu - ½ uᵀMu` in the box `0 <= u <= C`. A primal-dual interior-point method on it finds which rows are
free, at zero and at C; solving for the free ones then gives the answer to rounding, where M is nonsingular on them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.problem import Reduced
from attsvm.solvers import cone
from attsvm.solvers.least_distance import LeastDistance

Array = np.ndarray

METHOD = "interior point, soft margin"
MAX_ITERATIONS = 80
POLISHES = 10


def solve(rows: Reduced, slack: float, keep: Array, *, target: float) -> LeastDistance:
    """The soft-margin solution; `keep (K,)` marks independent rows, `target` is the relative gap to stop at."""
    method = _Box(rows.take(np.flatnonzero(keep)), slack)
    u, s, xi = method.start()
    best, best_gap, count = u, np.inf, 0
    for count in range(1, MAX_ITERATIONS + 1):  # noqa: B007 - reported
        try:
            u, s, xi = method.step(u, s, xi)
        except np.linalg.LinAlgError:
            break
        gap = method.gap(u)
        if gap < best_gap:
            best, best_gap = u, gap
        if best_gap <= target or gap > 10 * best_gap:
            break
    best = method.polish(best, s, xi, best_gap)
    full = np.zeros(len(keep))
    full[keep] = best
    return LeastDistance(rows.delta.T @ (full[:, None] * rows.z), full, count)


@dataclass(eq=False)
class _Box:
    rows: Reduced
    slack: float

    def __post_init__(self) -> None:
        self.gram = self.rows.gram()
        self.free, self.b = ~self.rows.equality, self.rows.target

    def start(self) -> tuple[Array, Array, Array]:
        u = np.where(self.free, min(0.5 * self.slack, 1.0 / max(float(self.gram.diagonal().max()), 1e-300)), 0.0)
        over = self.gram @ u - self.b
        s = np.where(self.free, np.maximum(over, 0.0) + 1.0, 0.0)
        return u, s, np.where(self.free, s - over, 0.0)

    def gap(self, u: Array) -> float:
        """Relative gap between `½‖V‖² + CΣξ` and the dual at u, both feasible."""
        margins = self.gram @ u
        short = np.maximum(self.b - margins, 0.0)[self.free].sum()
        primal = 0.5 * u @ margins + self.slack * short
        unequal = np.abs(margins[~self.free]).max(initial=0.0)
        return max(float((primal - self.b @ u + 0.5 * u @ margins) / primal), float(unequal))

    def step(self, u: Array, s: Array, xi: Array) -> tuple[Array, Array, Array]:
        """One predictor-corrector step."""
        free = self.free
        low, room = np.where(free, u, 1.0), np.where(free, self.slack - u, 1.0)
        factor = cone.factor(self.gram.copy(), s / low + xi / room)
        base = self.b - self.gram @ u

        def direction(below: Array, above: Array) -> tuple[Array, Array, Array]:
            a, e = np.where(free, below / low, 0.0), np.where(free, above / room, 0.0)
            du = cone.backsolve(factor, base + a - e)
            ds = np.where(free, a - s - s / low * du, 0.0)
            return du, ds, np.where(free, e - xi + xi / room * du, 0.0)

        def longest(du: Array, ds: Array, dxi: Array) -> float:
            pairs = ((low, du), (room, -du), (s, ds), (xi, dxi))
            return min(1.0, *(cone.row_step(value[free], change[free]) for value, change in pairs))

        zero, n = np.zeros_like(u), 2 * free.sum()
        du, ds, dxi = direction(zero, zero)
        ahead = longest(du, ds, dxi)
        mu = (s @ (free * u) + xi @ (free * room)) / n
        after = (s + ahead * ds) @ (free * (u + ahead * du)) + (xi + ahead * dxi) @ (free * (room - ahead * du))
        center = mu * (max(float(after), 0.0) / (n * mu)) ** 3
        du, ds, dxi = direction(center - ds * du, center + dxi * du)
        size = min(1.0, 0.995 * longest(du, ds, dxi))
        return u + size * du, s + size * ds, xi + size * dxi

    def polish(self, u: Array, s: Array, xi: Array, gap: float) -> Array:
        """Solve for the rows strictly inside the box, moving rows between the sets until their signs agree."""
        upper = self.free & (xi > self.slack - u)
        inside = ~self.free | ~(upper | (s > u))
        best = u
        for _ in range(POLISHES):
            fixed = np.where(upper, self.slack, 0.0)
            index = np.flatnonzero(inside)
            try:
                lower = cone.factor(self.gram[np.ix_(index, index)])
            except np.linalg.LinAlgError:
                break
            for _ in range(3 if len(index) else 0):
                fixed[index] += cone.backsolve(lower, (self.b - self.gram @ fixed)[index])
            over = self.gram @ fixed - self.b
            trial = np.where(self.free, np.clip(fixed, 0.0, self.slack), fixed)
            if (now := self.gap(trial)) < gap:
                best, gap = trial, now
            down, up = self.free & inside & (fixed < 0), self.free & inside & (fixed > self.slack)
            back = ~inside & np.where(upper, over > 1e-11, over < -1e-11)
            if not (down | up | back).any():
                break
            upper = (upper & ~back) | up
            inside = (inside & ~down & ~up) | back
        return best
