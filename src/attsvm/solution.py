"""What a solver returns: weight, dual, certificate and status, with the problem they belong to."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from attsvm.data import load
from attsvm.errors import InputError
from attsvm.problem import Problem, build
from attsvm.selection import Selection

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
        primal: `‖W‖`, or the objective `f(W) + CΣξ` of a soft margin.
        bound: `bᵀu / ‖G(u)‖_dual` with the targets b, a lower bound on the norm of every feasible W; with a soft
            margin `bᵀu - f*(G(u))`.
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
        return all(size <= tolerance for size in (abs(self.gap), self.violation, self.dual_violation))


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
        norm: `"fro"`, `"nuc"`, `"spec"`, `"max"` or `"p=3"` and the like.
        method: the algorithm that produced it.
        W: `(d_k, d_q)` or None where infeasible.
        dual: `(K,)` multipliers u, one per row of `problem`.
        value: `‖W‖` in `norm`.
        margin: `min_k δ_kᵀ W z_k / ‖W‖` over the separation rows; `1 / value` at the optimum.
        support: `(s, 3)` support tokens as (example, query, token): the tokens whose row is tight.
        rank: singular values of W above `RANK_TOLERANCE` of the largest.
        rank_bound: bound on the rank of EVERY optimum: unit singular values of the dual `G(u)` for `"nuc"`,
            `min(rank of queries, rank of differences)`, or the shape of W, for the others.
        certificate: see `Certificate`; None where infeasible.
        farkas: the checked proof where infeasible.
        iterations: of the method.
        seconds: wall time of the solve.
        slack: the price C of a soft margin, None where the margin is hard.
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
    slack: float | int | None = None

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
            "slack": self.slack,
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
        """Write the solution with the data and the chosen sets it belongs to; `attsvm.load_solution` restores it.

        The file is an npz with the keys of `TokenData.save`, so that `attsvm.load` reads its data too. A callable
        prediction head, which no attention SVM depends on, is left out.

        Raises:
            InputError: another suffix, or no such folder.
        """
        path, data = Path(path), self.problem.data
        if path.suffix != ".npz" or not path.parent.is_dir():
            raise InputError(f"A solution is saved as .npz in a folder that exists; got {str(path)!r}.")
        named = {"X": data.tokens, "z": data.queries, "y": data.labels, "mask": data.mask, "v": data.value}
        named |= {"chosen": self.problem.selection.sets, "flat": self.problem.flat, "rows": self.problem.rows}
        named |= {"W": self.W, "dual": self.dual, "support": self.support}
        summary = self.summary()
        if self.certificate is not None:
            summary["certificate"] = asdict(self.certificate)
        if self.farkas is not None:
            named["farkas"] = self.farkas.u
            summary["farkas_norm_bound"] = self.farkas.norm_bound
        texts = {"source": data.source, "summary": json.dumps(summary)}
        arrays = {key: a for key, a in named.items() if a is not None}
        np.savez(path, allow_pickle=False, **arrays, **{key: np.array(text) for key, text in texts.items() if text})
        return path


def load_solution(path: str | Path) -> Solution:
    """Restore what `Solution.save` wrote, with its problem.

    Raises:
        InputError: no such file, or not a solution; the message names what is wrong.
    """
    path = Path(path)
    data, chosen = load(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        summary = json.loads(str(arrays["summary"]))
        problem = build(data, Selection(np.asarray(chosen)), arrays["flat"])
        if not np.array_equal(problem.rows, arrays["rows"]):
            raise ValueError("its rows are not those of its data")
        return _restored(problem, arrays, summary)
    except Exception as error:
        missing = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(
            f"{path.name} is not a solution written by Solution.save or `attsvm solve --out` ({missing}). "
            "Solve again and save the result."
        ) from error


def _restored(problem: Problem, arrays: dict[str, Array], summary: dict[str, Any]) -> Solution:
    certificate, farkas = summary.get("certificate"), arrays.get("farkas")
    proof = farkas if farkas is None else Farkas(farkas, summary["farkas_residual"], summary["farkas_norm_bound"])
    plain = ("message", "norm", "method", "value", "margin", "rank", "rank_bound", "iterations", "seconds", "slack")
    W = arrays.get("W")
    if W is not None and W.shape != (problem.data.d_k, problem.data.d_q):
        raise ValueError(f"its W has shape {W.shape}")
    return Solution(
        problem=problem,
        status=Status(summary["status"]),
        W=W,
        dual=arrays.get("dual"),
        support=arrays.get("support"),
        certificate=Certificate(**certificate) if certificate else None,
        farkas=proof,
        **{key: summary[key] for key in plain},
    )
