"""Frobenius norm, exactly: find which rows are tight, then solve for them.

The dual `max 1ᵀu - ½ uᵀMu, u >= 0` with the Gram matrix `M = (ΔΔᵀ) ∘ (ZZᵀ)` is a linear complementarity problem. Block
pivoting (exchange every row of the wrong sign at once) solves it in a handful of Cholesky factorisations when M is
nonsingular. Where it cycles, or M is singular, least-distance programming (Lawson and Hanson, *Solving Least Squares
Problems*, chapter 23) decides: `min ‖[C; hᵀ] u - e‖, u >= 0` gives the tight rows from its solution, or, where the
residual is zero, the Farkas vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg as sl
from jaxtyping import Bool, Float
from scipy.optimize import nnls

from attsvm.problem import Reduced

Array = np.ndarray

METHOD = "least distance"
NNLS_ROWS = 150  # below, non-negative least squares is quicker than block pivoting from scratch
SIGN_TOLERANCE = 1e-11
WELL_CONDITIONED = 1e-4  # smallest over largest Cholesky pivot at which the squared condition of M does no harm
MAX_PIVOTS = 40


@dataclass(frozen=True, eq=False)
class LeastDistance:
    """`V (p, q)` and multipliers `u (K,)`; or V None and the Farkas vector as `u`."""

    V: Float[Array, "p q"] | None
    u: Float[Array, " K"]
    iterations: int


@dataclass(frozen=True, eq=False)
class _UnitRows:
    """Rows scaled to norm one, `a_k = δ_k z_kᵀ / size_k` with targets divided by `size_k`: M has a unit diagonal."""

    delta: Float[Array, "K p"]
    z: Float[Array, "K q"]
    size: Float[Array, " K"]
    equality: Bool[Array, " K"]
    target: Float[Array, " K"]

    @cached_property
    def gram(self) -> Array:
        return (self.delta @ self.delta.T) * (self.z @ self.z.T)

    @property
    def spans(self) -> int:
        return self.delta.shape[1] * self.z.shape[1]

    def take(self, index: Array) -> _UnitRows:
        return _UnitRows(*(a[index] for a in (self.delta, self.z, self.size, self.equality, self.target)))

    def features(self, index: Array) -> Array:
        return np.einsum("kp,kq->kpq", self.delta[index], self.z[index]).reshape(len(index), self.spans)

    def weight(self, u: Array) -> Array:
        return self.delta.T @ (u[:, None] * self.z)

    def margins(self, V: Array) -> Array:
        return np.einsum("kp,kp->k", self.delta, self.z @ V.T)


def solve(rows: Reduced) -> LeastDistance:
    """Least Frobenius norm V with `δ_kᵀ V z_k >= target_k` (`= 0` on equality rows), all in the reduced spans."""
    unit = _normalise(rows)
    void = (rows.target > 0) & ~(unit.delta.any(1) & unit.z.any(1))
    if void.any():
        return LeastDistance(None, np.where(void, 1.0, 0.0), 0)
    fixed = _independent(unit)
    count = 0
    if NNLS_ROWS < len(unit.size) <= unit.spans:
        tight, count = _pivot(unit, fixed, ~rows.equality | fixed)
        if tight is not None:
            return _result(unit, *tight, count)
    start, separable = _programming(unit)
    if not separable:
        return LeastDistance(None, start / unit.size, count + 1)
    tight, more = _pivot(unit, fixed, fixed | (~rows.equality & (start > 0)))
    u, V = (start, unit.weight(start)) if tight is None else tight
    return _result(unit, u, V, count + 1 + more)


def independent_rows(rows: Reduced) -> Bool[Array, " K"]:
    """All separation rows, and a maximal independent set of equality rows."""
    return ~rows.equality | _independent(_normalise(rows))


def _normalise(rows: Reduced) -> _UnitRows:
    delta_norm, z_norm = np.linalg.norm(rows.delta, axis=1), np.linalg.norm(rows.z, axis=1)
    delta = rows.delta / np.where(delta_norm > 0, delta_norm, 1.0)[:, None]
    z = rows.z / np.where(z_norm > 0, z_norm, 1.0)[:, None]
    size = np.where(delta_norm * z_norm > 0, delta_norm * z_norm, 1.0)
    return _UnitRows(delta, z, size, rows.equality, rows.target / size)


def _result(unit: _UnitRows, u: Array, V: Array, count: int) -> LeastDistance:
    return LeastDistance(V, u / unit.size, count)


def _pivot(unit: _UnitRows, fixed: Array, active: Array) -> tuple[tuple[Array, Array] | None, int]:
    """Block pivoting from an active set; None where it cycles or meets a singular block."""
    free, size = ~unit.equality, unit.size
    fewest, patience = len(size) + 1, 3
    for count in range(1, MAX_PIVOTS + 1):
        tight = _tight(unit, np.flatnonzero(active))
        if tight is None:
            return None, count
        u, V = tight
        slack = (unit.margins(V) - unit.target) * size
        negative = active & free & (u < -SIGN_TOLERANCE * np.abs(u).max())
        wrong = negative | (~active & free & (slack < -SIGN_TOLERANCE))
        if not wrong.any():
            return (np.where(free, np.maximum(u, 0.0), u), V), count
        patience = 3 if wrong.sum() < fewest else patience - 1
        fewest = min(fewest, int(wrong.sum()))
        if patience < 0:
            return None, count
        active = (active ^ wrong) | fixed
    return None, MAX_PIVOTS


def _tight(unit: _UnitRows, index: Array) -> tuple[Array, Array] | None:
    """`(u, V)` with exactly these rows tight.

    The refinement adds to V itself: where multipliers are large and cancel, V summed afresh from u would carry their
    rounding.
    """
    part = unit.take(index)
    upper = _triangle(part)
    if upper is None:
        return None
    u, V = np.zeros(len(index)), np.zeros((unit.delta.shape[1], unit.z.shape[1]))
    for _ in range(3):
        step = sl.cho_solve((upper, False), part.target - part.margins(V), check_finite=False)
        u, V = u + step, V + part.weight(step)
    full = np.zeros(len(unit.size))
    full[index] = u
    return (full, V) if np.isfinite(u).all() else None


def _triangle(unit: _UnitRows) -> Array | None:
    """Upper R with `RᵀR = M`: by Cholesky, by QR where M is ill-conditioned, None where singular."""
    count = len(unit.size)
    try:
        upper = np.linalg.cholesky(unit.gram).T
        if _pivot_ratio(upper) > WELL_CONDITIONED:
            return upper
    except np.linalg.LinAlgError:
        pass
    if count > unit.spans:
        return None
    upper = np.asarray(np.linalg.qr(unit.features(np.arange(count)).T, mode="r"))
    return upper if _pivot_ratio(upper) > count * np.finfo(float).eps else None


def _pivot_ratio(upper: Array) -> float:
    pivots = np.abs(upper.diagonal())
    return float(pivots.min() / pivots.max()) if len(pivots) else 1.0


def _independent(unit: _UnitRows) -> Bool[Array, " K"]:
    """A maximal independent set of equality rows; the others follow from it."""
    keep = unit.equality & unit.delta.any(1) & unit.z.any(1)
    index = np.flatnonzero(keep)
    if len(index):
        factor: Any = sl.qr(unit.features(index).T, mode="r", pivoting=True)
        pivots, order = np.abs(np.diag(factor[0])), factor[1]
        rank = int(np.sum(pivots > max(unit.spans, len(index)) * np.finfo(float).eps * pivots[0]))
        keep[index[order[rank:]]] = False
    return keep


def _programming(unit: _UnitRows) -> tuple[Array, bool]:
    """Least-distance programming: `(u, separable)`; u is the multipliers, or the Farkas vector."""
    free, fixed = np.flatnonzero(~unit.equality), np.flatnonzero(unit.equality)
    u = np.zeros(len(unit.size))
    u[free], separable = _nnls(_columns(unit, free, fixed), unit.target[free])
    if len(fixed):
        u[fixed] = -np.linalg.lstsq(unit.features(fixed).T, unit.features(free).T @ u[free], rcond=None)[0]
    return u, separable


def _columns(unit: _UnitRows, free: Array, fixed: Array) -> Array:
    """A factor `C (s, free)`: `CᵀC` is the Gram matrix of the separation rows less their part in the equality rows."""
    if not len(fixed):
        upper = _triangle(unit.take(free)) if len(free) <= unit.spans else None
        return unit.features(free).T if upper is None else upper
    features = unit.features(free)
    equal = unit.features(fixed)
    _, sigma, basis = np.linalg.svd(equal, full_matrices=False)
    basis = basis[sigma > max(equal.shape) * np.finfo(float).eps * sigma[0]]
    for _ in range(2):  # the second pass removes what rounding left of the first
        features = features - (features @ basis.T) @ basis
    return features.T


def _nnls(columns: Array, target: Array) -> tuple[Array, bool]:
    """Multipliers of `min ½‖x‖²  s.t.  Cᵀx >= h`, or its Farkas vector.

    The target is scaled until `‖x‖` is of order one, where the least squares' stopping rule resolves the rows best.
    """
    scale, u, rest = 1.0 / target.max(), target, 1.0
    for _ in range(4):
        matrix = np.vstack([columns, scale * target])
        u, _ = nnls(matrix, np.append(np.zeros(len(columns)), 1.0), maxiter=30 * len(target))
        pull, rest = float(np.linalg.norm(columns @ u)), 1.0 - float(scale * target @ u)
        if pull <= 1e-12 * u.sum() or rest <= 0:
            return u, False
        length = pull / rest
        if 1e-2 < length < 1e2:
            break
        scale /= length
    return u / (rest * scale), True
