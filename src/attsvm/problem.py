"""The attention SVM as rows `δ_kᵀ W z_k`, never as `d_k·d_q` features, and its reduction to the data's spans."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    The inequalities of a flat query are `>= 0` instead: see `build`.

    Attributes:
        flat: `(n, m)`, queries without force.
        delta: `(K, d_k)`, `δ_k = x_chosen - x_other`.
        queries: `(P, d_q)`, all queries; `pair (K,)` says which one row k uses.
        equality: `(K,)`, True for rows `= 0`.
        target: `(K,)` right-hand sides: 1, or 0 for equalities and for rows of flat queries.
        rows: `(K, 4)`, columns example, query, chosen token, other token.
    """

    data: TokenData
    selection: Selection
    flat: Bool[Array, "n m"]
    delta: Float[Array, "K d_k"]
    queries: Float[Array, "P d_q"]
    pair: Int[Array, " K"]
    equality: Bool[Array, " K"]
    target: Float[Array, " K"]
    rows: Int[Array, "K 4"]

    @property
    def n_rows(self) -> int:
        """Number of rows K."""
        return len(self.pair)

    @cached_property
    def separates(self) -> Bool[Array, " K"]:
        """Rows `>= 1`: those a margin is taken over."""
        return ~self.equality & (self.target > 0)

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


def build(data: TokenData, selection: Selection, flat: Bool[Array, "n m"] | None = None) -> Problem:
    """All rows of the attention SVM for these chosen tokens or sets, assembled at once.

    Args:
        data: the examples.
        selection: what each query chooses.
        flat: queries whose head has no gradient at the pooled token. Such a query exerts no force, yet it comes alive
            again where its unchosen tokens gain weight: its rows are `>= 0`, neither `>= 1` nor absent.

    Raises:
        InputError: no row `>= 1` is left.
    """
    flat = np.zeros((data.n, data.m), dtype=bool) if flat is None else flat
    reference = selection.sets.argmax(-1)
    is_reference = np.arange(data.T) == reference[:, :, None]
    example, query, other = np.nonzero(data.mask & data.active[:, :, None] & ~is_reference)
    chosen = reference[example, query]
    equality = selection.sets[example, query, other]
    target = np.where(equality | flat[example, query], 0.0, 1.0)
    if not target.any():
        raise InputError("Every query that has something to separate is flat: W = 0 meets all rows. Check the head.")
    return Problem(
        data=data,
        selection=selection,
        flat=flat,
        delta=data.tokens[example, chosen] - data.tokens[example, other],
        queries=data.queries.reshape(-1, data.d_q),
        pair=example * data.m + query,
        equality=equality,
        target=target,
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
    target: Float[Array, " K"]
    basis_k: Float[Array, "d_k p"]
    basis_q: Float[Array, "d_q q"]
    scale: float

    @property
    def z(self) -> Float[Array, "K q"]:
        """The query of every row."""
        return self.queries[self.pair]

    @property
    def spans(self) -> tuple[int, int]:
        """`(p, q)`."""
        return self.delta.shape[1], self.queries.shape[1]

    def take(self, index: Int[Array, " k"]) -> Reduced:
        """Some of the rows."""
        part = {"pair": self.pair[index], "equality": self.equality[index], "target": self.target[index]}
        return replace(self, delta=self.delta[index], **part)

    def margins(self, V: Float[Array, "p q"]) -> Float[Array, " K"]:
        """`δ_kᵀ V z_k` for every row."""
        return np.einsum("kp,kp->k", self.delta, (self.queries @ V.T)[self.pair])

    def features(self) -> Float[Array, "K pq"]:
        """`vec(δ_k z_kᵀ)`: only for spans so small that `p q` is no larger than the rows themselves."""
        return np.einsum("kp,kq->kpq", self.delta, self.z).reshape(len(self.pair), -1)

    def gram(self) -> Float[Array, "K K"]:
        """`(Δ Δᵀ) ∘ (Z Zᵀ)`: inner products of rows without features."""
        return (self.delta @ self.delta.T) * (self.queries @ self.queries.T)[np.ix_(self.pair, self.pair)]

    def lift(self, V: Float[Array, "p q"]) -> Float[Array, "d_k d_q"]:
        """Back to the coordinates and scale of the data."""
        return self.scale * (self.basis_k @ V @ self.basis_q.T)


def reduce(problem: Problem, *, spans: bool = True) -> Reduced:
    """Express the rows in the spans of the data; with `spans=False` in their own coordinates, only scaled.

    Norms that are not unitarily invariant, such as entrywise ones, need the latter.

    Raises:
        InputError: differences of tokens, or queries, so large or small that the norm of W leaves double precision.
    """
    used = np.zeros(len(problem.queries), dtype=bool)
    used[problem.pair] = True
    delta, scale_k = _unit_scale(problem.delta, "differences of tokens")
    queries, scale_q = _unit_scale(np.where(used[:, None], problem.queries, 0.0), "queries")
    basis_k, basis_q = np.eye(delta.shape[1]), np.eye(queries.shape[1])
    if spans:
        basis_k, basis_q = _row_basis(delta), _row_basis(queries[used])
    return Reduced(
        delta=delta @ basis_k,
        queries=queries @ basis_q,
        pair=problem.pair,
        equality=problem.equality,
        target=problem.target,
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
    small = max(rows.shape) * np.finfo(float).eps
    if len(rows) >= d:
        R = np.linalg.qr(rows, mode="r")
        sigma = np.linalg.svd(R, compute_uv=False)
        if sigma[-1] > small * sigma[0]:
            return np.eye(d)
    else:
        Q, R = np.linalg.qr(rows.T)
        sigma = np.linalg.svd(R, compute_uv=False)
        if sigma[-1] > small * sigma[0]:
            return Q
    _, sigma, Vt = np.linalg.svd(rows, full_matrices=False)
    rank = int(np.sum(sigma > small * sigma[0]))
    return Vt[: max(rank, 1)].T
