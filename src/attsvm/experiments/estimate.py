"""Means and shares over seeds with their 95 % confidence intervals, and what they say about a published value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from attsvm.experiments.base import Verdict

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds between the ends of its confidence interval."""

    value: float
    low: float
    high: float

    def meets(self, published: float, error: float) -> bool:
        """Whether the interval and the published value with its reading error have a number in common."""
        return bool(self.low - error <= published <= self.high + error)


def mean(values: Any) -> Estimate:
    """Mean and Student's interval; with fewer than two values the interval is the value."""
    values = np.asarray(values, dtype=np.float64)
    centre = float(values.mean()) if len(values) else float("nan")
    spread = float(values.std(ddof=1)) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    half = float(stats.t.ppf(0.5 + LEVEL / 2, max(len(values) - 1, 1))) * spread
    return Estimate(centre, centre - half, centre + half)


def share(yes: Any) -> Estimate:
    """Share of a row of booleans and Wilson's interval."""
    yes = np.asarray(yes, dtype=bool)
    if not len(yes):
        return Estimate(float("nan"), 0.0, 1.0)
    interval = stats.binomtest(int(yes.sum()), len(yes)).proportion_ci(LEVEL, method="wilson")
    return Estimate(float(yes.mean()), float(interval.low), float(interval.high))


def measured(estimates: Sequence[Estimate]) -> dict[str, Any]:
    """The fields `measured` and `interval` of a claim."""
    return {
        "measured": [one.value for one in estimates],
        "interval": [[one.low, one.high] for one in estimates],
    }


def judge(published: Sequence[float], estimates: Sequence[Estimate], error: float) -> Verdict:
    """`holds` where every interval meets its published value."""
    met = [one.meets(value, error) for value, one in zip(published, estimates, strict=True)]
    return Verdict.HOLDS if all(met) else Verdict.FAILS
