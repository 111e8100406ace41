"""Cones around the directions of attention SVMs, and the gradient inside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from attsvm.attention import gradient
from attsvm.compare import correlation
from attsvm.data import TokenData
from attsvm.errors import InputError
from attsvm.solution import Solution

Array = np.ndarray

WIDEST = 2.0  # 1 - corr of opposite directions: the cone that is the whole space
GRID = 24  # depths at which the cone is searched before bisection
BISECTIONS = 30


@dataclass(frozen=True)
class Cone:
    """Where a weight lies with respect to the cone `C_{μ,R}(A) = {W : ‖W‖_F >= R, corr(W, A) >= 1 - μ}`.

    Attributes:
        correlation: `corr(W, A)`.
        smallest_mu: `1 - corr(W, A)`, from 0 to 2: W lies in the cones (of small enough R) with at least this μ.
            Computed from the difference of directions, so it keeps its digits where the correlation rounds to 1.
        norm: `‖W‖_F`.
        mu: of the cone asked for.
        radius: R, likewise.
    """

    correlation: float
    smallest_mu: float
    norm: float
    mu: float
    radius: float

    def __bool__(self) -> bool:
        return self.smallest_mu <= self.mu and self.norm >= self.radius


def cone(W: Float[Array, "d_k d_q"], A: Float[Array, "d_k d_q"], *, mu: float, radius: float = 0.0) -> Cone:
    """Does W lie in the cone `C_{μ,R}(A)` of arXiv 2308.16898 (local convergence)?

    Args:
        W: `(d_k, d_q)`, not zero.
        A: likewise, such as `W_mm(α)`.
        mu: μ, from 0 to 2.
        radius: R.

    Raises:
        InputError: different shapes, a zero or not finite matrix, μ out of range, a negative radius.
    """
    _check_cone(mu, radius)
    W, A = (np.asarray(M, dtype=np.float64) for M in (W, A))
    corr = float(correlation(W, A))
    if not np.isfinite(corr):
        raise InputError("A zero matrix, or one that is not finite, has no direction; give W and A that have one.")
    apart = W / np.linalg.norm(W) - A / np.linalg.norm(A)
    return Cone(corr, 0.5 * float((apart**2).sum()), float(np.linalg.norm(W)), float(mu), float(radius))


@dataclass(frozen=True, eq=False)
class ConeGradient:
    """Result of `gradient_in_cone`: the correlation of `-∇L(W)` with `W_mm` at sampled points of a cone.

    Attributes:
        correlations: `(S,)`, `corr(-∇L(W), W_mm)`; NaN where the gradient is exactly zero.
        depths: `(S,)`, `1 - corr(W, W_mm)` of the points.
        mu: of the cone.
        radius: `‖W‖_F` of the points.
        worst: `(d_k, d_q)`, the point of the smallest correlation.
        seed: of the sample.
    """

    correlations: Float[Array, " S"]
    depths: Float[Array, " S"]
    mu: float
    radius: float
    worst: Float[Array, "d_k d_q"]
    seed: int

    @property
    def smallest(self) -> float:
        """The smallest correlation found."""
        return float(np.nan_to_num(self.correlations, nan=0.0).min())

    @property
    def share(self) -> float:
        """Share of the points where the correlation is positive."""
        return float((self.correlations > 0).mean())

    def __bool__(self) -> bool:
        return self.share == 1.0


def gradient_in_cone(
    data: TokenData,
    solution: Solution,
    *,
    mu: float,
    radius: float,
    samples: int = 200,
    seed: int = 0,
    loss: str | Callable[[Any], Any] = "logistic",
    head: Callable[[Any], Any] | None = None,
) -> ConeGradient:
    """Does a gradient step point towards `W_mm` everywhere in the cone `C_{μ,R}(W_mm)`?

    The local convergence of arXiv 2308.16898 rests on `<-∇L(W), W_mm> > 0` throughout a cone around a locally optimal
    direction, for small enough μ and large enough R. This measures it on the sphere of radius R, where the gradient is
    exact however saturated: evidence over the points tried, not a proof. True where all of them agree.

    Points: `samples` with a depth `1 - corr` uniform in [0, μ] and a random direction at right angles to `W_mm`; and on
    the edge of the cone one point per row of the attention SVM, in the direction that loses its margin fastest. Random
    directions alone would hardly move any margin in high dimension.

    Args:
        data: the examples.
        solution: the attention SVM at the axis of the cone.
        mu: μ, from 0 to 2 (the whole space).
        radius: R, positive.
        samples: number of random points.
        seed: of NumPy's default generator.
        loss: as in `attsvm.train`.
        head: as in `attsvm.train`; default: that of the data.

    Raises:
        InputError: a solution without a weight, no head, options out of range.
    """
    _check_cone(mu, radius, positive=True)
    axis, sideways, seed = _directions(solution, samples, seed)
    depths = np.full(len(sideways), float(mu))
    depths[:samples] = np.random.default_rng([seed, 1]).uniform(0.0, mu, samples)
    points = _points(axis, sideways, depths, radius)
    correlations = _pull(data, points, axis, loss, head)
    worst = points[int(np.nan_to_num(correlations, nan=0.0).argmin())]
    return ConeGradient(correlations, depths, float(mu), float(radius), worst, seed)


@dataclass(frozen=True, eq=False)
class LargestCone:
    """Result of `largest_cone`.

    Attributes:
        mu: the largest depth `1 - corr(W, W_mm)` up to which the gradient agreed along every direction tried; 2 is the
            whole space, 0 nothing.
        smallest: the smallest `corr(-∇L(W), W_mm)` found up to that depth; NaN where `mu` is 0.
        failure: `(d_k, d_q)`, the point just beyond where the correlation is not positive; None where there is none.
        radius: `‖W‖_F` of all points.
        directions: how many directions were tried.
        seed: of the directions.
    """

    mu: float
    smallest: float
    failure: Float[Array, "d_k d_q"] | None
    radius: float
    directions: int
    seed: int

    def __bool__(self) -> bool:
        return self.mu > 0


def largest_cone(
    data: TokenData,
    solution: Solution,
    *,
    radius: float,
    samples: int = 200,
    seed: int = 0,
    loss: str | Callable[[Any], Any] = "logistic",
    head: Callable[[Any], Any] | None = None,
) -> LargestCone:
    """The largest μ for which the gradient points towards `W_mm` at every sampled point of `C_{μ,R}(W_mm)`.

    The directions are those of `gradient_in_cone`, each followed outwards over a grid of depths (1e-3 to 2) and then
    by bisection. The true μ can only be smaller: directions, and depths between those of the
    grid, that were not tried may fail earlier.

    Args:
        data: the examples.
        solution: the attention SVM at the axis.
        radius: R, positive.
        samples: number of random directions.
        seed: of NumPy's default generator.
        loss: as in `attsvm.train`.
        head: as in `attsvm.train`.

    Raises:
        InputError: as in `gradient_in_cone`.
    """
    _check_cone(0.0, radius, positive=True)
    axis, sideways, seed = _directions(solution, samples, seed)

    def probe(depth: float) -> tuple[float, Array]:
        points = _points(axis, sideways, np.full(len(sideways), depth), radius)
        pull = np.nan_to_num(_pull(data, points, axis, loss, head), nan=0.0)
        return float(pull.min()), points[int(pull.argmin())]

    good, bad, smallest, failure = 0.0, None, np.inf, None
    for depth in (0.0, *np.geomspace(1e-3, WIDEST, GRID)):
        worst, point = probe(depth)
        if worst <= 0:
            bad, failure = float(depth), point
            break
        good, smallest = float(depth), min(smallest, worst)
    for _ in range(BISECTIONS if bad else 0):
        assert bad is not None
        depth = 0.5 * (good + bad)
        worst, point = probe(depth)
        if worst > 0:
            good, smallest = depth, min(smallest, worst)
        else:
            bad, failure = depth, point
    smallest = smallest if np.isfinite(smallest) else np.nan
    return LargestCone(good, smallest, failure, float(radius), len(sideways), seed)


def _check_cone(mu: float, radius: float, *, positive: bool = False) -> None:
    if not 0 <= mu <= WIDEST:
        raise InputError(f"mu must be from 0 (the direction itself) to 2 (the whole space); got {mu!r}.")
    if not (0 <= radius < np.inf) or (positive and radius == 0):
        raise InputError(f"radius must be {'positive' if positive else 'non-negative'} and finite; got {radius!r}.")


def _directions(solution: Solution, samples: int, seed: int) -> tuple[Array, Array, int]:
    """The axis, and unit directions at right angles to it: random ones, then one against every row."""
    for name, value, least in (("samples", samples, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise InputError(f"{name} must be an integer of at least {least}; got {value!r}.")
    if solution.W is None:
        raise InputError(f"This solution has no weight to put a cone around: {solution.message}")
    problem, axis = solution.problem, np.asarray(solution.W) / np.linalg.norm(np.asarray(solution.W))
    free = problem.separates
    rows = -problem.delta[free][:, :, None] * problem.queries[problem.pair[free]][:, None, :]
    random = np.random.default_rng([int(seed), 0]).standard_normal((int(samples), *axis.shape))
    sideways = np.concatenate([random, rows])
    for _ in range(2):
        sideways = sideways / np.linalg.norm(sideways, axis=(1, 2), keepdims=True)
        sideways = sideways - (sideways * axis).sum((1, 2), keepdims=True) * axis
    length = np.linalg.norm(sideways, axis=(1, 2), keepdims=True)
    sideways = sideways[length[:, 0, 0] > 0.1]  # a row along the axis leaves nothing but rounding
    return axis, sideways / np.linalg.norm(sideways, axis=(1, 2), keepdims=True), int(seed)


def _points(axis: Array, sideways: Array, depths: Array, radius: float) -> Float[Array, "S d_k d_q"]:
    """Points of norm `radius` with `1 - corr(W, axis)` as given."""
    along, across = 1.0 - depths, np.sqrt(depths * (2.0 - depths))
    return radius * (along[:, None, None] * axis + across[:, None, None] * sideways)


def _pull(data: TokenData, points: Array, axis: Array, loss: Any, head: Any) -> Float[Array, " S"]:
    """`corr(-∇L, axis)`; the log-domain gradient gives the direction, which is all a correlation needs."""
    direction, _ = gradient(data, points, loss=loss, head=head)
    return np.asarray(correlation(-direction, axis))
