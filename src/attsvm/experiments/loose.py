"""A first-order solution of the nuclear attention SVM, stopped as early as such solvers are by default.

Only here to show where the published nuclear ranks come from. Never use it for a result: use `attsvm.solve`.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from attsvm import problem as rows_of
from attsvm.data import TokenData
from attsvm.selection import as_selection

Array = np.ndarray

MAX_ITERATIONS, CHECK = 400, 10


def first_order(data: TokenData, tolerance: float = 1e-5) -> Float[Array, "d_k d_q"]:
    """Alternating directions on `min ‖Z‖_*  s.t.  W = Z, A(W) = s, s >= 1`, ended at relative residuals of `tolerance`.

    Returns the copy `W`, which meets neither its low rank nor its rows exactly: what such a solver hands to its user.
    The W step solves `(I + AᵀA) W = B` through the Gram matrix, so d² features are not formed here either.
    """
    rows = rows_of.reduce(rows_of.build(data, as_selection(data, "optimal")))
    gram = rows.gram()
    inverse = np.linalg.inv(np.eye(len(gram)) + gram)
    W = Z = U = np.zeros((rows.delta.shape[1], rows.queries.shape[1]))
    s, v, step = np.ones(len(gram)), np.zeros(len(gram)), 1.0
    for count in range(1, MAX_ITERATIONS + 1):
        B = Z - U + _combine(rows, s - v)
        W = B - _combine(rows, inverse @ _margins(rows, B))
        reach, Z_old, s_old = _margins(rows, W), Z, s
        Z, s = _shrink(W + U, step), np.maximum(reach + v, 1.0)
        U, v = U + W - Z, v + reach - s
        if count % CHECK == 0:
            primal = _length(W - Z, reach - s) / _length(Z, s)
            dual = _length(Z - Z_old, s - s_old) / max(_length(U, v), np.finfo(float).tiny)
            if max(primal, dual) < tolerance:
                break
            if count % (5 * CHECK) == 0:  # keep both residuals in step
                change = float(np.clip(np.sqrt(dual / max(primal, 1e-300)), 0.2, 5.0))
                step, U, v = step * change, U * change, v * change
    return rows.lift(W)


def _length(A: Array, b: Array) -> float:
    return float(np.sqrt(np.sum(A * A) + b @ b))


def _shrink(V: Array, by: float) -> Array:
    left, sigma, right = np.linalg.svd(V, full_matrices=False)
    return (left * np.maximum(sigma - by, 0.0)) @ right


def _margins(rows: rows_of.Reduced, V: Array) -> Array:
    return np.sum(rows.delta * (rows.queries @ V.T)[rows.pair], axis=1)


def _combine(rows: rows_of.Reduced, u: Array) -> Array:
    return rows.delta.T @ (u[:, None] * rows.queries[rows.pair])
