"""What an experiment is: a spec, a pure run, claims judged against published values, figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Value = float | str | Sequence[float] | None
Progress = Callable[[str], None]


class Verdict(StrEnum):
    """How a published statement fares."""

    HOLDS = "holds"
    STRONGER = "holds, stronger"
    ARTEFACT = "artefact"
    UNSTATED = "not stated in the paper"
    FAILS = "fails"


@dataclass(frozen=True)
class Claim:
    """One statement with its published and its measured value.

    Attributes:
        experiment: id of the experiment.
        id: name of the claim within it.
        statement: what is claimed, in a sentence.
        published: the authors' value (numbers or words), None where the paper gives none.
        measured: ours.
        tolerance: largest difference, or bound, the verdict allows; None where the verdict is not a comparison.
        verdict: see `Verdict`.
        note: the numbers behind an exception, or where the measure differs from the published one.
    """

    experiment: str
    id: str
    statement: str
    published: Value
    measured: Value
    tolerance: float | None
    verdict: Verdict
    note: str = ""


@dataclass(frozen=True, eq=False)
class Results:
    """What a run returns: everything claims and figures are made of, and all that is written as data.

    Attributes:
        tables: data frames by name, written as Parquet.
        arrays: arrays by name, written as one npz file.
        seeds: what was seeded with what, in words for the record.
    """

    spec: Any
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    seeds: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """One experiment of the paper.

    Attributes:
        id: its name on the command line.
        title: one line.
        about: the setting and every definition a reader needs to trust the figure, a paragraph or two.
        presets: specs by name; every experiment has `quick` and `paper`.
        run: `(spec, progress) -> Results`; pure: the same spec gives the same results. `progress` takes a short phrase.
        claims: `Results -> list[Claim]`.
        figures: `Results -> {name: Figure}`.
    """

    id: str
    title: str
    about: str
    presets: Mapping[str, Any]
    run: Callable[[Any, Progress], Results]
    claims: Callable[[Results], list[Claim]]
    figures: Callable[[Results], dict[str, Figure]]


def near(published: Value, measured: Value, tolerance: float) -> Verdict:
    """`holds` where every number is within `tolerance` of the published one."""
    return Verdict.HOLDS if difference(published, measured) <= tolerance else Verdict.FAILS


def at_least(published: Value, measured: Value, tolerance: float) -> Verdict:
    """Larger is better: `holds, stronger` where every number exceeds the published one by more than `tolerance`."""
    excess = np.atleast_1d(_numbers(measured) - _numbers(published))
    if (excess > tolerance).all():
        return Verdict.STRONGER
    return Verdict.HOLDS if (excess >= -tolerance).all() else Verdict.FAILS


def unstated(ok: bool) -> Verdict:
    """For a statement the paper does not make: it still fails where its own bound is not met."""
    return Verdict.UNSTATED if ok else Verdict.FAILS


def artefact(shown: bool) -> Verdict:
    """`artefact` where the evidence against a published value is complete; otherwise the demonstration `fails`."""
    return Verdict.ARTEFACT if shown else Verdict.FAILS


def difference(published: Value, measured: Value) -> float:
    """Largest absolute difference between two numbers or two rows of numbers; NaN counts as infinite."""
    gap = np.abs(_numbers(measured) - _numbers(published))
    return float(np.max(np.where(np.isnan(gap), np.inf, gap)))


def plain(spec: Any) -> dict[str, Any]:
    """A spec as plain values for JSON."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(spec).items()}


def _numbers(value: Value) -> np.ndarray:
    return np.asarray(value, dtype=np.float64)
