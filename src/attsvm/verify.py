"""Certificates, computed from the rows, a weight and multipliers alone. This module imports no solver."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from attsvm.problem import Problem
from attsvm.solution import Certificate, Farkas

Array = np.ndarray

RANK_TOLERANCE = 1e-6
TIGHT_TOLERANCE = 1e-6
FARKAS_TOLERANCE = 1e-10

NORMS = {
    "fro": lambda A: float(np.linalg.norm(A)),
    "nuc": lambda A: float(np.linalg.svd(A, compute_uv=False).sum()),
}
DUAL_NORMS = {
    "fro": NORMS["fro"],
    "nuc": lambda A: float(np.linalg.svd(A, compute_uv=False)[0]),
}


def certify(problem: Problem, W: Float[Array, "d_k d_q"], dual: Float[Array, " K"], norm: str) -> Certificate:
    """Measure how optimal `(W, dual)` is.

    Weak duality needs no solver: for `u >= 0` on separation rows, every feasible W has `‖W‖ >= 1ᵀu / ‖G(u)‖_dual`,
    since `1ᵀu <= Σ u_k δ_kᵀWz_k = <G(u), W> <= ‖G(u)‖_dual ‖W‖`. Negative multipliers are set to zero first and
    reported as the dual violation.
    """
    separates = ~problem.equality
    shortfall = max(0.0, 1.0 - float(problem.margins(W)[separates].min()))
    u = np.where(separates, np.maximum(dual, 0.0), dual)
    primal, pull = NORMS[norm](W), DUAL_NORMS[norm](problem.combine(u))
    bound = float(u[separates].sum()) / pull if pull > 0 else 0.0
    feasible = primal / (1.0 - shortfall) if shortfall < 1.0 else np.inf
    return Certificate(
        primal=primal,
        bound=bound,
        gap=(feasible - bound) / primal if primal > 0 else np.inf,
        violation=violation(problem, W),
        dual_violation=max(0.0, -float(dual[separates].min())) / max(float(np.abs(dual).max()), np.finfo(float).tiny),
    )


def violation(problem: Problem, W: Float[Array, "d_k d_q"]) -> float:
    """Largest `1 - δᵀWz` over separation rows and `|δᵀWz|` over equalities, zero where feasible."""
    margins = problem.margins(W)
    unequal = float(np.abs(margins[problem.equality]).max(initial=0.0))
    return float(np.max([0.0, 1.0 - margins[~problem.equality].min(), unequal]))  # unlike max, keeps NaN


def check_farkas(problem: Problem, u: Float[Array, " K"]) -> Farkas | None:
    """The proof of infeasibility that `u` gives, or None where it gives none (residual above `FARKAS_TOLERANCE`)."""
    separates = ~problem.equality
    u = np.where(separates, np.maximum(u, 0.0), u)
    total = float(u[separates].sum())
    if not np.isfinite(u).all() or total <= 0:
        return None
    u = u / total
    pull = float(np.linalg.norm(problem.combine(u)))
    size = float(np.abs(u) @ problem.row_norms)
    residual = pull / size if size > 0 else 0.0
    if residual > FARKAS_TOLERANCE:
        return None
    return Farkas(u=u, residual=residual, norm_bound=1.0 / pull if pull > 0 else np.inf)


def rank(W: Float[Array, "d_k d_q"]) -> int:
    """Singular values above `RANK_TOLERANCE` of the largest."""
    sigma = np.linalg.svd(W, compute_uv=False)
    return int(np.sum(sigma > RANK_TOLERANCE * sigma[0]))


def dual_rank_bound(problem: Problem, dual: Float[Array, " K"]) -> int:
    """Unit singular values of the normalised dual `G(u)/‖G(u)‖_op`: they bound the rank of every nuclear optimum.

    Complementary slackness `<G(u), W> = ‖G(u)‖_op ‖W‖_*` leaves W no singular direction on which G falls short
    of its norm.
    """
    sigma = np.linalg.svd(problem.combine(dual), compute_uv=False)
    return int(np.sum(sigma >= (1.0 - RANK_TOLERANCE) * sigma[0]))


def rank_bound(problem: Problem, dual: Float[Array, " K"], norm: str) -> int:
    """A bound on the rank of every optimum: from the dual for `"nuc"`, from the spans of the data otherwise."""
    if norm == "nuc":
        return dual_rank_bound(problem, dual)
    used = np.unique(problem.pair)
    return int(min(np.linalg.matrix_rank(problem.delta), np.linalg.matrix_rank(problem.queries[used])))


def support_tokens(problem: Problem, W: Float[Array, "d_k d_q"]) -> Int[Array, "s 3"]:
    """Tokens whose row is tight, `δᵀWz <= 1 + TIGHT_TOLERANCE`, as (example, query, token)."""
    tight = ~problem.equality & (problem.margins(W) <= 1.0 + TIGHT_TOLERANCE)
    return problem.rows[tight][:, [0, 1, 3]]
