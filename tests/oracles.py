"""The attention SVM a second time: rows by plain loops, KKT conditions as in a textbook, and cvxpy's formulation.

Nothing here imports a solver, `attsvm.problem` or `attsvm.verify`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm import TokenData

TIGHT = {"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10, "tol_ktratio": 1e-9, "max_iter": 200}


@dataclass(frozen=True)
class Rows:
    """`δ_kᵀ W z_k >= 1`, or `= 0` where `equal`: `delta (K, d_k)`, `z (K, d_q)`, `equal (K,)`."""

    delta: np.ndarray
    z: np.ndarray
    equal: np.ndarray

    @property
    def matrix(self) -> np.ndarray:
        """`vec(δ_k z_kᵀ)`, `(K, d_k d_q)`."""
        return np.array([np.outer(d, z).ravel() for d, z in zip(self.delta, self.z, strict=True)])

    @property
    def target(self) -> np.ndarray:
        """Right-hand sides."""
        return np.where(self.equal, 0.0, 1.0)

    def combine(self, u: np.ndarray) -> np.ndarray:
        """`Σ u_k δ_k z_kᵀ`, summed row by row."""
        total = np.zeros((self.delta.shape[1], self.z.shape[1]))
        for weight, delta, z in zip(u, self.delta, self.z, strict=True):
            total += weight * np.outer(delta, z)
        return total

    def margins(self, W: np.ndarray) -> np.ndarray:
        """`δ_kᵀ W z_k`."""
        return np.array([delta @ W @ z for delta, z in zip(self.delta, self.z, strict=True)])


def rows_of(data: TokenData, sets: np.ndarray) -> Rows:
    """Rows by the definition: first chosen token of each query against every other token the query sees."""
    delta, z, equal = [], [], []
    for i in range(data.n):
        for k in range(data.m):
            visible = np.flatnonzero(data.mask[i, k])
            chosen = [t for t in visible if sets[i, k, t]]
            for t in visible:
                if t == chosen[0]:
                    continue
                delta.append(data.tokens[i, chosen[0]] - data.tokens[i, t])
                z.append(data.queries[i, k])
                equal.append(bool(sets[i, k, t]))
    return Rows(np.array(delta), np.array(z), np.array(equal))


def primal_norm(W: np.ndarray, norm: str) -> float:
    """`‖W‖_F` or `‖W‖_*`."""
    return float(np.sqrt(np.sum(W**2)) if norm == "fro" else np.linalg.svd(W)[1].sum())


def dual_norm(G: np.ndarray, norm: str) -> float:
    """`‖G‖_F` or `‖G‖_op`."""
    return float(np.sqrt(np.sum(G**2)) if norm == "fro" else np.linalg.svd(G)[1][0])


def violation(rows: Rows, W: np.ndarray) -> float:
    """Largest shortfall of a `>= 1` row or deviation of an `= 0` row."""
    off = np.where(rows.equal, np.abs(rows.margins(W)), 1.0 - rows.margins(W))
    return float(max(off.max(), 0.0))


@dataclass(frozen=True)
class KKT:
    """How far `(W, u)` is from the optimality conditions, all relative.

    Attributes:
        violation: of the rows by W.
        negative: most negative multiplier of a `>= 1` row, over the largest.
        gap: upper bound `‖W‖ / (1 - violation)` less the dual bound, over `‖W‖`.
        slackness: `Σ |u_k (margin_k - target_k)| / Σ u_k`: multipliers only on tight rows.
        alignment: `1 - <G(u), W> / (‖G(u)‖_dual ‖W‖)`: G(u) is a subgradient of the norm at W, up to scale.
    """

    violation: float
    negative: float
    gap: float
    slackness: float
    alignment: float

    def worst(self) -> float:
        """The largest of the five."""
        return max(self.violation, self.negative, abs(self.gap), self.slackness, abs(self.alignment))


def kkt(rows: Rows, W: np.ndarray, u: np.ndarray, norm: str) -> KKT:
    """The conditions measured."""
    margins, free = rows.margins(W), ~rows.equal
    short = max(0.0, float(1.0 - margins[free].min()))
    size, G = primal_norm(W, norm), rows.combine(u)
    pull = dual_norm(G, norm)
    return KKT(
        violation=violation(rows, W),
        negative=max(0.0, -u[free].min()) / np.abs(u).max(),
        gap=(size / (1.0 - short) - u[free].sum() / pull) / size if short < 1.0 else np.inf,
        slackness=float(np.abs(u * (margins - rows.target)).sum() / u[free].sum()),
        alignment=float(1.0 - np.sum(G * W) / (pull * size)),
    )


def farkas_residual(rows: Rows, u: np.ndarray) -> float:
    """`‖Σ u_k δ_k z_kᵀ‖_F / Σ |u_k| ‖δ_k‖‖z_k‖`; inf unless `u >= 0` on `>= 1` rows, with sum one."""
    if (u[~rows.equal] < 0).any() or not np.isclose(u[~rows.equal].sum(), 1.0):
        return np.inf
    size = np.abs(u) @ (np.linalg.norm(rows.delta, axis=1) * np.linalg.norm(rows.z, axis=1))
    return float(np.linalg.norm(rows.combine(u)) / size) if size > 0 else 0.0


@dataclass(frozen=True)
class Answer:
    """What cvxpy says: its status word, the norm of the optimum and W, both None unless it found one."""

    status: str
    value: float | None
    W: np.ndarray | None


def clarabel(rows: Rows, norm: str, **options: float) -> Answer:
    """Clarabel through cvxpy, with tight tolerances, in orthonormal bases of the row spans."""
    import cvxpy as cp

    left, right = _basis(rows.delta), _basis(rows.z)
    delta, z = rows.delta @ left, rows.z @ right
    V = cp.Variable((left.shape[1], right.shape[1]))
    free = ~rows.equal

    def margins(which: np.ndarray) -> Any:
        return cp.sum(cp.multiply(delta[which] @ V, z[which]), axis=1)

    constraints: list[Any] = [margins(free) >= 1]
    if rows.equal.any():
        constraints.append(margins(rows.equal) == 0)
    objective = cp.sum_squares(V) if norm == "fro" else cp.normNuc(V)
    problem = cp.Problem(cp.Minimize(objective), constraints)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            problem.solve(solver=cp.CLARABEL, **(TIGHT | options))
        except cp.SolverError:
            return Answer("failed", None, None)
    if V.value is None or problem.status not in ("optimal", "optimal_inaccurate"):
        return Answer(problem.status, None, None)
    W = left @ V.value @ right.T
    return Answer(problem.status, primal_norm(W, norm), W)


def _basis(rows: np.ndarray) -> np.ndarray:
    """Orthonormal columns that span the rows; all directions that are not exactly zero are kept."""
    if len(rows) >= rows.shape[1]:
        return np.eye(rows.shape[1])
    return np.linalg.qr(rows.T)[0]


@dataclass(frozen=True)
class Planted:
    """A problem built from its optimum: `W` with multipliers is optimal by construction, of norm `value`."""

    data: TokenData
    sets: np.ndarray
    W: np.ndarray
    value: float


def planted(
    rng: np.random.Generator,
    norm: str,
    *,
    n: int,
    T: int,
    d_k: int,
    d_q: int,
    rank: int,
    m: int = 1,
    chosen: int = 1,
    degenerate: bool = False,
) -> Planted:
    """Rows around a given pair (W, G) with `G = Σ u_k δ_k z_kᵀ` a subgradient of the norm at W.

    Writing `G = Σ_i g_i z_iᵀ`, the tight rows of query i need `Σ_t u_it δ_it = g_i` and `δ_itᵀWz_i = 1`, so
    `Σ_t u_it = c_i = g_iᵀWz_i`, which must be positive: draw until it is. Then `δ_it = g_i / c_i + e_it` with `e_it`
    orthogonal to `Wz_i` and `Σ_t u_it e_it = 0`. Equality rows are such `e`, with multipliers of either sign.

    With m > 1 the queries of an example see disjoint parts, of T tokens each. `degenerate` makes rows tight that carry
    no multiplier.
    """
    W, z, g, c = _optimum(rng, norm, n * m, d_k, d_q, rank)
    tokens, sets = np.empty((n * m, T, d_k)), np.zeros((n * m, T), dtype=bool)
    for i in range(n * m):
        delta = _tokens(rng, g[i], c[i], W @ z[i], T, chosen, degenerate)
        order = rng.permutation(T)
        tokens[i, order] = rng.standard_normal(d_k) - delta
        sets[i, order[:chosen]] = True
    visible = np.repeat(np.eye(m, dtype=bool), T, axis=1)
    data = TokenData(
        tokens.reshape(n, m * T, d_k), z.reshape(n, m, d_q), mask=np.broadcast_to(visible, (n, m, m * T)).copy()
    )
    return Planted(data, np.tile(sets.reshape(n, 1, m * T), (1, m, 1)) & visible, W, primal_norm(W, norm))


def _optimum(
    rng: np.random.Generator, norm: str, P: int, d_k: int, d_q: int, rank: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    while True:
        basis = np.linalg.qr(rng.standard_normal((d_q, P)))[0].T  # (P, d_q), P <= d_q
        z = rng.uniform(0.5, 2.0, (P, 1)) * (basis + 0.3 * (rng.standard_normal((P, P)) / np.sqrt(P)) @ basis)
        U, V = np.linalg.qr(rng.standard_normal((d_k, d_k)))[0], np.linalg.qr(rng.standard_normal((P, P)))[0]
        right, size = V.T @ basis, min(P, d_k)
        sigma = rng.uniform(0.5, 2.0, rank)
        W = (U[:, :rank] * sigma) @ right[:rank]
        rest = rng.uniform(0.0, 0.9, size - rank)
        G = U[:, :rank] @ right[:rank] + (U[:, rank:size] * rest) @ right[rank:size] if norm == "nuc" else W
        g = (G @ np.linalg.pinv(z)).T
        c = np.einsum("ik,kq,iq->i", g, W, z)
        if (c > 1e-2).all():
            return W, z, g, c


def _tokens(
    rng: np.random.Generator, g: np.ndarray, c: float, pull: np.ndarray, T: int, chosen: int, degenerate: bool
) -> np.ndarray:
    """`δ (T, d_k)` against the first chosen token, chosen tokens first; about half of the others are tight."""

    def across(rows: np.ndarray) -> np.ndarray:
        return rows - np.outer(rows @ pull, pull) / (pull @ pull)

    equal = across(rng.standard_normal((chosen - 1, len(g))))
    g = g - rng.standard_normal(chosen - 1) @ equal
    others = T - chosen
    count = int(rng.integers(1, others // 2 + 2)) if others > 1 else 1
    u = rng.dirichlet(np.ones(count)) * c
    e = across(rng.standard_normal((count, len(g))))
    tight = g / c + e - (u @ e) / c
    along = np.outer(
        np.ones(others - count) + (0.0 if degenerate else 1.0) * rng.uniform(0.1, 2.0, others - count), pull
    )
    loose = across(rng.standard_normal((others - count, len(g)))) + along / (pull @ pull)
    return np.concatenate([np.zeros((1, len(g))), equal, tight, loose])
