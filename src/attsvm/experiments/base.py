"""What an experiment is: a spec, blocks of work with a pure run, claims judged against published values, figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from attsvm.store import Part, stack

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from plotly.graph_objects import Figure as Interactive

Value = float | str | Sequence[float] | None
Block = dict[str, Any]


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
        verdict: see `Verdict`.
        note: the numbers behind an exception, or where the measure differs from the published one.
        error: how far the published value may be off: what was lost in reading it off a figure.
        interval: 95 % confidence interval of the measured value over the seeds, one for each number of it.
    """

    experiment: str
    id: str
    statement: str
    published: Value
    measured: Value
    verdict: Verdict
    note: str = ""
    error: float | None = None
    interval: Sequence[Sequence[float]] | None = None


@dataclass(frozen=True, eq=False)
class Results:
    """Everything that claims and figures are made of, and all that is written as data.

    Attributes:
        spec: what was run.
        tables: data frames by name, written as Parquet.
        arrays: arrays by name, written as one npz file.
    """

    spec: Any
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


def gather(spec: Any, parts: Sequence[Part]) -> Results:
    """The parts of all blocks, stacked in the order of the blocks."""
    whole = stack(parts)
    return Results(spec, whole.tables, whole.arrays)


@dataclass(frozen=True)
class Experiment:
    """One experiment of the paper, or of yours.

    Attributes:
        id: its name on the command line.
        title: one line.
        about: the setting and every definition a reader needs to trust the figure, a paragraph or two.
        presets: specs by name; every experiment has `quick`, those of the paper also `paper`. A spec is a frozen
            dataclass; where runs are random its field `seeds` says how many of them.
        seeds: what is seeded with what, in words.
        blocks: `(spec, parts so far) -> blocks`: the blocks of work to run next, nothing when all is done. A block
            holds plain values (numbers, words, lists), such as a range of seeds. Asked again when they are done.
        run: `(spec, block) -> Part`; pure: the same spec and block give the same tables and arrays, in any process.
        claims: `Results -> list[Claim]`.
        figures: `Results -> {name: Figure}`.
        gather: `(spec, parts) -> Results`; default: stack them.
        interactive: `Results -> {name: plotly figure}`, for the report, where looking closer helps.
    """

    id: str
    title: str
    about: str
    presets: Mapping[str, Any]
    seeds: Mapping[str, str]
    blocks: Callable[[Any, Sequence[Part]], list[Block]]
    run: Callable[[Any, Block], Part]
    claims: Callable[[Results], list[Claim]]
    figures: Callable[[Results], dict[str, Figure]]
    gather: Callable[[Any, Sequence[Part]], Results] = gather
    interactive: Callable[[Results], dict[str, Interactive]] | None = None


def once(blocks: Callable[[Any], list[Block]]) -> Callable[[Any, Sequence[Part]], list[Block]]:
    """For `Experiment.blocks` where all blocks are known from the start."""
    return lambda spec, parts: [] if parts else blocks(spec)


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
