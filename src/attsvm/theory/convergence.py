"""Conditions for global convergence, measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from attsvm.attention import gradient
from attsvm.data import TokenData
from attsvm.errors import InputError
from attsvm.problem import build
from attsvm.selection import as_selection, optimal, scores

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class ScoreSpread:
    """Result of `score_spread`, one number per query, NaN for padding.

    Attributes:
        spread: `(n, m)`, largest less smallest score of the tokens that are not optimal.
        gap: `(n, m)`, score of the optimal token less the best of the others; inf where there is no other.
        tolerance: the relative spread up to which scores count as equal.
    """

    spread: Float[Array, "n m"]
    gap: Float[Array, "n m"]
    tolerance: float

    @property
    def relative(self) -> Float[Array, "n m"]:
        """`spread / gap`, free of scale."""
        return self.spread / self.gap

    @property
    def largest(self) -> float:
        """The largest relative spread."""
        return float(np.nanmax(self.relative))

    def __bool__(self) -> bool:
        return self.largest <= self.tolerance


def score_spread(data: TokenData, *, tolerance: float = 1e-9) -> ScoreSpread:
    """How equal are the scores of the tokens that are not optimal?

    Global convergence of gradient descent in arXiv 2308.16898 assumes `γ_it = γ_iτ` for all `t, τ ≠ opt_i` (scores:
    Definition 1). True where every spread is at most `tolerance` of the gap to the optimal token. The condition is
    sufficient: training often ends at `opt` without it.

    Args:
        data: the examples, with a linear head.
        tolerance: what counts as equal; non-negative.

    Raises:
        InputError: no linear head, a tolerance that is none.
        TieError: two tokens share the best score.
    """
    if not 0 <= tolerance < np.inf:
        raise InputError(f"tolerance must be non-negative and finite; got {tolerance!r}.")
    gamma, best = scores(data), optimal(data).sets
    others = data.mask & ~best
    high = np.where(others, gamma, -np.inf).max(-1)
    low = np.where(others, gamma, np.inf).min(-1)
    top = gamma.max(-1)
    with np.errstate(invalid="ignore"):
        spread = np.where(others.any(-1), high - low, 0.0)
        gap = top - high
    return ScoreSpread(
        np.where(data.active, spread, np.nan), np.where(data.active, gap, np.nan), tolerance=float(tolerance)
    )


@dataclass(frozen=True, eq=False)
class FavourableStart:
    """Result of `favourable_start`.

    Attributes:
        values: `(K,)`, `(x_opt - x_t)ᵀ (-∇L(W_0)) z / ‖∇L(W_0)‖_F`, by row: how fast each margin grows with the first
            normalised step. Their signs are those of the paper's condition, whatever the size of the gradient.
        rows: `(K, 3)`, example, query and token t of each.
        log_norm: natural logarithm of `‖∇L(W_0)‖_F`, -inf where it is exactly zero (`values` are then zero).
    """

    values: Float[Array, " K"]
    rows: Int[Array, "K 3"]
    log_norm: float

    @property
    def smallest(self) -> float:
        """The smallest value: the condition asks that it be positive."""
        return float(self.values.min())

    @property
    def where(self) -> tuple[int, int, int]:
        """Example, query and token of the smallest value."""
        example, query, token = (int(j) for j in self.rows[int(self.values.argmin())])
        return example, query, token

    def __bool__(self) -> bool:
        return self.smallest > 0


def favourable_start(
    data: TokenData,
    W0: Float[Array, "d_k d_q"],
    *,
    chosen: Any = "optimal",
    loss: str | Callable[[Any], Any] = "logistic",
    head: Callable[[Any], Any] | None = None,
) -> FavourableStart:
    """Does the first step of gradient descent raise the margin of the optimal token over every other?

    Global convergence of gradient descent in arXiv 2308.16898 assumes, beside equal scores of the other tokens, a good
    initial direction: `min_{i, t ≠ opt_i} (x_{i opt_i} - x_it)ᵀ (-∇L(W_0)) z_i > 0`. The exact log-domain gradient is
    used, so that a saturated `W_0` is answered too.

    Args:
        data: the examples, with a prediction head.
        W0: `(d_k, d_q)`, the initial weight.
        chosen: the tokens to prefer; `"optimal"` needs a linear head.
        loss: as in `attsvm.train`.
        head: as in `attsvm.train`; default: that of the data.

    Raises:
        InputError: a weight of the wrong shape, no head, unusable `chosen`.
        TieError: two tokens share the best score.
    """
    W0 = np.asarray(W0, dtype=np.float64)
    problem = build(data, as_selection(data, chosen))
    direction, log_scale = gradient(data, W0, loss=loss, head=head)
    length = float(np.linalg.norm(direction))
    values = problem.margins(-direction / length) if length > 0 else np.zeros(problem.n_rows)
    free = problem.separates
    return FavourableStart(
        values=values[free],
        rows=problem.rows[free][:, [0, 1, 3]],
        log_norm=float(log_scale) + float(np.log(length)) if length > 0 else -np.inf,
    )
