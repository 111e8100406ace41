"""Nuclear norm: a feasible-start primal-dual interior-point method in the spans of the data.

    min ½ tr X   s.t.  X = [[X₁, V], [Vᵀ, X₂]] ⪰ 0,  δ_kᵀ V z_k - s_k = 1,  s >= 0
    max 1ᵀu      s.t.  S = ½ [[I, -G(u)], [-G(u)ᵀ, I]] ⪰ 0,  u >= 0

With the Nesterov-Todd scaling Ω (ΩSΩ = X) a step solves `(H + diag(s/u)) du = r` where, constraints being rank one,

    H = ½ [(ΔΩ₁₁Δᵀ) ∘ (ZΩ₂₂Zᵀ) + (ΔΩ₁₂Zᵀ) ∘ (ΔΩ₁₂Zᵀ)ᵀ]

so that no `p q` features appear. Predictor and corrector follow Mehrotra, in the scaled space where X and S are one
diagonal matrix Λ (Todd, Toh, Tütüncü, SIAM J. Optim. 8, 1998).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attsvm.problem import Reduced
from attsvm.solvers import cone

Array = np.ndarray


METHOD = "interior point"
MAX_ITERATIONS = 60
# Exponent of Mehrotra's centring, and how much bolder than STEP_TO_BOUNDARY a good direction is followed: centring more
# allows longer steps, a fifth fewer in all; the careful pace loses fewer digits where the data are badly conditioned.
QUICK, CAREFUL = (1.5, 0.08), (3.0, 0.0)
GOOD = 1e-9  # gap of the quick pace that needs no careful one
PATIENCE = 2  # iterations without a better measured gap: rounding has won
WORTH_MEASURING = 1e-6  # gap of the iterates above which an exact measurement is not yet of use
REFINEMENTS = 7
ENOUGH = 1e-12  # primal residual below which refining is not worth its time; margins are of order one


@dataclass(frozen=True, eq=False)
class InteriorPoint:
    """Best point found: `V (p, q)`, multipliers `u (K,)` with `‖G(u)‖_op <= 1`, and its gap.

    The gap is relative, or the violation of the equalities where that is larger.
    """

    V: Float[Array, "p q"]
    u: Float[Array, " K"]
    gap: float
    iterations: int


@dataclass
class _Point:
    X: Array
    u: Array
    s: Array
    xi: Array  # slack of the soft margin, zero where the margin is hard


def solve(
    rows: Reduced, V: Array, u: Array, keep: Array, *, target: float, slack: float | None = None
) -> InteriorPoint:
    """Minimise `‖V‖_*`, or `‖V‖_* + slack·Σξ` with `δ_kᵀVz_k >= 1 - ξ_k`, from the Frobenius solution `(V, u)`.

    `keep (K,)` marks independent rows; `target` is the relative gap to stop at.
    """
    quick = _run(_Method(rows, keep, slack, *QUICK), V, u[keep], target)
    if quick.gap <= GOOD:
        return quick
    careful = _run(_Method(rows, keep, slack, *CAREFUL), V, u[keep], target)
    return min(quick, careful, key=lambda point: point.gap)


def _run(ip: _Method, V: Array, u: Array, target: float) -> InteriorPoint:
    point = ip.start(V, u)
    best = ip.measure(point, 0)
    for iteration in range(1, MAX_ITERATIONS + 1):
        try:
            gap = ip.step(point)
        except np.linalg.LinAlgError:
            break
        if gap > WORTH_MEASURING:
            continue
        now = ip.measure(point, iteration)
        if now.gap < best.gap:
            best = now
        if best.gap <= target or iteration > best.iterations + PATIENCE:
            break
    return best


class _Method:
    def __init__(self, rows: Reduced, keep: Array, slack: float | None, centering: float, bolder: float) -> None:
        self.centering, self.bolder = centering, bolder
        self.keep, self.total = np.flatnonzero(keep), len(rows.pair)
        self.delta, self.z = rows.delta[self.keep], rows.z[self.keep]
        self.target, self.free = rows.target[self.keep], ~rows.equality[self.keep]
        self.p, self.q = rows.delta.shape[1], rows.queries.shape[1]
        self.eye = np.eye(self.p + self.q)
        self.slack, self.soft = slack, self.free & (slack is not None)
        self.barred = slice(None) if self.free.all() else np.flatnonzero(self.free)  # rows with s, u >= 0

    def combine(self, u: Array) -> Array:
        return self.delta.T @ (u[:, None] * self.z)

    def margins(self, V: Array) -> Array:
        return np.einsum("kp,kp->k", self.delta, self.z @ V.T)

    def slack_matrix(self, u: Array) -> Array:
        S, G = 0.5 * self.eye, 0.5 * self.combine(u)
        S[: self.p, self.p :], S[self.p :, : self.p] = -G, -G.T
        return S

    def start(self, V: Array, u: Array) -> _Point:
        """Strictly feasible on both sides: twice the Frobenius solution, its multipliers shrunk into the unit ball.

        A soft margin is feasible anywhere, and its optimum may be zero: it starts there, with equal multipliers.
        """
        if self.slack is not None:
            return self._soft_start(self.slack)
        V = 2.0 * V
        U, sigma, Wt = np.linalg.svd(V, full_matrices=False)
        X = np.zeros_like(self.eye)
        X[: self.p, : self.p] = (U * sigma) @ U.T
        X[self.p :, self.p :] = (Wt.T * sigma) @ Wt
        X[: self.p, self.p :], X[self.p :, : self.p] = V, V.T
        X += 0.5 * sigma.mean() * self.eye
        u = np.where(self.free, u + 0.1 * u[self.free].mean(), u)
        u = 0.7 * u / np.linalg.norm(self.combine(u), 2)
        over = self.margins(V) - self.target
        return _Point(X, u, np.where(self.free, np.maximum(over, 1e-2), 0.0), np.zeros_like(u))

    def _soft_start(self, slack: float) -> _Point:
        ones = self.free.astype(float)
        u = ones * min(0.5 * slack, 0.5 / float(np.linalg.norm(self.combine(ones))))
        return _Point(self.eye.copy(), u, ones.copy(), ones + self.target)

    def measure(self, point: _Point, iteration: int) -> InteriorPoint:
        """Scale both sides to exact feasibility and take the gap between them."""
        V = point.X[: self.p, self.p :]
        margins = self.margins(V)
        unequal = float(np.abs(margins[~self.free]).max(initial=0.0))
        pull, size = np.linalg.norm(self.combine(point.u), 2), np.linalg.norm(V, "nuc")
        if self.slack is None:
            reach, u = float(margins[self.target > 0].min()), point.u / pull
            primal = size / reach if reach > 0 else np.inf
        else:
            reach, u = 1.0, point.u / max(pull, 1.0)
            primal = size + self.slack * np.maximum(self.target - margins, 0.0)[self.free].sum()
        full = np.zeros(self.total)
        full[self.keep] = u
        gap = max(float(1.0 - u @ self.target / primal), unequal / reach)
        return InteriorPoint(V / reach, full, gap, iteration)

    def step(self, point: _Point) -> float:
        """One predictor-corrector step in place; returns the relative gap it started from."""
        frame = _Frame(self, point)
        n = len(frame.lam) + self.free.sum() + self.soft.sum()
        mu = (frame.lam @ frame.lam + point.s @ (self.free * point.u) + point.xi @ frame.room) / n
        predictor = frame.predictor()
        sigma = (frame.product_after(predictor, *frame.predictor_steps(predictor)) / (n * mu)) ** self.centering
        product = predictor.dX @ predictor.dS
        corrector = frame.corrector(sigma * mu, 0.5 * (product + product.T), predictor)
        longest = frame.steps(corrector)
        share = cone.STEP_TO_BOUNDARY + self.bolder * min(1.0, *longest)
        primal, dual = (min(1.0, share * step) for step in longest)
        dX = frame.P @ corrector.dX @ frame.P.T
        point.X = point.X + 0.5 * primal * (dX + dX.T)
        point.s = point.s + primal * corrector.ds
        point.xi = point.xi + primal * corrector.dxi
        point.u = point.u + dual * corrector.du
        return float(n * mu / (np.trace(point.X) + 2.0 * (self.slack or 0.0) * point.xi.sum()))

    def schur(self, omega: Array) -> Array:
        p = self.p
        cross = self.delta @ omega[:p, p:] @ self.z.T
        keys = self.delta @ omega[:p, :p] @ self.delta.T
        return 0.5 * (keys * (self.z @ omega[p:, p:] @ self.z.T) + cross * cross.T)


@dataclass(frozen=True, eq=False)
class _Direction:
    dX: Array
    dS: Array
    du: Array
    ds: Array
    dxi: Array


class _Frame:
    """One iteration's scaled space: `PᵀSP = P⁻¹XP⁻ᵀ = diag(λ)`, and the factored Schur complement."""

    def __init__(self, method: _Method, point: _Point) -> None:
        self.method, self.point = method, point
        self.P, self.lam = cone.scaling(point.X, method.slack_matrix(point.u))
        self.u = np.where(method.free, point.u, 1.0)
        self.room = np.where(method.soft, (method.slack or 0.0) - point.u, 1.0)  # the dual's distance to its box
        self.factor = cone.factor(method.schur(self.P @ self.P.T), point.s / self.u + point.xi / self.room)

    def predictor(self) -> _Direction:
        """Newton direction to `XS = 0`, `su = 0`: the scaled right-hand side is -Λ, which cancels X."""
        zero = np.zeros_like(self.u)
        return self._direction(np.diag(-self.lam), (zero, zero), self.method.target)

    def corrector(self, center: float, matrix_term: Array, before: _Direction) -> _Direction:
        """Newton direction to `XS = center·I`, `su = ξ(C - u) = center`, less the predictor's second-order terms."""
        method, p = self.method, self.method.p
        R = cone.centred(self.lam, center, matrix_term)
        below = (center * method.free - before.ds * before.du) / self.u
        above = (center * method.soft + before.dxi * before.du) / self.room
        V = self.point.X[:p, p:] + self.P[:p] @ R @ self.P[p:].T
        residual = method.target - method.margins(V) + below - above
        return self._refined(R, (below, above), self._direction(R, (below, above), residual))

    def _direction(self, R: Array, pull: tuple[Array, Array], residual: Array) -> _Direction:
        du = cone.backsolve(self.factor, residual)
        return self._move(R, self._scaled(du), du, pull)

    def _move(self, R: Array, dS: Array, du: Array, pull: tuple[Array, Array]) -> _Direction:
        # s, ξ and their pulls are zero where a row has none, and so are their steps
        point, (below, above) = self.point, pull
        ds = below - point.s * (1.0 + du / self.u)
        dxi = above - point.xi * (1.0 - du / self.room) if self.method.slack is not None else above
        return _Direction(R - dS, dS, du, ds, dxi)

    def _refined(self, R: Array, pull: tuple[Array, Array], move: _Direction) -> _Direction:
        """The same direction with the primal residual it leaves taken down to rounding.

        Corrections add to dS itself: `PᵀG(du)P` formed afresh from du would carry the rounding of du times `‖Ω‖²` into
        X, which near the optimum is more than the residual to be removed. Where M is singular they may diverge: stop.
        """
        smallest = np.inf
        du, dS, best = move.du, move.dS, move
        for _ in range(REFINEMENTS):
            now = self._move(R, dS, du, pull)
            rest = self._rest(now)
            size = float(np.abs(rest).max())
            if not size < smallest:
                break
            best, smallest = now, size
            if size <= ENOUGH:
                break
            more = cone.backsolve(self.factor, rest)
            du, dS = du + more, dS + self._scaled(more)
        return best

    def _scaled(self, du: Array) -> Array:
        """`PᵀdSP` for these multipliers."""
        p = self.method.p
        half = -0.5 * (self.P[:p].T @ self.method.combine(du)) @ self.P[p:]
        return half + half.T

    def _rest(self, move: _Direction) -> Array:
        """What a full step would leave of the primal residual."""
        method, point, p = self.method, self.point, self.method.p
        V = point.X[:p, p:] + self.P[:p] @ move.dX @ self.P[p:].T
        return method.target + (point.s + move.ds) - (point.xi + move.dxi) - method.margins(V)

    def predictor_steps(self, move: _Direction) -> tuple[float, float]:
        """`steps` of the predictor, whose scaled dX is -Λ - dS: one spectrum gives both."""
        spectrum = cone.spectrum(self.lam, move.dS)
        return self._steps(move, -1.0 - spectrum[-1], spectrum[0])

    def steps(self, move: _Direction) -> tuple[float, float]:
        """Longest primal and dual steps that stay in the cones."""
        return self._steps(move, cone.spectrum(self.lam, move.dX)[0], cone.spectrum(self.lam, move.dS)[0])

    def _steps(self, move: _Direction, lowest_x: float, lowest_s: float) -> tuple[float, float]:
        free, soft, point = self.method.barred, self.method.soft, self.point
        primal = min(cone.matrix_step(lowest_x), cone.row_step(point.s[free], move.ds[free]))
        dual = min(cone.matrix_step(lowest_s), cone.row_step(point.u[free], move.du[free]))
        if self.method.slack is not None:
            primal = min(primal, cone.row_step(point.xi[soft], move.dxi[soft]))
            dual = min(dual, cone.row_step(self.room[soft], -move.du[soft]))
        return primal, dual

    def product_after(self, move: _Direction, primal: float, dual: float) -> float:
        """`<X, S> + sᵀu + ξᵀ(C - u)` after these steps."""
        point, lam = self.point, np.diag(self.lam)
        primal, dual = min(1.0, primal), min(1.0, dual)
        total = np.vdot(lam + primal * move.dX, lam + dual * move.dS)
        total += (point.s + primal * move.ds) @ (point.u + dual * move.du)
        if self.method.slack is not None:
            total += (point.xi + primal * move.dxi) @ (self.room - dual * move.du)
        return max(float(total), 0.0)
