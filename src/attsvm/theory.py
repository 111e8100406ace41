"""Optimality of a choice of tokens, reported as measured margins and never as bare booleans."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from attsvm.data import TokenData
from attsvm.errors import InputError
from attsvm.selection import scores
from attsvm.solution import Solution

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class LocalOptimality:
    """Local optimality of the chosen tokens (Definition 2 of arXiv 2308.16898), with the inequalities it rests on.

    Attributes:
        tokens: `(s, 3)`, the support tokens of the solution, as (example, query, token).
        margins: `(s,)`, `γ_{iα_i} - γ_it`: how much better the chosen token scores than each support token.
        globally_optimal: the chosen tokens are `opt`: they score best of all visible tokens.
    """

    tokens: Int[Array, "s 3"]
    margins: Float[Array, " s"]
    globally_optimal: bool

    @property
    def smallest(self) -> float:
        """The smallest margin, inf where nothing is tight."""
        return float(self.margins.min(initial=np.inf))

    @property
    def violated(self) -> Int[Array, "v 3"]:
        """The support tokens that score at least as well as the chosen one."""
        return self.tokens[self.margins <= 0]

    def __bool__(self) -> bool:
        return bool((self.margins > 0).all())


def local_optimality(data: TokenData, solution: Solution) -> LocalOptimality:
    """Are the chosen tokens of this attention SVM locally optimal?

    Gradient descent on W converges in direction only to `W_mm(α)` of locally optimal α (Theorems 4 and 5): the chosen
    token must score higher than each of its support tokens, `γ_{iα_i} > γ_it`. Tokens that are not support tokens do
    not matter, however well they score. For gradient descent on (K, Q) the support tokens are those of `W_mm*(α)`.

    Args:
        data: the examples, with a linear head.
        solution: `attsvm.solve(data, α)` in the norm that the training prefers, one chosen token per query.

    Raises:
        InputError: no weight (not separable), several chosen tokens per query, no linear head.
    """
    if solution.support is None:
        raise InputError(
            f"Local optimality is a matter of the support tokens of α, and this α has none: {solution.message} "
            "Give the solution of attsvm.solve for tokens that can be separated."
        )
    alpha = solution.problem.selection.indices
    gamma = scores(data)
    chosen = np.take_along_axis(gamma, np.maximum(alpha, 0)[:, :, None], axis=-1)
    example, query, token = solution.support.T
    best = gamma.max(-1) <= chosen[:, :, 0]
    return LocalOptimality(
        tokens=solution.support,
        margins=chosen[example, query, 0] - gamma[example, query, token],
        globally_optimal=bool(best[data.active].all()),
    )
