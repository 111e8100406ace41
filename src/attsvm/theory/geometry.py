"""Feasibility of the attention SVM, its support tokens without a solver, and the rank of its optima."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.optimize import nnls

from attsvm import verify
from attsvm.data import TokenData
from attsvm.errors import InputError
from attsvm.problem import Problem, build
from attsvm.selection import as_selection
from attsvm.solution import Solution
from attsvm.solvers import Separability, is_separable

Array = np.ndarray

EPS = float(np.finfo(float).eps)
SINGULAR = 1e-11  # eigenvalue of the unit Gram matrix over the largest, below which it counts as zero
CONSISTENT = 1e-9  # relative residual up to which a singular system counts as solved


@dataclass(frozen=True, eq=False)
class Feasibility:
    """Result of `feasible_by_dimension`: the dimension count, the positions of these data, and the exact test.

    Attributes:
        d_k: width of the tokens, against `tokens_needed`: the most unchosen tokens any query sees (T - 1).
        d_q: width of the queries, against `queries_needed`: the number of queries (n).
        general_position: queries linearly independent, and for every query the differences of its tokens too. Then
            the tokens can be separated for certain, whatever is chosen; almost all data of large enough width are so.
        separable: the exact test for these tokens, with its witness or Farkas vector.
    """

    d_k: int
    tokens_needed: int
    d_q: int
    queries_needed: int
    general_position: bool
    separable: Separability

    @property
    def by_dimension(self) -> bool:
        """Whether the widths suffice for almost all data."""
        return self.d_k >= self.tokens_needed and self.d_q >= self.queries_needed

    def __bool__(self) -> bool:
        return bool(self.separable)


def feasible_by_dimension(data: TokenData, chosen: Any = "optimal") -> Feasibility:
    """Feasibility of the attention SVM by counting dimensions, beside the exact test.

    Almost sure feasibility in arXiv 2308.16898: `d >= max(T - 1, n)` makes almost all data separable, for every choice
    α. Queries that are linearly independent let `W z_i` be prescribed one by one, and T - 1 independent differences
    can all be given margin one; so the token width need only reach T - 1, and the query width n. Enough, not necessary:
    many data of smaller width are separable too.

    Args:
        data: the examples.
        chosen: what `attsvm.solve` takes.

    Raises:
        InputError: unusable data or selection.
        NotSolvedError: rounding leaves the exact test open.
    """
    problem = build(data, as_selection(data, chosen))
    others = np.bincount(problem.pair, minlength=1)
    asking = np.unique(problem.pair)
    independent = np.linalg.matrix_rank(_unit_rows(problem.queries[asking])) == len(asking)
    apart = all(np.linalg.matrix_rank(_unit_rows(problem.delta[problem.pair == p])) == others[p] for p in asking)
    return Feasibility(
        d_k=data.d_k,
        tokens_needed=int(others.max()),
        d_q=data.d_q,
        queries_needed=len(asking),
        general_position=bool(independent and apart),
        separable=is_separable(data, chosen),
    )


def _unit_rows(rows: Array) -> Array:
    length = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / np.where(length > 0, length, 1.0)


@dataclass(frozen=True, eq=False)
class AllSupport:
    """Result of `all_support_vectors`.

    Attributes:
        multipliers: `(K,)`, `u` with `M u = 1`, one per row; where M is singular, the best `u >= 0`.
        smallest: the smallest multiplier over the largest in size, rows scaled to norm one: the verdict's own quantity
            where M is nonsingular.
        residual: `‖Σ u_k δ_k z_kᵀ - W_t‖_F / ‖W_t‖_F`, W_t the least-norm W with every row tight: the verdict's own
            quantity where M is singular. Infinite where no such W exists.
        condition: of M with unit diagonal, its largest over its smallest eigenvalue; inf where singular.
        rank: of M, against its size K.
        rounding: how large an error `smallest`, or `residual`, may have.
    """

    multipliers: Float[Array, " K"]
    smallest: float
    residual: float
    condition: float
    rank: int
    rounding: float

    @property
    def singular(self) -> bool:
        """Whether M is singular, to rounding."""
        return self.rank < len(self.multipliers)

    def __bool__(self) -> bool:
        return self.residual <= self.rounding if self.singular else self.smallest >= -self.rounding


def all_support_vectors(data: TokenData, chosen: Any = "optimal") -> AllSupport:
    """Are all tokens support vectors of `W_mm(α)`? Decided by one linear system, without solving the SVM.

    With the Gram matrix `M = (ΔΔᵀ) ∘ (ZZᵀ)` of the rows, all are tight iff `M u = 1` has a solution `u >= 0`: it is
    then the dual, and `W_mm = Σ u_k δ_k z_kᵀ`. Where M is nonsingular that is `M⁻¹1 >= 0`. Where it is singular either
    no W makes every row tight (the system is inconsistent), or non-negative least squares looks for a `u >= 0` among
    its many solutions. arXiv 2308.16898 derives global convergence under over-parameterisation from this property at
    α = opt, see `stationary_points`.

    Args:
        data: the examples.
        chosen: the tokens α, one per query, as `attsvm.solve` takes them.

    Raises:
        InputError: unusable data or selection, several chosen tokens per query.
    """
    return all_support_vectors_many([data], [chosen])[0]


def all_support_vectors_many(data: Sequence[TokenData], chosen: Any = "optimal") -> list[AllSupport]:
    """`all_support_vectors` of many data sets, those with equally many rows factored together.

    Args:
        data: the data sets.
        chosen: what `attsvm.solve` takes, for all of them, or a list with one entry per data set.

    Raises:
        InputError: as in `all_support_vectors`.
    """
    choices = chosen if isinstance(chosen, list) else [chosen] * len(data)
    if len(choices) != len(data):
        raise InputError(f"chosen lists {len(choices)} entries for {len(data)} data sets; give one for each.")
    grams, sizes = (
        zip(*(_unit_gram(*one) for one in zip(data, choices, strict=True)), strict=True) if data else ((), ())
    )
    found: dict[int, AllSupport] = {}
    for count in {len(size) for size in sizes}:
        group = [j for j, size in enumerate(sizes) if len(size) == count]
        eigen = np.linalg.eigh(np.stack([grams[j] for j in group]))
        found |= {j: _all_support(*one, sizes[j]) for j, one in zip(group, zip(*eigen, strict=True), strict=True)}
    return [found[j] for j in range(len(data))]


def _unit_gram(data: TokenData, chosen: Any) -> tuple[Array, Array]:
    """The Gram matrix of the rows scaled to norm one (its diagonal is 1, or 0 for an empty row), and their norms."""
    selection = as_selection(data, chosen)
    assert selection.indices.shape  # raises where a query chooses several
    problem = build(data, selection)
    delta, z = _unit_rows(problem.delta), _unit_rows(problem.queries)
    return (delta @ delta.T) * (z @ z.T)[np.ix_(problem.pair, problem.pair)], problem.row_norms


def _all_support(values: Array, vectors: Array, size: Array) -> AllSupport:
    """From the eigenvalues (rising) and vectors of the unit Gram matrix; `size` holds the norms of the rows."""
    count, nothing = len(size), np.zeros(len(size))
    keep = values > SINGULAR * values[-1]
    rank = int(keep.sum())
    if not size.all():  # a row 0 >= 1
        return AllSupport(nothing, 0.0, np.inf, np.inf, rank, CONSISTENT)
    rounding = float(count * EPS * values[-1] / values[keep][0])
    basis = vectors[:, keep]
    target = size.min() / size
    inside = basis.T @ target
    if rank == count:
        w = basis @ (inside / values)
        return _measured(w, size, 0.0, float(values[-1] / values[0]), rank, rounding)
    rounding = max(rounding, CONSISTENT)
    if np.linalg.norm(target - basis @ inside) > rounding * np.linalg.norm(target):
        return AllSupport(nothing, 0.0, np.inf, np.inf, rank, rounding)
    # In coordinates of W itself, whose condition is the square root of M's.
    root = np.sqrt(values[keep])
    w, rest = nnls(root[:, None] * basis.T, inside / root, maxiter=30 * count)
    return _measured(w, size, float(rest / np.linalg.norm(inside / root)), np.inf, rank, rounding)


def _measured(w: Array, size: Array, residual: float, condition: float, rank: int, rounding: float) -> AllSupport:
    smallest = float(w.min() / max(np.abs(w).max(), np.finfo(float).tiny))
    return AllSupport(w / size / size.min(), smallest, residual, condition, rank, rounding)


@dataclass(frozen=True)
class RankBounds:
    """Bounds on the rank of every optimum, beside the rank of the one found.

    Attributes:
        rank: of the solution.
        by_dimension: `min(n, d)`: the number of queries, and the widths.
        by_spans: the ranks of the queries and of the token differences of these data.
        by_dual: nuclear norm only: the number of unit singular values of the normalised dual, the rank certificate;
            None for the Frobenius norm.
        norm: `"fro"` or `"nuc"`.
        gap: of the solution's certificate, which every rank rests on.
    """

    rank: int
    by_dimension: int
    by_spans: int
    by_dual: int | None
    norm: str
    gap: float

    @property
    def smallest(self) -> int:
        """The smallest of the bounds."""
        return min(bound for bound in (self.by_dimension, self.by_spans, self.by_dual) if bound is not None)

    def __bool__(self) -> bool:
        return self.rank <= self.smallest


def rank_bounds(solution: Solution) -> RankBounds:
    """The rank of a solution beside its bounds; true where it keeps to all of them.

    The row space of every optimum, in either norm, lies in the span of the queries and the column space in that of the
    differences, hence `rank <= min(n, d)` (arXiv 2308.16898). For the nuclear norm complementary slackness says more:
    no optimum has a singular direction on which the dual `G(u)/‖G(u)‖_op` falls short of one.

    Args:
        solution: of `attsvm.solve`, with a weight.

    Raises:
        InputError: a solution without a weight, or of another norm.
    """
    if solution.rank is None or solution.dual is None or solution.certificate is None:
        raise InputError(f"This solution has no weight, hence no rank: {solution.message}")
    if solution.norm not in ("fro", "nuc"):
        raise InputError(f'These bounds hold for the norms "fro" and "nuc"; this solution is of {solution.norm!r}.')
    problem = solution.problem
    return RankBounds(
        rank=solution.rank,
        by_dimension=min(len(np.unique(problem.pair)), problem.data.d_k, problem.data.d_q),
        by_spans=_spans(problem),
        by_dual=verify.dual_rank_bound(problem, solution.dual) if solution.norm == "nuc" else None,
        norm=solution.norm,
        gap=solution.certificate.gap,
    )


def _spans(problem: Problem) -> int:
    parts = problem.delta, problem.queries[np.unique(problem.pair)]
    return min(int(np.linalg.matrix_rank(_unit_rows(part))) for part in parts)
