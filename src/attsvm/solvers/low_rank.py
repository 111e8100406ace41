"""Nuclear norm under `rank(W) <= m`, a non-convex constraint: a local optimum over the factors `V = A Bᵀ`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attsvm.problem import Reduced

Array = np.ndarray

METHOD = "low-rank factors"
STARTS = 48  # over the rank: the lower it is, the more local optima there are


@dataclass(frozen=True, eq=False)
class LowRank:
    """The best feasible `V (p, q)` over all starts."""

    V: Float[Array, "p q"]
    iterations: int


def solve(rows: Reduced, V: Float[Array, "p q"], max_rank: int) -> LowRank | None:
    """Minimise `½(‖A‖_F² + ‖B‖_F²)`, at its best `‖ABᵀ‖_*`, from the truncated V and seeded perturbations.

    None where no start ends feasible.
    """
    rng = np.random.default_rng(0)
    found, iterations = None, 0
    U, sigma, Wt = np.linalg.svd(V, full_matrices=False)
    root = np.sqrt(sigma[:max_rank])
    truncated = np.concatenate([U[:, :max_rank] * root, Wt[:max_rank].T * root])
    for start in range(max(4, STARTS // max_rank)):
        size = 0.0 if start == 0 else (0.3 if start % 2 else 1.0) * root.mean()
        noise = size * rng.standard_normal(truncated.shape)
        candidate, steps = _descend(rows, truncated + noise)
        iterations += steps
        if candidate is not None and (found is None or _nuclear(candidate) < _nuclear(found)):
            found = candidate
    return None if found is None else LowRank(found, iterations)


def _descend(rows: Reduced, start: Array) -> tuple[Array | None, int]:
    p, shape, z, free = rows.delta.shape[1], start.shape, rows.z, ~rows.equality

    def margins(x: Array) -> Array:
        F = x.reshape(shape)
        return np.sum((rows.delta @ F[:p]) * (z @ F[p:]), axis=1)

    def slope(x: Array) -> Array:
        F = x.reshape(shape)
        keys, queries = rows.delta @ F[:p], z @ F[p:]
        left, right = rows.delta[:, :, None] * queries[:, None, :], z[:, :, None] * keys[:, None, :]
        return np.concatenate([left, right], axis=1).reshape(len(z), -1)

    from scipy.optimize import minimize  # here, so that other solves need not wait for the import

    constraints = [{"type": "ineq", "fun": lambda x: margins(x)[free] - 1.0, "jac": lambda x: slope(x)[free]}]
    if rows.equality.any():
        constraints.append({"type": "eq", "fun": lambda x: margins(x)[~free], "jac": lambda x: slope(x)[~free]})
    result = minimize(
        lambda x: 0.5 * x @ x,
        start.ravel(),
        jac=lambda x: x,
        method="SLSQP",
        constraints=constraints,
        options={"maxiter": 300, "ftol": 1e-12},
    )
    reach = margins(result.x)
    F = result.x.reshape(shape)
    if not np.isfinite(reach).all() or reach[free].min() <= 0.5 or np.abs(reach[~free]).max(initial=0.0) > 1e-9:
        return None, int(result.nit)
    return F[:p] @ F[p:].T / reach[free].min(), int(result.nit)


def _nuclear(V: Array) -> float:
    return float(np.linalg.norm(V, "nuc"))
