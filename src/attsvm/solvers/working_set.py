"""Many rows: solve for a few, look at all of them, add those that are violated, until none is.

Rows left out have multiplier zero, so multipliers, certificates and Farkas vectors of the few are those of all.
The value rises with every round and rows with multiplier zero are dropped again: each working set occurs once.
"""

from __future__ import annotations

import numpy as np

from attsvm.problem import Reduced
from attsvm.solvers import least_distance
from attsvm.solvers.least_distance import LeastDistance

Array = np.ndarray

METHOD = "least distance, working sets"
WORTHWHILE = 4000  # rows from which looking at all of them at once costs more than a few rounds
FIRST = 400
VIOLATION = 1e-10
MAX_ROUNDS = 200


def solve(rows: Reduced) -> LeastDistance:
    """The Frobenius solution over all rows, `V (p, q)` and `u (K,)`, or the Farkas vector."""
    working = _first(rows)
    iterations, V, u = 0, np.zeros(rows.spans), np.zeros(len(rows.pair))
    for _ in range(MAX_ROUNDS):
        part = least_distance.solve(rows.take(working))
        iterations += part.iterations
        u = np.zeros(len(rows.pair))
        u[working] = part.u
        if part.V is None:
            return LeastDistance(None, u, iterations)
        V = part.V
        short = rows.target - rows.margins(V)
        short[working] = 0.0
        violated = np.flatnonzero(np.where(rows.equality, 0.0, short) > VIOLATION)
        if not len(violated):
            return LeastDistance(V, u, iterations)
        worst = violated[np.argsort(-short[violated])[: max(FIRST, len(working) // 2)]]
        kept = working[(part.u != 0) | rows.equality[working]]
        working = np.union1d(kept, worst)
    return LeastDistance(V, u, iterations)


def _first(rows: Reduced) -> Array:
    """All equalities, and the separation rows that the average row serves worst."""
    average = rows.delta.T @ (rows.target[:, None] * rows.z)
    reach = np.where(rows.equality, -np.inf, rows.margins(average))
    count = FIRST + int(rows.equality.sum())
    return np.sort(np.argpartition(reach, count - 1)[:count])
