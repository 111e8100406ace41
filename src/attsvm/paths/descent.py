"""Spectral projected gradient in a ball, many starts at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from attsvm.paths.objective import Objective, Point

Array = np.ndarray
_MEMORY = 10  # values a new one is compared with: steps need not descend one by one
_SUFFICIENT = 1e-4  # share of the predicted decrease that is demanded
_HALVINGS = 40
_ROUNDING = 8 * np.finfo(float).eps
_PATIENCE = 100  # steps within which a start must lower its value by more than rounding, or its residual
_LESS = 0.8


@dataclass(frozen=True)
class Descent:
    """Where the starts ended: weights, the objective there, stationarity residuals, steps taken."""

    V: Float[Array, "N L"]
    point: Point
    residual: Float[Array, " L"]
    iterations: Int[Array, " L"]


def project(V: Float[Array, "N L"], radius: float) -> Float[Array, "N L"]:
    """The nearest columns of norm at most `radius`."""
    return V * (radius / np.maximum(np.linalg.norm(V, axis=0), radius))


def stationarity(V: Float[Array, "N L"], point: Point, radius: float) -> Float[Array, " L"]:
    """`‖P(V - R g/s) - V‖ / R`, s the sum of the sizes of the terms of g: zero at stationary points of the ball alone.

    Unlike with g itself, its size says how far from stationary V is even where g is 1e-300.
    """
    return np.linalg.norm(project(V - radius * point.relative, radius) - V, axis=0) / radius


def descend(objective: Objective, V: Float[Array, "N L"], radius: float, steps: int, tolerance: float) -> Descent:
    """Minimise within the ball from every column of V, until its residual is at most `tolerance`, or for `steps` steps.

    Steps have the lengths of Barzilai and Borwein; one is halved until the value falls below the largest of the last
    `_MEMORY` values. A start also ends where neither value nor residual have come down for `_PATIENCE` steps: on a
    plateau, or where rounding forbids more.
    """
    V = project(V, radius)
    point = objective(V)
    recent = np.repeat(point.value[None], _MEMORY, axis=0)
    rate = radius / _positive(np.linalg.norm(point.gradient, axis=0))
    active, iterations = np.ones(V.shape[1], dtype=bool), np.zeros(V.shape[1], dtype=np.int64)
    lowest = np.stack([point.value, stationarity(V, point, radius)])
    for k in range(steps):
        residual = stationarity(V, point, radius)
        if k and k % _PATIENCE == 0:
            now = np.stack([point.value, residual])
            limit = np.stack([lowest[0] - 1e3 * _ROUNDING * np.abs(lowest[0]), _LESS * lowest[1]])
            active = active & (now < limit).any(0)
            lowest = np.minimum(lowest, now)
        active = active & (residual > tolerance)
        if not active.any():
            break
        towards = project(V - rate * point.gradient, radius) - V
        moved, V_new, new = _search(objective, V, point, towards, recent.max(0), active)
        change, turn = V_new - V, new.gradient - point.gradient
        rate = _rate(rate, change, turn, radius / _positive(np.linalg.norm(new.gradient, axis=0)))
        V, point, active = V_new, new, moved
        iterations += active
        recent[k % _MEMORY] = np.where(active, point.value, recent[k % _MEMORY])
    return Descent(V, point, stationarity(V, point, radius), iterations)


def _search(
    objective: Objective,
    V: Float[Array, "N L"],
    point: Point,
    towards: Float[Array, "N L"],
    ceiling: Float[Array, " L"],
    active: Bool[Array, " L"],
) -> tuple[Bool[Array, " L"], Float[Array, "N L"], Point]:
    """Which columns moved, and where to; the others stay."""
    slope = (point.gradient * towards).sum(0)
    share, good = np.where(active, 1.0, 0.0), ~active
    V_new, new = V, point
    for _ in range(_HALVINGS):
        V_new = V + share * towards
        new = objective(V_new)
        limit = ceiling + _SUFFICIENT * share * slope + _ROUNDING * np.abs(ceiling)
        good = (new.value <= limit) | ~active
        if good.all():
            return active, V_new, new
        share = np.where(good, share, share / 2)
    fields = {name: np.where(good, getattr(new, name), getattr(point, name)) for name in new.__dataclass_fields__}
    return active & good, np.where(good, V_new, V), Point(**fields)


def _rate(rate: Array, change: Array, turn: Array, reach: Array) -> Float[Array, " L"]:
    """`s·s / s·y`, within 1e-8 to 1e8 of the step that crosses the ball; longest where the function is not convex."""
    bend = (change * turn).sum(0)
    length = (change**2).sum(0)
    new = np.where(bend > 0, length / _positive(bend), np.inf)
    return np.where(length > 0, np.clip(new, 1e-8 * reach, 1e8 * reach), rate)


def _positive(x: Array) -> Array:
    return np.where(x > 0, x, 1.0)


__all__ = ["Descent", "descend", "project", "stationarity"]
