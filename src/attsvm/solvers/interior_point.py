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
from scipy.linalg import get_lapack_funcs

from attsvm.problem import Reduced

Array = np.ndarray

# straight to LAPACK: on matrices of this size the checks of the usual wrappers cost as much as the work
potrf, potrs = get_lapack_funcs(("potrf", "potrs"), dtype=np.float64)

METHOD = "interior point"
MAX_ITERATIONS = 60
PATIENCE = 2  # iterations without a better measured gap: rounding has won
WORTH_MEASURING = 1e-6  # gap of the iterates above which an exact measurement is not yet of use
REFINEMENTS = 7
ENOUGH = 1e-12  # primal residual below which refining is not worth its time; margins are of order one
STEP_TO_BOUNDARY = 0.9  # closer, the iterates hug the boundary and lose digits


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


def solve(rows: Reduced, V: Array, u: Array, keep: Array, *, target: float) -> InteriorPoint:
    """Minimise `‖V‖_*` from the Frobenius solution `(V, u)`.

    `keep (K,)` marks independent rows; `target` is the relative gap to stop at.
    """
    ip = _Method(rows, keep)
    point = ip.start(V, u[keep])
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
    def __init__(self, rows: Reduced, keep: Array) -> None:
        self.keep, self.total = np.flatnonzero(keep), len(rows.pair)
        self.delta, self.z = rows.delta[self.keep], rows.z[self.keep]
        self.target, self.free = rows.target[self.keep], ~rows.equality[self.keep]
        self.p, self.q = rows.delta.shape[1], rows.queries.shape[1]
        self.eye = np.eye(self.p + self.q)

    def combine(self, u: Array) -> Array:
        return self.delta.T @ (u[:, None] * self.z)

    def margins(self, V: Array) -> Array:
        return np.einsum("kp,kp->k", self.delta, self.z @ V.T)

    def slack_matrix(self, u: Array) -> Array:
        S, G = 0.5 * self.eye, 0.5 * self.combine(u)
        S[: self.p, self.p :], S[self.p :, : self.p] = -G, -G.T
        return S

    def start(self, V: Array, u: Array) -> _Point:
        """Strictly feasible on both sides: twice the Frobenius solution, its multipliers shrunk into the unit ball."""
        V = 2.0 * V
        U, sigma, Wt = np.linalg.svd(V, full_matrices=False)
        X = np.zeros_like(self.eye)
        X[: self.p, : self.p] = (U * sigma) @ U.T
        X[self.p :, self.p :] = (Wt.T * sigma) @ Wt
        X[: self.p, self.p :], X[self.p :, : self.p] = V, V.T
        X += 0.5 * sigma.mean() * self.eye
        u = np.where(self.free, u + 0.1 * u[self.free].mean(), u)
        u = 0.7 * u / np.linalg.norm(self.combine(u), 2)
        return _Point(X, u, self.margins(X[: self.p, self.p :]) - self.target)

    def measure(self, point: _Point, iteration: int) -> InteriorPoint:
        """Scale both sides to exact feasibility and take the gap between them."""
        V = point.X[: self.p, self.p :]
        margins = self.margins(V)
        reach, unequal = float(margins[self.free].min()), float(np.abs(margins[~self.free]).max(initial=0.0))
        pull = np.linalg.norm(self.combine(point.u), 2)
        u = point.u / pull
        primal = np.linalg.norm(V, "nuc") / reach if reach > 0 else np.inf
        full = np.zeros(self.total)
        full[self.keep] = u
        gap = max(float(1.0 - u[self.free].sum() / primal), unequal / reach)
        return InteriorPoint(V / reach, full, gap, iteration)

    def step(self, point: _Point) -> float:
        """One predictor-corrector step in place; returns the relative gap it started from."""
        frame = _Frame(self, point)
        n = len(frame.lam) + self.free.sum()
        mu = (frame.lam @ frame.lam + point.s[self.free] @ point.u[self.free]) / n
        predictor = frame.predictor()
        sigma = (frame.product_after(predictor, *frame.predictor_steps(predictor)) / (n * mu)) ** 3
        product = predictor.dX @ predictor.dS
        corrector = frame.corrector(sigma * mu, 0.5 * (product + product.T), predictor.ds * predictor.du)
        primal, dual = (min(1.0, STEP_TO_BOUNDARY * step) for step in frame.steps(corrector))
        dX = frame.P @ corrector.dX @ frame.P.T
        point.X = point.X + 0.5 * primal * (dX + dX.T)
        point.s = point.s + primal * corrector.ds
        point.u = point.u + dual * corrector.du
        return float(n * mu / np.trace(point.X))

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


