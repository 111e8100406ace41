"""What a solver returns: weight, dual, certificate and status, with the problem they belong to."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from attsvm.errors import InputError
from attsvm.problem import Problem

Array = np.ndarray


class Status(StrEnum):
    """How a solve ended."""

    OPTIMAL = "optimal"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Certificate:
    """Optimality measured on the problem's own rows, by `attsvm.verify`, from `(W, dual)` alone.

    Attributes:
        primal: `‖W‖`.
        bound: `1ᵀu / ‖G(u)‖_dual`, a lower bound on the norm of every feasible W.
        gap: `(‖W‖ / (1 - violation) - bound) / ‖W‖`, relative; the first term is the norm of W scaled to feasibility.
        violation: largest `1 - δᵀWz` over separation rows and `|δᵀWz|` over equalities; margins are of order one, so
            this is relative.
        dual_violation: most negative multiplier of a separation row over the largest multiplier.
    """

    primal: float
    bound: float
    gap: float
    violation: float
    dual_violation: float

    def holds(self, tolerance: float) -> bool:
        """Whether gap, violation and dual violation are all at most `tolerance`."""
        return max(abs(self.gap), self.violation, self.dual_violation) <= tolerance


@dataclass(frozen=True, eq=False)
class Farkas:
    """Proof that nothing separates: `u >= 0`, `1ᵀu = 1`, `Σ u_k δ_k z_kᵀ = 0` (free sign on equality rows).

    Attributes:
        u: `(K,)`, one weight per row.
        residual: `‖Σ u_k δ_k z_kᵀ‖_F / Σ |u_k| ‖δ_k‖‖z_k‖`, zero up to rounding.
        norm_bound: every W that separates has `‖W‖_F` at least this; what a residual not exactly zero means.
    """

    u: Float[Array, " K"]
    residual: float
    norm_bound: float


@dataclass(frozen=True, eq=False)
class Solution:
    """Result of `attsvm.solve`.

    Attributes:
        status: `optimal`, `infeasible` or `unknown`.
        message: what the status means here, with cause and remedy.
        norm: `"fro"` or `"nuc"`.
        method: the algorithm that produced it.
        W: `(d_k, d_q)` or None where infeasible.
        dual: `(K,)` multipliers u, one per row of `problem`.
        value: `‖W‖` in `norm`.
        margin: `min_k δ_kᵀ W z_k / ‖W‖` over the separation rows; `1 / value` at the optimum.
        support: `(s, 3)` support tokens as (example, query, token): the tokens whose row is tight.
        rank: singular values of W above `RANK_TOLERANCE` of the largest.
        rank_bound: bound on the rank of EVERY optimum: unit singular values of the dual `G(u)` for `"nuc"`,
            `min(rank of queries, rank of differences)` for `"fro"`.
        certificate: see `Certificate`; None where infeasible.
        farkas: the checked proof where infeasible.
        iterations: of the method.
        seconds: wall time of the solve.
    """

    problem: Problem
    status: Status
    message: str
    norm: str
    method: str
    W: Float[Array, "d_k d_q"] | None
    dual: Float[Array, " K"] | None
    value: float | None
    margin: float | None
    support: Int[Array, "s 3"] | None
    rank: int | None
    rank_bound: int | None
    certificate: Certificate | None
    farkas: Farkas | None
    iterations: int
    seconds: float

    @classmethod
    def without_weight(
        cls, problem: Problem, status: Status, message: str, norm: str, method: str, iterations: int, seconds: float
    ) -> Solution:
        """A solution that holds no weight, for `infeasible` and `unknown`."""
        nothing = dict.fromkeys(
            ("W", "dual", "value", "margin", "support", "rank", "rank_bound", "certificate", "farkas")
        )
        return cls(problem, status, message, norm, method, **nothing, iterations=iterations, seconds=seconds)

    def __repr__(self) -> str:
        if self.certificate is None or self.support is None:
            return f"Solution({self.status}: {self.message})"
        return (
            f"Solution({self.status}, {self.norm} norm {self.value:.6g}, rank {self.rank} (bound {self.rank_bound}), "
            f"{len(self.support)} support tokens of {self.problem.n_rows} rows, gap {self.certificate.gap:.1e}, "
            f"violation {self.certificate.violation:.1e})"
        )

    def summary(self) -> dict[str, Any]:
        """Plain values of everything but the arrays, ready for JSON."""
        certificate = self.certificate
        return {
            "status": str(self.status),
            "norm": self.norm,
            "method": self.method,
            "value": self.value,
            "margin": self.margin,
            "gap": certificate.gap if certificate else None,
            "violation": certificate.violation if certificate else None,
            "rank": self.rank,
            "rank_bound": self.rank_bound,
            "n_support": None if self.support is None else len(self.support),
            "n_rows": self.problem.n_rows,
            "farkas_residual": self.farkas.residual if self.farkas else None,
            "iterations": self.iterations,
            "seconds": self.seconds,
            "message": self.message,
        }

    def save(self, path: str | Path) -> Path:
        """Write W, dual, support, rows and the certificate (or the Farkas vector) to an npz file."""
        path = Path(path)
        if path.suffix != ".npz":
            raise InputError(f"A solution is saved as .npz; got {path.name!r}.")
        named = {"W": self.W, "dual": self.dual, "support": self.support, "rows": self.problem.rows}
        if self.farkas is not None:
            named["farkas"] = self.farkas.u
        arrays = {key: a for key, a in named.items() if a is not None}
        certificate = asdict(self.certificate) if self.certificate else None
        np.savez(
            path,
            allow_pickle=False,
            summary=json.dumps(self.summary() | {"certificate": certificate}),
            **arrays,
        )
        return path
