"""The set of all nuclear-norm optima, and the nearest of them.

Complementary slackness `<G, W> = ‖G‖_op ‖W‖_*` with the dual `G = Σ u_k δ_k z_kᵀ` puts every optimum into

    W = U S Vᵀ,   S symmetric and positive semidefinite,   tr S = ‖W_mm*‖_*,

U, V the singular vectors of G to its largest singular value; and rows with `u_k > 0` are tight in every optimum. What
is left after these equations is an affine set of symmetric matrices, a single point for almost all data: then the
optimum is unique. Otherwise the nearest point under `S >= 0` and the remaining rows is found by alternating directions.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from attsvm.errors import InputError
from attsvm.solution import Solution
from attsvm.verify import RANK_TOLERANCE

Array = np.ndarray
_ACTIVE = 1e-6  # multipliers above this share of the largest belong to rows tight in every optimum
_RANK = 1e-7  # singular values of the equations below this share of the largest leave a direction free
_STEPS, _TOLERANCE = 20_000, 1e-12


def nearest_nuclear_optimum(solution: Solution, A: Float[Array, "d_k d_q"]) -> Float[Array, "d_k d_q"]:
    """The optimum of (Att-SVM*) of arXiv 2308.16898 nearest to A in the Frobenius norm; the optima form a convex set.

    Args:
        solution: of `attsvm.solve(..., norm="nuc")`; optimal.
        A: any matrix of the shape of W, on the scale of W.

    Raises:
        InputError: another norm, no weight, a soft margin, or A of another shape.
    """
    if solution.norm != "nuc" or solution.W is None or solution.dual is None or solution.slack is not None:
        raise InputError(f'nearest_nuclear_optimum needs an optimal solution with norm="nuc"; got {solution!r}.')
    A = np.asarray(A, dtype=np.float64)
    if A.shape != solution.W.shape or not np.isfinite(A).all():
        raise InputError(f"A must be finite and of shape {solution.W.shape}; got shape {A.shape}.")
    U, V = _dual_spaces(solution)
    S = U.T @ solution.W @ V
    free, rows, least = _free_directions(solution, U, V)
    if not len(free):
        return solution.W
    wanted = np.einsum("fab,ab->f", free, U.T @ (A - solution.W) @ V)
    c = _project(wanted, free, (S + S.T) / 2, rows, least)
    return solution.W + U @ np.einsum("f,fab->ab", c, free) @ V.T


def _dual_spaces(solution: Solution) -> tuple[Array, Array]:
    """Singular vectors of the dual matrix to its largest singular value, `(d_k, s)` and `(d_q, s)`."""
    assert solution.dual is not None
    U, sigma, Vt = np.linalg.svd(solution.problem.combine(solution.dual), full_matrices=False)
    s = int(np.sum(sigma >= (1.0 - RANK_TOLERANCE) * sigma[0]))
    return U[:, :s], Vt[:s].T


def _free_directions(solution: Solution, U: Array, V: Array) -> tuple[Array, Array, Array]:
    """Directions of S the equations leave free, `(f, s, s)`, orthonormal; for the remaining rows, of length one, their
    coefficients `(r, f)` and the least value they may change by."""
    assert solution.W is not None
    assert solution.dual is not None
    problem, basis = solution.problem, _symmetric(U.shape[1])
    z = problem.queries[problem.pair]
    rows = np.einsum("ka,kb,jab->kj", problem.delta @ U, z @ V, basis)
    fixed = problem.equality | (solution.dual > _ACTIVE * solution.dual.max())
    length = np.maximum(problem.row_norms, np.finfo(float).tiny)
    equations = np.vstack([np.trace(basis, axis1=1, axis2=2), (rows / length[:, None])[fixed]])
    _, sigma, Nt = np.linalg.svd(equations)
    null = Nt[int(np.sum(sigma > _RANK * sigma[0])) :]
    coefficients = rows[~fixed] @ null.T
    least = np.minimum((problem.target - problem.margins(solution.W))[~fixed], 0.0)
    scale = np.linalg.norm(coefficients, axis=1)
    moving = scale > _RANK * length[~fixed]
    scale = scale[moving]
    return np.einsum("fj,jab->fab", null, basis), coefficients[moving] / scale[:, None], least[moving] / scale


def _symmetric(s: int) -> Float[Array, "j s s"]:
    """An orthonormal basis of the symmetric matrices."""
    a, b = np.triu_indices(s)
    basis = np.zeros((len(a), s, s))
    basis[np.arange(len(a)), a, b] = basis[np.arange(len(a)), b, a] = np.where(a == b, 1.0, np.sqrt(0.5))
    return basis


def _project(wanted: Array, free: Array, S: Array, rows: Array, least: Array) -> Float[Array, " f"]:
    """argmin ‖c - wanted‖ with `S + Σ c_f free_f` positive semidefinite and `rows c >= least`; c = 0 is feasible.

    The alternating direction method of multipliers with a copy of the matrix and one of the rows; penalty one in units
    of the distance itself. What comes out is pulled towards c = 0 until it is feasible.
    """
    flat = free.reshape(len(free), -1)
    inverse = np.linalg.inv(2.0 * np.eye(len(free)) + rows.T @ rows)  # I + I, the free directions are orthonormal
    c, size = np.zeros_like(wanted), max(float(np.abs(S).max()), 1e-300)
    dual_S, dual_rows = np.zeros_like(S), np.zeros(len(rows))
    for _ in range(_STEPS):
        copy_S, copy_rows = (
            _positive_part(S + np.tensordot(c, free, 1) + dual_S),
            np.maximum(rows @ c + dual_rows, least),
        )
        pulled = flat @ (copy_S - dual_S - S).ravel() + rows.T @ (copy_rows - dual_rows)
        new = inverse @ (wanted + pulled)
        gap_S, gap_rows = S + np.tensordot(new, free, 1) - copy_S, rows @ new - copy_rows
        dual_S, dual_rows = dual_S + gap_S, dual_rows + gap_rows
        moved = max(np.abs(new - c).max(), np.abs(gap_S).max(), np.abs(gap_rows).max(initial=0.0))
        c = new
        if moved <= _TOLERANCE * size:
            break
    return c * _feasible_share(c, free, S, rows, least, size)


def _feasible_share(c: Array, free: Array, S: Array, rows: Array, least: Array, size: float) -> float:
    """The largest share of c, of 1, 1/2, 1/4, ..., that is feasible up to rounding of the solution itself."""
    step, share, slack = np.tensordot(c, free, 1), 1.0, 10 * RANK_TOLERANCE * size
    while share > _TOLERANCE:
        lowest = np.linalg.eigvalsh(S + share * step)[0]
        if lowest >= -slack and (share * rows @ c >= least - slack).all():
            return share
        share /= 2
    return 0.0


def _positive_part(M: Array) -> Array:
    values, vectors = np.linalg.eigh((M + M.T) / 2)
    return (vectors * np.maximum(values, 0.0)) @ vectors.T


__all__ = ["nearest_nuclear_optimum"]
