"""A trained weight as a finite part and a direction: `W ≈ W_fin + R W_mm`, eq. (SVMeq) of arXiv 2308.16898."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float

from attsvm import attention
from attsvm.compare import correlation
from attsvm.data import TokenData
from attsvm.errors import InputError, TieError
from attsvm.prediction import HeadKind, gather_heads
from attsvm.problem import Problem, build
from attsvm.selection import Selection, as_selection, attended
from attsvm.solution import Solution
from attsvm.solvers import solve

Array = np.ndarray

VARIANTS = ("paper", "dropped", "flat")
FLAT_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class Fit:
    """One choice of R.

    Attributes:
        R: length along W_mm; infinite where W_mm alone correlates best.
        W: `W_SVMeq = W_fin + R W_mm`, or W_mm itself where R is infinite.
        correlation: of `W_SVMeq` with the trained W.
        residual: `‖W - W_SVMeq‖_F / ‖W‖_F`; NaN where R is infinite.
        map_difference: largest difference between an entry of the predicted attention map and the trained one.
        total_variation: largest total variation distance between the two maps of a query.
    """

    R: float
    W: Float[Array, "d_k d_q"]
    correlation: float
    residual: float
    map_difference: float
    total_variation: float


@dataclass(frozen=True, eq=False)
class Decomposition:
    """Result of `attsvm.decompose`.

    Attributes:
        variant: what became of the rows of flat queries: `"paper"` (ordinary rows, `>= 1`), `"dropped"` (none, nor
            equalities) or `"flat"` (`>= 0`; equalities stay).
        flat: `(n, m)`, the flat queries.
        selection: the chosen sets.
        W: `(d_k, d_q)`, the trained weight.
        W_fin: the least Frobenius norm with the trained logit differences inside the chosen sets; zero where every set
            has one token.
        solution: the generalised attention SVM; its `W` is W_mm.
        single: the attention SVM of the most attended token of every query; None where that is a tie.
        least_squares: R that minimises `‖W - W_fin - R W_mm‖_F`.
        best_correlation: R that maximises `corr(W, W_fin + R W_mm)`. The two agree where W_mm keeps all equalities:
            it is then orthogonal to W_fin, and W_fin is a projection of W.
    """

    variant: str
    flat: Bool[Array, "n m"]
    selection: Selection
    W: Float[Array, "d_k d_q"]
    W_fin: Float[Array, "d_k d_q"]
    solution: Solution
    single: Solution | None
    least_squares: Fit
    best_correlation: Fit

    @property
    def W_mm(self) -> Float[Array, "d_k d_q"]:
        """The direction: the generalised attention SVM."""
        assert self.solution.W is not None
        return self.solution.W

    @property
    def W_SVMeq(self) -> Float[Array, "d_k d_q"]:
        """`W_fin + R W_mm` with R by least squares."""
        return self.least_squares.W

    @property
    def correlations(self) -> dict[str, float]:
        """Correlation with the trained W of `W_SVMeq`, `W_mm`, `W_fin` and the one-token SVM; NaN where one is zero."""
        single = np.nan if self.single is None or self.single.W is None else correlation(self.W, self.single.W)
        return {
            "W_SVMeq": self.least_squares.correlation,
            "W_mm": float(correlation(self.W, self.W_mm)),
            "W_fin": float(correlation(self.W, self.W_fin)),
            "single": float(single),
        }

    def summary(self) -> dict[str, Any]:
        """Plain values of everything but the arrays, ready for JSON."""
        plain = ("R", "correlation", "residual", "map_difference", "total_variation")
        return {
            "variant": self.variant,
            "flat_queries": int(self.flat.sum()),
            "set_sizes": self.selection.sizes.tolist(),
            "correlations": self.correlations,
            "gap": None if self.solution.certificate is None else self.solution.certificate.gap,
            "least_squares": {name: getattr(self.least_squares, name) for name in plain},
            "best_correlation": {name: getattr(self.best_correlation, name) for name in plain},
        }

    def __repr__(self) -> str:
        fit, several = self.least_squares, int((self.selection.sizes > 1).sum())
        return (
            f"Decomposition({self.variant}, {several} queries with several tokens, {int(self.flat.sum())} flat, "
            f"R {fit.R:.4g}, correlation {fit.correlation:.6g}, residual {fit.residual:.1e}, "
            f"largest map difference {fit.map_difference:.1e})"
        )


def decompose(
    W: Any,
    data: TokenData,
    chosen: Any,
    *,
    norm: str | float | int = "fro",
    flat: Any = None,
    variant: str | None = None,
) -> Decomposition:
    """Decompose a trained weight as section 6 of arXiv 2308.16898 does, and measure how well that predicts it.

    Args:
        W: `(d_k, d_q)`, finite and not zero.
        data: what it was trained on.
        chosen: the chosen sets, as `attsvm.solve` takes them; see `by_threshold`, `by_mass`, `by_largest_gap`.
        norm: of W_mm and of the one-token SVM, as in `attsvm.solve`.
        flat: `(n, m)` or `(n,)` booleans, such as `flat_queries(data, W)`. Such a query exerts no force, which the
            paper does not consider.
        variant: `"paper"` keeps the rows of flat queries as they are, `"dropped"` leaves these queries out of W_mm,
            `"flat"` makes their rows `>= 0`. Default: `"flat"` where `flat` is given.

    Returns:
        The parts, both fits of R, correlations and map differences.

    Raises:
        InputError: unusable W, sets or options, or no query left that is not flat.
        NotSeparableError: no W_mm.
    """
    W = _checked(W, data)
    if not W.any():
        raise InputError("W is zero, which has no direction to decompose. Give a trained weight.")
    selection = as_selection(data, chosen)
    variant = _variant(variant, flat)
    still = np.zeros((data.n, data.m), dtype=bool) if flat is None else np.asarray(flat, dtype=bool)
    if still.shape not in ((data.n, data.m), (data.n,)):
        raise InputError(f"flat has shape {still.shape}, expected {(data.n, data.m)} or ({data.n},).")
    still = np.broadcast_to(still.reshape(data.n, -1), (data.n, data.m))
    W_fin = finite_part(build(data, selection), W)
    solution = _direction(data, selection, norm, still, variant)
    assert solution.W is not None
    least, best = (_fit(R, W, W_fin, solution.W, data) for R in _lengths(W, W_fin, solution.W))
    single = _single(data, W, norm)
    return Decomposition(variant, still, selection, W, W_fin, solution, single, least, best)


def finite_part(problem: Problem, W: Float[Array, "d_k d_q"]) -> Float[Array, "d_k d_q"]:
    """W_fin: the least-norm weight with `(x_t - x_τ)ᵀ W z = log(s_t / s_τ)` inside the chosen sets.

    The right-hand sides are the logit differences of W, not logarithms of its map, which underflow; W_fin is thus the
    projection of W on the span of the equality rows.
    """
    delta, z = problem.delta[problem.equality], problem.queries[problem.pair[problem.equality]]
    gram = (delta @ delta.T) * (z @ z.T)
    part, inverse = np.zeros_like(W), np.linalg.pinv(gram, rcond=1e-13, hermitian=True)
    for _ in range(2):  # the second round refines the first
        u = inverse @ np.einsum("kd,kd->k", delta, z @ (W - part).T)
        part = part + delta.T @ (u[:, None] * z)
    return part


def flat_queries(
    data: TokenData,
    W: Any,
    head: Callable[[Any], Any] | None = None,
    *,
    tolerance: float = FLAT_TOLERANCE,
) -> Bool[Array, "n m"]:
    """Queries on which the prediction head exerts no force: its gradient is zero at their pooled token.

    What moves attention are differences of `x_tᵀ∇h(a)`. Flat are the queries whose largest difference among visible
    tokens is at most `tolerance` times that of all queries. A dead ReLU gives an exact zero. Padding queries, and those
    that see one token, count as flat.

    Args:
        data: the examples.
        W: `(d_k, d_q)`.
        head: default the data's own.
        tolerance: at least 0 and below 1.

    Raises:
        InputError: no head, a W that does not fit, or a tolerance out of range.
    """
    if not (isinstance(tolerance, int | float) and 0 <= tolerance < 1):
        raise InputError(f"tolerance: got {tolerance!r}, expected a number from 0 to below 1.")
    one = np.zeros(1, dtype=int)
    with jax.enable_x64(True):
        heads, inputs = gather_heads([data], head, one), attention.pack([data], one)
        numbers = attention.head_numbers(heads, inputs)
        softmax = attention.probabilities(data, _checked(W, data))[..., None]
        pull = np.asarray(_pull(softmax, inputs, numbers, kind=heads.kind))[..., 0]
    pull = np.broadcast_to(pull, data.mask.shape)  # a linear head's does not depend on the query
    highest, lowest = np.where(data.mask, pull, -np.inf).max(-1), np.where(data.mask, pull, np.inf).min(-1)
    force = np.where(data.active, highest - lowest, 0.0)
    return force <= tolerance * force.max()


@partial(jax.jit, static_argnames="kind")
def _pull(softmax: Any, inputs: attention.Inputs, numbers: Any, *, kind: HeadKind) -> Any:
    return attention.scorer(numbers, kind, inputs)(softmax)[1]


def _checked(W: Any, data: TokenData) -> Float[Array, "d_k d_q"]:
    W = np.asarray(W, dtype=np.float64)
    if W.shape != (data.d_k, data.d_q) or not np.isfinite(W).all():
        raise InputError(f"W must be finite and of shape {(data.d_k, data.d_q)}; got shape {W.shape}.")
    return W


def _variant(variant: str | None, flat: Any) -> str:
    variant = variant or ("paper" if flat is None else "flat")
    if variant not in VARIANTS:
        raise InputError(f"variant: got {variant!r}, expected one of {VARIANTS}.")
    if variant != "paper" and flat is None:
        raise InputError(f'variant="{variant}" needs to know the flat queries: give flat=flat_queries(data, W, head).')
    return variant


def _direction(data: TokenData, selection: Selection, norm: Any, flat: Array, variant: str) -> Solution:
    if variant == "dropped":
        data, selection = _without(data, selection, flat)
    return solve(data, selection, norm=norm, flat=flat if variant == "flat" else None)


def _without(data: TokenData, selection: Selection, flat: Array) -> tuple[TokenData, Selection]:
    live = ~flat & data.active
    kept = live.any(1)
    if not kept.any():
        raise InputError("Every query is flat, so that dropping them leaves nothing. Check the head.")
    mask = data.mask & live[..., None]
    rest = TokenData(data.tokens[kept], data.queries[kept], mask=mask[kept])
    return rest, Selection((selection.sets & live[..., None])[kept])


def _single(data: TokenData, W: Array, norm: Any) -> Solution | None:
    try:
        return solve(data, attended(data, W), norm=norm)
    except TieError:
        return None


def _lengths(W: Array, F: Array, M: Array) -> tuple[float, float]:
    """R by least squares, and R that maximises `(a + R b) / sqrt(f + 2 R x + R² m)`."""
    a, b, f, x, m = (float((A * B).sum()) for A, B in ((W, F), (W, M), (F, F), (F, M), (M, M)))
    least = (b - x) / m
    if f == 0:
        return least, least
    slope = a * m - b * x
    return least, (b * f - a * x) / slope if slope > 0 else np.inf


def _fit(R: float, W: Array, F: Array, M: Array, data: TokenData) -> Fit:
    predicted = F + R * M if np.isfinite(R) else M
    difference = np.abs(attention.probabilities(data, predicted) - attention.probabilities(data, W))
    return Fit(
        R=R,
        W=predicted,
        correlation=float(correlation(W, predicted)),
        residual=float(np.linalg.norm(W - predicted) / np.linalg.norm(W)) if np.isfinite(R) else np.nan,
        map_difference=float(difference.max()),
        total_variation=float(difference.sum(-1).max() / 2),
    )


__all__ = ["VARIANTS", "Decomposition", "Fit", "decompose", "finite_part", "flat_queries"]