class _Frame:
    """One iteration's scaled space: `PᵀSP = P⁻¹XP⁻ᵀ = diag(λ)`, and the factored Schur complement."""

    def __init__(self, method: _Method, point: _Point) -> None:
        self.method, self.point = method, point
        lower_x = np.linalg.cholesky(point.X)
        lower_s = np.linalg.cholesky(method.slack_matrix(point.u))
        _, self.lam, Vt = np.linalg.svd(lower_s.T @ lower_x)
        self.P = lower_x @ (Vt.T / np.sqrt(self.lam))
        self.u = np.where(method.free, point.u, 1.0)
        self.factor = _factor(method.schur(self.P @ self.P.T), np.where(method.free, point.s / self.u, 0.0))

    def predictor(self) -> _Direction:
        """Newton direction to `XS = 0`, `su = 0`: the scaled right-hand side is -Λ, which cancels X."""
        return self._direction(np.diag(-self.lam), np.zeros_like(self.u), self.method.target)

    def corrector(self, center: float, matrix_term: Array, row_term: Array) -> _Direction:
        """Newton direction to `XS = center·I`, `su = center`, less the second-order terms given."""
        method, p = self.method, self.method.p
        R = center * np.eye(len(self.lam)) - np.diag(self.lam**2) - matrix_term
        R = 2.0 * R / (self.lam[:, None] + self.lam)
        pull = np.where(method.free, (center - row_term) / self.u, 0.0)
        V = self.point.X[:p, p:] + self.P[:p] @ R @ self.P[p:].T
        return self._refined(R, pull, self._direction(R, pull, method.target - method.margins(V) + pull))

    def _direction(self, R: Array, pull: Array, residual: Array) -> _Direction:
        du = potrs(self.factor, residual, lower=1)[0]
        dS = self._scaled(du)
        return _Direction(R - dS, dS, du, self._slack_step(pull, du))

    def _refined(self, R: Array, pull: Array, move: _Direction) -> _Direction:
        """The same direction with the primal residual it leaves taken down to rounding.

        Corrections add to dS itself: `PᵀG(du)P` formed afresh from du would carry the rounding of du times `‖Ω‖²` into
        X, which near the optimum is more than the residual to be removed. Where M is singular they may diverge: stop.
        """
        smallest = np.inf
        du, dS, best = move.du, move.dS, move
        for _ in range(REFINEMENTS):
            now = _Direction(R - dS, dS, du, self._slack_step(pull, du))
            rest = self._rest(now)
            size = float(np.abs(rest).max())
            if not size < smallest:
                break
            best, smallest = now, size
            if size <= ENOUGH:
                break
            more = potrs(self.factor, rest, lower=1)[0]
            du, dS = du + more, dS + self._scaled(more)
        return best

    def _scaled(self, du: Array) -> Array:
        """`PᵀdSP` for these multipliers."""
        p = self.method.p
        half = -0.5 * (self.P[:p].T @ self.method.combine(du)) @ self.P[p:]
        return half + half.T

    def _slack_step(self, pull: Array, du: Array) -> Array:
        return np.where(self.method.free, pull - self.point.s - self.point.s / self.u * du, 0.0)

    def _rest(self, move: _Direction) -> Array:
        """What a full step would leave of the primal residual."""
        method, point, p = self.method, self.point, self.method.p
        V = point.X[:p, p:] + self.P[:p] @ move.dX @ self.P[p:].T
        return method.target + np.where(method.free, point.s + move.ds, 0.0) - method.margins(V)

    def predictor_steps(self, move: _Direction) -> tuple[float, float]:
        """`steps` of the predictor, whose scaled dX is -Λ - dS: one spectrum gives both."""
        spectrum = self._spectrum(move.dS)
        return self._steps(move, -1.0 - spectrum[-1], spectrum[0])

    def steps(self, move: _Direction) -> tuple[float, float]:
        """Longest primal and dual steps that stay in the cones."""
        return self._steps(move, self._spectrum(move.dX)[0], self._spectrum(move.dS)[0])

    def _steps(self, move: _Direction, lowest_x: float, lowest_s: float) -> tuple[float, float]:
        free, point = self.method.free, self.point
        return (
            min(_matrix_step(lowest_x), _row_step(point.s[free], move.ds[free])),
            min(_matrix_step(lowest_s), _row_step(point.u[free], move.du[free])),
        )

    def _spectrum(self, direction: Array) -> Array:
        root = np.sqrt(self.lam)
        return np.linalg.eigvalsh(direction / root[:, None] / root)

    def product_after(self, move: _Direction, primal: float, dual: float) -> float:
        """`<X, S> + sᵀu` after these steps."""
        free, point, lam = self.method.free, self.point, np.diag(self.lam)
        primal, dual = min(1.0, primal), min(1.0, dual)
        matrices = np.sum((lam + primal * move.dX) * (lam + dual * move.dS))
        rows = (point.s + primal * move.ds)[free] @ (point.u + dual * move.du)[free]
        return max(float(matrices + rows), 0.0)


def _factor(matrix: Array, diagonal: Array) -> Array:
    """Cholesky factor of `matrix + diag(diagonal)`, with just enough added to exist."""
    total = matrix.diagonal() + diagonal
    for shift in (0.0, 1e-15, 1e-13, 1e-11):
        np.fill_diagonal(matrix, total * (1.0 + shift))
        factor, failed = potrf(matrix, lower=1)
        if not failed:
            return factor
    raise np.linalg.LinAlgError("the Schur complement is numerically singular")


def _matrix_step(lowest: float) -> float:
    return 1.0 / -lowest if lowest < -1e-12 else 1e12


def _row_step(value: Array, direction: Array) -> float:
    falling = direction < 0
    return float(np.min(-value[falling] / direction[falling], initial=1e12))
