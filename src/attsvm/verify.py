"""Certificates, computed from the rows, a weight and multipliers alone. This module imports no solver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float, Int

from attsvm.errors import InputError
from attsvm.problem import Problem
from attsvm.solution import Certificate, Farkas

Array = np.ndarray

RANK_TOLERANCE = 1e-6
TIGHT_TOLERANCE = 1e-6
FARKAS_TOLERANCE = 1e-10


@dataclass(frozen=True)
class Norm:
    """A norm and its dual. `power` p > 1 makes the soft-margin objective `‖W‖^p / p + CΣξ`; 1 leaves the norm."""

    name: str
    value: Callable[[Array], float]
    dual: Callable[[Array], float]
    power: float = 1.0
    invariant: bool = True  # under rotations of tokens and of queries

    def objective(self, W: Float[Array, "d_k d_q"]) -> float:
        """The part of the soft-margin objective that W pays."""
        return self.value(W) ** self.power / self.power

    def conjugate(self, G: Float[Array, "d_k d_q"]) -> float:
        """Convex conjugate of `objective`: for power 1 zero on the dual unit ball, else infinite."""
        size = self.dual(G)
        if self.power == 1.0:
            return 0.0 if size <= 1.0 else np.inf
        q = self.power / (self.power - 1.0)
        return size**q / q


def _singular(A: Array) -> Array:
    return np.linalg.svd(A, compute_uv=False)


def _frobenius(A: Array) -> float:
    return float(np.linalg.norm(A))


def _nuclear(A: Array) -> float:
    return float(_singular(A).sum())


def _spectral(A: Array) -> float:
    return float(_singular(A)[0])


def _entrywise(A: Array, p: float) -> float:
    largest = float(np.abs(A).max())
    return largest * float(np.sum((np.abs(A) / largest) ** p)) ** (1.0 / p) if 0 < largest < np.inf else largest


def _max(A: Array) -> float:
    return float(np.abs(A).max())


NORMS = {
    "fro": Norm("fro", _frobenius, _frobenius, power=2.0),
    "nuc": Norm("nuc", _nuclear, _spectral),
    "spec": Norm("spec", _spectral, _nuclear),
    "max": Norm("max", _max, partial(_entrywise, p=1.0), invariant=False),
}


def norm_named(norm: str | float | int) -> Norm:
    """A norm by name, `"fro"`, `"nuc"`, `"spec"`, `"max"` or `"p=3"`, or by the exponent p > 1 of an entrywise p-norm.

    Raises:
        InputError: another name, or p out of range.
    """
    if isinstance(norm, str) and norm in NORMS:
        return NORMS[norm]
    try:
        p = float(norm[2:] if isinstance(norm, str) and norm.startswith("p=") else norm)
    except (TypeError, ValueError):
        p = np.nan
    if p == 2.0:
        return NORMS["fro"]
    if not 1.1 <= p <= 4.0 or isinstance(norm, bool):
        raise InputError(f"norm must be one of {sorted(NORMS)} or an exponent p from 1.1 to 4; got {norm!r}.")
    values = partial(_entrywise, p=p), partial(_entrywise, p=p / (p - 1.0))
    return Norm(f"p={p:g}", *values, power=p, invariant=False)


def certify(
    problem: Problem,
    W: Float[Array, "d_k d_q"],
    dual: Float[Array, " K"],
    norm: str | float | int,
    slack: float | int | None = None,
) -> Certificate:
    """Measure how optimal `(W, dual)` is.

    Weak duality needs no solver. For `u >= 0` on inequality rows, every feasible W has `‖W‖ >= bᵀu / ‖G(u)‖_dual` with
    the targets b, since `bᵀu <= Σ u_k δ_kᵀWz_k = <G(u), W> <= ‖G(u)‖_dual ‖W‖`. With a soft margin, multipliers
    `0 <= u <= C` bound the objective by `bᵀu - f*(G(u))`, f* the conjugate of the norm part. Multipliers are clipped to
    their box first, and by how much is reported as the dual violation.
    """
    rule, inequality = norm_named(norm), ~problem.equality
    box = np.clip(dual, 0.0, np.inf if slack is None else slack)
    u = np.where(inequality, box, dual)
    largest = max(float(np.abs(dual).max()), np.finfo(float).tiny)
    clipped = float(np.abs(u - dual).max()) / largest
    if slack is not None:
        return _certify_soft(problem, W, u, rule, slack, clipped)
    margins, pull = problem.margins(W), rule.dual(problem.combine(u))
    reach, primal = float(margins[problem.separates].min()), rule.value(W)
    bound = float(problem.target @ u) / pull if pull > 0 else 0.0
    feasible = primal / min(reach, 1.0) if reach > 0 else np.inf
    gap = (feasible - bound) / primal if primal > 0 else np.inf
    return Certificate(primal, bound, gap, violation(problem, W), clipped)


def _certify_soft(problem: Problem, W: Array, u: Array, rule: Norm, slack: float | int, clipped: float) -> Certificate:
    primal = rule.objective(W) + slack * float(hinge(problem, W).sum())
    G = problem.combine(u)
    if rule.power == 1.0:
        u = u / max(rule.dual(G), 1.0)
    conjugate = 0.0 if rule.power == 1.0 else rule.conjugate(G)
    bound = float(problem.target @ u) - conjugate
    unequal = float(np.abs(problem.margins(W)[problem.equality]).max(initial=0.0))
    return Certificate(primal, bound, (primal - bound) / primal, unequal, clipped)


def hinge(problem: Problem, W: Float[Array, "d_k d_q"]) -> Float[Array, " K"]:
    """Slack `ξ_k = max(0, target_k - δ_kᵀWz_k)` of every inequality row, zero on equalities."""
    return np.where(problem.equality, 0.0, np.maximum(problem.target - problem.margins(W), 0.0))


def violation(problem: Problem, W: Float[Array, "d_k d_q"]) -> float:
    """Largest `target - δᵀWz` over inequality rows and `|δᵀWz|` over equalities, zero where feasible."""
    margins = problem.margins(W)
    short = np.where(problem.equality, np.abs(margins), problem.target - margins)
    return float(np.max(short, initial=0.0))  # unlike the builtin max, keeps NaN


def check_farkas(problem: Problem, u: Float[Array, " K"]) -> Farkas | None:
    """The proof of infeasibility that `u` gives, or None where it gives none (residual above `FARKAS_TOLERANCE`)."""
    u = np.where(problem.equality, u, np.maximum(u, 0.0))
    total = float(problem.target @ u)
    if not np.isfinite(u).all() or total <= 0:
        return None
    u = u / total
    pull = float(np.linalg.norm(problem.combine(u)))
    size = float(np.abs(u) @ problem.row_norms)
    residual = pull / size if size > 0 else 0.0
    if not residual <= FARKAS_TOLERANCE:
        return None
    return Farkas(u=u, residual=residual, norm_bound=1.0 / pull if pull > 0 else np.inf)


def rank(W: Float[Array, "d_k d_q"]) -> int:
    """Singular values above `RANK_TOLERANCE` of the largest."""
    sigma = _singular(W)
    return int(np.sum(sigma > RANK_TOLERANCE * sigma[0]))


def dual_rank_bound(problem: Problem, dual: Float[Array, " K"]) -> int:
    """Unit singular values of the normalised dual `G(u)/‖G(u)‖_op`: they bound the rank of every nuclear optimum.

    Complementary slackness `<G(u), W> = ‖G(u)‖_op ‖W‖_*` leaves W no singular direction on which G falls short
    of its norm.
    """
    sigma = _singular(problem.combine(dual))
    return int(np.sum(sigma >= (1.0 - RANK_TOLERANCE) * sigma[0]))


def support_tokens(problem: Problem, W: Float[Array, "d_k d_q"]) -> Int[Array, "s 3"]:
    """Tokens whose row is tight or violated, `δᵀWz <= 1 + TIGHT_TOLERANCE`, as (example, query, token)."""
    tight = problem.separates & (problem.margins(W) <= 1.0 + TIGHT_TOLERANCE)
    return problem.rows[tight][:, [0, 1, 3]]
