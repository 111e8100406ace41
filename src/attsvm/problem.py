"""The attention SVM as rows `δ_kᵀ W z_k`, never as `d_k·d_q` features, and its reduction to the data's spans."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int

from attsvm.data import TokenData
from attsvm.errors import InputError
from attsvm.selection import Selection

Array = np.ndarray

MAGNITUDE = 1e60


@dataclass(frozen=True, eq=False)
class Problem:
    """Constraint rows of (Att-SVM), and of its generalisation to chosen sets (sections 2 and 6 of arXiv 2308.16898).

    Row k compares a chosen token with another token of the same query: `δ_kᵀ W z_k >= 1` where the other is not chosen,
    `= 0` where it is. Each query contributes `|O|-1` equalities and `|Ō|` inequalities against its first chosen token.

    Attributes:
        delta: `(K, d_k)`, `δ_k = x_chosen - x_other`.
        queries: `(P, d_q)`, all queries; `pair (K,)` says which one row k uses.
        equality: `(K,)`, True for rows `= 0`.
        rows: `(K, 4)`, columns example, query, chosen token, other token.
    """

    data: TokenData
    selection: Selection
    delta: Float[Array, "K d_k"]
    queries: Float[Array, "P d_q"]
    pair: Int[Array, " K"]
    equality: Bool[Array, " K"]
    rows: Int[Array, "K 4"]

    @property
    def n_rows(self) -> int:
        """Number of rows K."""
        return len(self.pair)

    @cached_property
    def target(self) -> Float[Array, " K"]:
        """Right-hand sides: 1 for separation rows, 0 for equalities."""
        return np.where(self.equality, 0.0, 1.0)

    @cached_property
    def row_norms(self) -> Float[Array, " K"]:
        """`‖δ_k‖ ‖z_k‖`, the Frobenius norm of row k."""
        return np.linalg.norm(self.delta, axis=1) * np.linalg.norm(self.queries, axis=1)[self.pair]

    def margins(self, W: Float[Array, "d_k d_q"]) -> Float[Array, " K"]:
        """`δ_kᵀ W z_k` for every row."""
        return np.einsum("kd,kd->k", self.delta, (self.queries @ W.T)[self.pair])

    def combine(self, u: Float[Array, " K"]) -> Float[Array, "d_k d_q"]:
        """`G(u) = Σ_k u_k δ_k z_kᵀ`."""
        return self.delta.T @ (u[:, None] * self.queries[self.pair])


def build(data: TokenData, selection: Selection) -> Problem:
    """All rows of the attention SVM for these chosen tokens or sets, assembled at once."""
    reference = selection.sets.argmax(-1)
    is_reference = np.arange(data.T) == reference[:, :, None]
    example, query, other = np.nonzero(data.mask & data.active[:, :, None] & ~is_reference)
    chosen = reference[example, query]
    return Problem(
        data=data,
        selection=selection,
        delta=data.tokens[example, chosen] - data.tokens[example, other],
        queries=data.queries.reshape(-1, data.d_q),
        pair=example * data.m + query,
        equality=selection.sets[example, query, other],
        rows=np.stack([example, query, chosen, other], axis=1),
    )


@dataclass(frozen=True, eq=False)
class Reduced:
    """The rows in orthonormal bases of `span{δ_k}` (dimension p) and `span{z_i}` (dimension q), scaled to order one.

    Column and row space of every optimum lie in these spans, in any unitarily invariant norm, so `W = lift(V)` of the
    optimum `V (p, q)` here is the optimum there. The scales are powers of two, which lose no digit.
    """

    delta: Float[Array, "K p"]
    queries: Float[Array, "P q"]
    pair: Int[Array, " K"]
    equality: Bool[Array, " K"]
    basis_k: Float[Array, "d_k p"]
    basis_q: Float[Array, "d_q q"]
    scale: float

    @property
    def z(self) -> Float[Array, "K q"]:
        """The query of every row."""
        return self.queries[self.pair]

    @property
    def target(self) -> Float[Array, " K"]:
        """Right-hand sides."""
        return np.where(self.equality, 0.0, 1.0)

    def features(self) -> Float[Array, "K pq"]:
        """`vec(δ_k z_kᵀ)`: only for spans so small that `p q` is no larger than the rows themselves."""
        return np.einsum("kp,kq->kpq", self.delta, self.z).reshape(len(self.pair), -1)

    def gram(self) -> Float[Array, "K K"]:
        """`(Δ Δᵀ) ∘ (Z Zᵀ)`: inner products of rows without features."""
        return (self.delta @ self.delta.T) * (self.queries @ self.queries.T)[np.ix_(self.pair, self.pair)]

    def lift(self, V: Float[Array, "p q"]) -> Float[Array, "d_k d_q"]:
        """Back to the coordinates and scale of the data."""
        return self.scale * (self.basis_k @ V @ self.basis_q.T)


def reduce(problem: Problem) -> Reduced:
    """Express the rows in the spans of the data.

    Raises:
        InputError: differences of tokens, or queries, so large or small that the norm of W leaves double precision.
    """
    used = np.zeros(len(problem.queries), dtype=bool)
    used[problem.pair] = True
    delta, scale_k = _unit_scale(problem.delta, "differences of tokens")
    queries, scale_q = _unit_scale(np.where(used[:, None], problem.queries, 0.0), "queries")
    basis_k, basis_q = _row_basis(delta), _row_basis(queries[used])
    return Reduced(
        delta=delta @ basis_k,
        queries=queries @ basis_q,
        pair=problem.pair,
        equality=problem.equality,
        basis_k=basis_k,
        basis_q=basis_q,
        scale=scale_k * scale_q,
    )


def _unit_scale(rows: Array, name: str) -> tuple[Array, float]:
    largest = float(np.abs(rows).max())
    if largest > 0 and not 1 / MAGNITUDE <= largest <= MAGNITUDE:
        raise InputError(
            f"The largest entry of the {name} is {largest:.1e}; expected {1 / MAGNITUDE:.0e} to {MAGNITUDE:.0e}, or W "
            "leaves double precision. Multiply the tokens or queries by a constant: it divides W by the same."
        )
    factor = 2.0 ** -np.round(np.log2(largest)) if largest > 0 else 1.0
    return rows * factor, float(factor)


def _row_basis(rows: Array) -> Array:
    """Orthonormal basis of the row space, `(d, rank)`; the identity where the rows span everything.

    Rows count by direction: an example much smaller than the others keeps its dimension.
    """
    d, length = rows.shape[1], np.linalg.norm(rows, axis=1, keepdims=True)
    rows = rows / np.where(length > 0, length, 1.0)
    R = np.linalg.qr(rows, mode="r") if len(rows) > d else rows
    _, sigma, Vt = np.linalg.svd(R, full_matrices=False)
    rank = int(np.sum(sigma > max(rows.shape) * np.finfo(float).eps * sigma[0]))
    return np.eye(d) if rank == d else Vt[: max(rank, 1)].T
