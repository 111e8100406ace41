"""Progress and claims on a console."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

from attsvm.experiments.base import Claim, Experiment, Value, Verdict

if TYPE_CHECKING:
    from attsvm.experiments.runner import Reproduction

COLOURS = {
    Verdict.HOLDS: "green",
    Verdict.STRONGER: "bold green",
    Verdict.ARTEFACT: "yellow",
    Verdict.UNSTATED: "cyan",
    Verdict.FAILS: "bold red",
}


def words(value: Value) -> str:
    """A published or measured value for a reader: four significant digits, but 0.99996 is not 1."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        return ", ".join(words(one) for one in value)
    value = float(value)
    if 0.99 < abs(value) < 1:
        return f"{value:.6f}".rstrip("0")
    return f"{value:.4g}"


def published(claim: Claim) -> str:
    """The published value, with its reading error where it has one."""
    return words(claim.published) + (f" ± {words(claim.error)}" if claim.error else "")


def measured(claim: Claim) -> str:
    """The measured value, each number with its confidence interval where it has one."""
    if claim.interval is None:
        return words(claim.measured)
    values = np.atleast_1d(np.asarray(claim.measured, dtype=np.float64))
    pairs = zip(values, claim.interval, strict=True)
    return ", ".join(f"{words(value)} [{words(low)}, {words(high)}]" for value, (low, high) in pairs)


def claims_table(claims: Sequence[Claim], title: str | None = None) -> Table:
    """One row per claim; the note only where a value fails or is an artefact (all notes are in the report)."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("claim", ratio=1)
    for name, width in (("published", 14), ("measured", 22), ("verdict", 13)):
        table.add_column(name, max_width=width, overflow="fold")
    for claim in claims:
        statement = Text.assemble((f"{claim.experiment}/{claim.id}  ", "bold"), claim.statement)
        if claim.note and claim.verdict in (Verdict.FAILS, Verdict.ARTEFACT):
            statement.append(f"\n{claim.note}", style="dim italic")
        verdict = Text(str(claim.verdict), style=COLOURS[claim.verdict])
        table.add_row(statement, Text(published(claim)), Text(measured(claim)), verdict)
    return table


class Display:
    """A bar for every experiment, with the time that remains; its claims when it is done."""

    def __init__(self, wanted: Console | bool | None) -> None:
        if isinstance(wanted, Console):
            self.console: Console | None = wanted
        else:
            console = Console(stderr=True)
            self.console = console if wanted or (wanted is None and console.is_terminal) else None
        self.bars: dict[str, TaskID] = {}
        columns = (
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("remaining"),
            TimeRemainingColumn(),
        )
        self.progress = RichProgress(*columns, console=self.console, transient=True, disable=self.console is None)

    def __enter__(self) -> None:
        self.progress.start()

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def expect(self, experiment: Experiment, blocks: int, found: int) -> None:
        """So many more blocks, of which some were on disk."""
        if experiment.id not in self.bars:
            self.bars[experiment.id] = self.progress.add_task(experiment.id, total=0)
        bar = self.bars[experiment.id]
        self.progress.update(bar, total=(self.progress.tasks[bar].total or 0) + blocks)
        self.progress.advance(bar, found)

    def advance(self, experiment: Experiment) -> None:
        """One more block is done."""
        self.progress.advance(self.bars[experiment.id])

    def finished(self, experiment: Experiment, claims: Sequence[Claim], seconds: float) -> None:
        """Print the experiment's claims and the time its blocks took."""
        if experiment.id in self.bars:
            self.progress.update(self.bars[experiment.id], visible=False)
        if self.console is not None:
            title = f"{experiment.id}: {experiment.title} ({seconds:.1f} s)"
            self.console.print(claims_table(claims, title))

    def done(self, made: Reproduction) -> None:
        """Print the verdicts in numbers, the times and where the report is."""
        if self.console is None:
            return
        counts = Counter(claim.verdict for claim in made.claims)
        verdicts = ", ".join(
            f"[{COLOURS[verdict]}]{counts[verdict]} {verdict}[/]" for verdict in Verdict if counts[verdict]
        )
        times = ", ".join(f"{name} {value:.1f} s" for name, value in made.seconds.items())
        self.console.print(f"{len(made.claims)} claims: {verdicts}", highlight=False)
        self.console.print(f"In the blocks of {times}; {made.wall:.1f} s in all", highlight=False)
        if made.unfinished:
            left = f"Unfinished: {', '.join(made.unfinished)}. The same command goes on from there."
            self.console.print(left, style="bold yellow", highlight=False)
        self.console.print(f"Report: {made.out / 'report.html'}", soft_wrap=True, highlight=False)
