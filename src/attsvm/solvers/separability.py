"""Can the chosen tokens be separated at all?"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from attsvm import verify
from attsvm.data import TokenData
from attsvm.errors import NotSolvedError
from attsvm.problem import build, reduce
from attsvm.selection import as_selection
from attsvm.solution import Farkas, Solution, Status
from attsvm.solvers import explain, least_distance

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Separability:
    """Answer of `is_separable`, true or false in a condition, with its proof.

    Attributes:
        separable: whether some W has `δ_kᵀWz_k > 0` on every separation row (and `= 0` on equalities).
        witness: such a W `(d_k, d_q)`, of least Frobenius norm for margin one; None where not separable.
        farkas: the checked proof that none exists; None where separable.
        violation: how far the witness falls short of margin one; None where not separable.
    """

    separable: bool
    witness: Float[Array, "d_k d_q"] | None
    farkas: Farkas | None
    violation: float | None

    def __bool__(self) -> bool:
        return self.separable


def is_separable(data: TokenData, chosen: Any = "optimal") -> Separability:
    """Decide separability: the cheap half of `solve`, with a witness or a checked Farkas vector.

    Args:
        data: the examples.
        chosen: what `solve` takes.

    Raises:
        InputError: unusable data or selection.
        NotSolvedError: rounding leaves the question open: neither the witness nor the Farkas vector passes its check.
    """
    start = time.perf_counter()
    problem = build(data, as_selection(data, chosen))
    reduced = reduce(problem)
    base = least_distance.solve(reduced)
    if base.V is not None:
        W = reduced.lift(base.V)
        violation = verify.violation(problem, W)
        if violation < 0.5:  # any positive margin separates
            return Separability(True, W, None, violation)
    else:
        farkas = verify.check_farkas(problem, base.u)
        if farkas is not None:
            return Separability(False, None, farkas, None)
    seconds = time.perf_counter() - start
    raise NotSolvedError(
        Solution.without_weight(
            problem, Status.UNKNOWN, explain.OPEN, "fro", least_distance.METHOD, base.iterations, seconds
        )
    )
