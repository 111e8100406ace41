"""Spectral norm: a primal-dual interior-point method in the spans of the data.

    min t        s.t.  S = [[t I, V], [Vᵀ, t I]] ⪰ 0,  δ_kᵀ V z_k - s_k = 1,  s >= 0
    max 1ᵀu      s.t.  X ⪰ 0,  tr X = 1,  2 X₁₂ = -G(u),  u >= 0

The cone and scaling of the nuclear norm with the roles of X and S exchanged, so that the Newton system is in `(t, V)`:

    H[ij, kl] = 2 (Ω₁₁[i,k] Ω₂₂[j,l] + Ω₁₂[i,l] Ω₁₂[k,j]) + Σ rows (u/s) a aᵀ,   a = vec(δ zᵀ).

It has `p q + 1` unknowns: for small spans. Equality rows are removed by a basis of their null space; a soft margin adds
`ξ >= 0` with multipliers `C - u`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attsvm.problem import Reduced
from attsvm.solvers import cone

Array = np.ndarray

METHOD = "interior point, spectral"
MAX_ITERATIONS = 60
PATIENCE = 3


@dataclass(frozen=True, eq=False)
class Spectral:
    """Best point found: `V (p, q)`, multipliers `u (K,)`, and its relative gap."""

    V: Float[Array, "p q"]
    u: Float[Array, " K"]
    gap: float
    iterations: int


@dataclass(eq=False)
class _Point:
    t: float
    V: Array
    X: Array
    u: Array
    s: Array
    xi: Array


def solve(rows: Reduced, V: Array, u: Array, *, target: float, slack: float | None = None) -> Spectral:
    """Minimise `‖V‖_op`, or `‖V‖_op + slack·Σξ`, from the Frobenius solution `(V, u)`; `target` is the relative gap."""
    method = _Method(rows, slack)
    point = method.start(V, u)
    best = method.measure(point, 0)
    for iteration in range(1, MAX_ITERATIONS + 1):
        try:
            method.step(point)
        except np.linalg.LinAlgError:
            break
        now = method.measure(point, iteration)
        if now.gap < best.gap:
            best = now
        if best.gap <= target or iteration > best.iterations + PATIENCE:
            break
    return best


class _Method:
    def __init__(self, rows: Reduced, slack: float | None) -> None:
        self.free = ~rows.equality
        self.features, self.target, self.slack = rows.features(), rows.target, slack
        self.a = self.features[self.free]
        self.b = rows.target[self.free]
        self.basis = _null_space(self.features[rows.equality])
        self.p, self.q = rows.spans

    def start(self, V: Array, u: Array) -> _Point:
        """Strictly feasible on both sides; a soft margin starts from zero, as its optimum may be."""
        if self.slack is not None:
            ones = np.ones_like(self.b)
            inner = ones * min(0.5 * self.slack, 0.5 / max(float(np.linalg.norm(self.pull(ones), "nuc")), 1e-300))
            zero = np.zeros((self.p, self.q))
            return _Point(1.0, zero, self.dual_matrix(inner), inner, ones.copy(), ones + self.b)
        V, t = 2.0 * V, 2.6 * float(np.linalg.norm(V, 2))
        inner = np.maximum(u[self.free], 0.0) + 0.1 * np.abs(u).mean()
        inner = inner * 0.5 / np.linalg.norm(self.pull(inner), "nuc")
        over = self.a @ V.ravel() - self.b
        return _Point(t, V, self.dual_matrix(inner), inner, np.maximum(over, 1e-2), np.zeros_like(over))

    def pull(self, u: Array) -> Array:
        """`G(u)` of the separation rows, less its part in the equality rows, which their multipliers cancel."""
        G = self.a.T @ u
        return (self.basis @ (self.basis.T @ G)).reshape(self.p, self.q)

    def dual_matrix(self, u: Array) -> Array:
        """`X ≻ 0` of trace one with `2 X₁₂ = -G(u)`, for `‖G(u)‖_* < 1`."""
        G = self.pull(u)
        U, sigma, Wt = np.linalg.svd(G, full_matrices=False)
        X = 0.5 * np.block([[(U * sigma) @ U.T, -G], [-G.T, (Wt.T * sigma) @ Wt]])
        return X + np.eye(len(X)) * (1.0 - np.trace(X)) / len(X)

    def measure(self, point: _Point, iteration: int) -> Spectral:
        """Scale both sides to exact feasibility and take the gap between them."""
        margins, size = self.a @ point.V.ravel(), float(np.linalg.norm(point.V, 2))
        pull = 2.0 * float(np.linalg.norm(point.X[: self.p, self.p :], "nuc"))
        if self.slack is None:
            reach, u = float(margins[self.b > 0].min()), point.u / pull
            primal = size / reach if reach > 0 else np.inf
        else:
            reach, u = 1.0, point.u / max(pull, 1.0)
            primal = size + self.slack * float(np.maximum(self.b - margins, 0.0).sum())
        full = self.all_multipliers(point) * (u.sum() / point.u.sum())
        return Spectral(point.V / reach, full, float(1.0 - u @ self.b / primal), iteration)

    def all_multipliers(self, point: _Point) -> Array:
        """u with the multipliers of the equality rows: what `-2 X₁₂` holds beyond the separation rows."""
        full = np.zeros(len(self.free))
        full[self.free] = point.u
        if not self.free.all():
            rest = -2.0 * point.X[: self.p, self.p :].ravel() - self.a.T @ point.u
            full[~self.free] = np.linalg.lstsq(self.features[~self.free].T, rest, rcond=None)[0]
        return full

    def step(self, point: _Point) -> None:
        """One predictor-corrector step in place."""
        frame = _Frame(self, point)
        zero = np.zeros_like(point.u)
        predictor = frame.direction(0.0, np.zeros_like(frame.P), zero, zero)
        sigma = (frame.complementarity(predictor) / frame.complementarity(None)) ** 3
        product = predictor.dX @ predictor.dS
        center = sigma * frame.complementarity(None) / frame.count
        move = frame.direction(
            center, 0.5 * (product + product.T), predictor.ds * predictor.du, -predictor.dxi * predictor.du
        )
        primal, dual = (min(1.0, cone.STEP_TO_BOUNDARY * step) for step in frame.steps(move))
        dX = frame.P @ move.dX @ frame.P.T
        point.X = point.X + 0.5 * dual * (dX + dX.T)
        point.u = point.u + dual * move.du
        point.t, point.V = point.t + primal * move.dt, point.V + primal * move.dV
        point.s, point.xi = point.s + primal * move.ds, point.xi + primal * move.dxi


@dataclass(frozen=True, eq=False)
class _Direction:
    dX: Array
    dS: Array
    du: Array
    ds: Array
    dxi: Array
    dt: float
    dV: Array


class _Frame:
    """One iteration's scaled space and factored Newton system."""

    def __init__(self, method: _Method, point: _Point) -> None:
        self.method, self.point = method, point
        p, N = method.p, method.p + method.q
        self.soft = method.slack is not None
        self.room = (method.slack or 0.0) - point.u if self.soft else np.ones_like(point.u)
        self.S = _stack(point.t, point.V)
        self.P, self.lam = cone.scaling(point.X, self.S)
        self.count = N + len(point.u) * (1 + self.soft)
        self.weight = 1.0 / (point.s / point.u + point.xi / self.room)
        self.factor = cone.factor(self._system(self.P @ self.P.T, p))

    def _system(self, omega: Array, p: int) -> Array:
        method = self.method
        o11, o12, o22 = omega[:p, :p], omega[:p, p:], omega[p:, p:]
        curve = 2.0 * (np.einsum("ik,jl->ijkl", o11, o22) + np.einsum("il,kj->ijkl", o12, o12))
        curve = curve.reshape(p * method.q, -1) + method.a.T @ (self.weight[:, None] * method.a)
        mixed = method.basis.T @ (2.0 * (omega @ omega)[:p, p:].ravel())
        inner = method.basis.T @ curve @ method.basis
        return np.block([[np.array([[np.sum(omega * omega)]]), mixed[None]], [mixed[:, None], inner]])

    def direction(self, center: float, second: Array, below: Array, above: Array) -> _Direction:
        """Newton direction to complementarity `center`, less second-order terms of the cone, `su` and `ξ(C-u)`."""
        method, point, p = self.method, self.point, self.method.p
        R = cone.centred(self.lam, center, second)
        Y = point.X + self.P @ R @ self.P.T
        low = (center - below) / point.u - point.s
        high = (center - above) / self.room - point.xi if self.soft else np.zeros_like(low)
        gap = method.b - method.a @ point.V.ravel() + point.s - point.xi + low - high
        right = method.basis.T @ (2.0 * Y[:p, p:].ravel() + method.a.T @ (point.u + self.weight * gap))
        xi = cone.backsolve(self.factor, np.append(np.trace(Y) - 1.0, right))
        dt, dV = float(xi[0]), (method.basis @ xi[1:]).reshape(p, -1)
        du = self.weight * (gap - method.a @ dV.ravel())
        dS = self.P.T @ _stack(dt, dV) @ self.P
        ds = low - point.s / point.u * du
        dxi = high + point.xi / self.room * du
        return _Direction(R - dS, dS, du, ds, dxi, dt, dV)

    def steps(self, move: _Direction) -> tuple[float, float]:
        """Longest steps of (t, V) and of (X, u) inside the cones."""
        point = self.point
        s, u = cone.row_step(point.s, move.ds), cone.row_step(point.u, move.du)
        xi = cone.row_step(point.xi, move.dxi) if self.soft else s
        room = cone.row_step(self.room, -move.du) if self.soft else u
        lowest_s, lowest_x = cone.spectrum(self.lam, move.dS)[0], cone.spectrum(self.lam, move.dX)[0]
        return min(cone.matrix_step(lowest_s), s, xi), min(cone.matrix_step(lowest_x), u, room)

    def complementarity(self, move: _Direction | None) -> float:
        """`<X, S> + sᵀu + ξᵀ(C - u)` now, or after the longest steps along a direction."""
        point = self.point
        if move is None:
            return float(self.lam @ self.lam + point.s @ point.u + point.xi @ self.room)
        primal, dual = (min(1.0, step) for step in self.steps(move))
        lam = np.diag(self.lam)
        total = np.sum((lam + dual * move.dX) * (lam + primal * move.dS))
        total += (point.s + primal * move.ds) @ (point.u + dual * move.du)
        total += (point.xi + primal * move.dxi) @ (self.room - dual * move.du)
        return max(float(total), 0.0)


def _stack(t: float, V: Array) -> Array:
    p, q = V.shape
    S = t * np.eye(p + q)
    S[:p, p:], S[p:, :p] = V, V.T
    return S


def _null_space(rows: Array) -> Array:
    """Orthonormal basis of the vectors that all `rows` annihilate, `(d, d - rank)`."""
    d = rows.shape[1]
    if not len(rows):
        return np.eye(d)
    _, sigma, Vt = np.linalg.svd(rows)
    rank = int(np.sum(sigma > max(rows.shape) * np.finfo(float).eps * sigma[0]))
    return Vt[rank:].T
