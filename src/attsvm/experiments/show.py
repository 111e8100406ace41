"""Progress and claims on a console."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress as RichProgress
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from attsvm.experiments.base import Claim, Experiment, Progress, Value, Verdict

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


def claims_table(claims: Sequence[Claim], title: str | None = None) -> Table:
    """One row per claim; the note only where a value fails or is an artefact (all notes are in the report)."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("claim", ratio=1)
    for name, width in (("published", 14), ("measured", 18), ("tolerance", 9), ("verdict", 13)):
        table.add_column(name, max_width=width, overflow="fold")
    for claim in claims:
        statement = Text.assemble((f"{claim.experiment}/{claim.id}  ", "bold"), claim.statement)
        if claim.note and claim.verdict in (Verdict.FAILS, Verdict.ARTEFACT):
            statement.append(f"\n{claim.note}", style="dim italic")
        verdict = Text(str(claim.verdict), style=COLOURS[claim.verdict])
        table.add_row(statement, words(claim.published), words(claim.measured), words(claim.tolerance), verdict)
    return table


class Display:
    """One line per experiment with what it is doing; its claims when it is done."""

    def __init__(self, wanted: Console | bool | None) -> None:
        if isinstance(wanted, Console):
            self.console: Console | None = wanted
        else:
            console = Console(stderr=True)
            self.console = console if wanted or (wanted is None and console.is_terminal) else None

    @contextmanager
    def experiment(self, experiment: Experiment) -> Iterator[Progress]:
        """A function that shows, beside the time gone by, what the experiment is doing."""
        if self.console is None:
            yield lambda phrase: None
            return
        columns = SpinnerColumn(), TextColumn("[bold]{task.fields[id]}[/] {task.description}"), TimeElapsedColumn()
        with RichProgress(*columns, console=self.console, transient=True) as bar:
            task = bar.add_task(experiment.title, total=None, id=experiment.id)
            yield lambda phrase: bar.update(task, description=phrase)

    def finished(self, experiment: Experiment, claims: Sequence[Claim], seconds: float) -> None:
        """Print the experiment's claims and its time."""
        if self.console is not None:
            title = f"{experiment.id}: {experiment.title} ({seconds:.1f} s)"
            self.console.print(claims_table(claims, title))

    def done(self, claims: Sequence[Claim], seconds: Mapping[str, float], folder: Path) -> None:
        """Print the verdicts in numbers, the times and where the report is."""
        if self.console is None:
            return
        counts = Counter(claim.verdict for claim in claims)
        verdicts = ", ".join(
            f"[{COLOURS[verdict]}]{counts[verdict]} {verdict}[/]" for verdict in Verdict if counts[verdict]
        )
        times = ", ".join(f"{name} {value:.1f} s" for name, value in seconds.items())
        self.console.print(f"{len(claims)} claims: {verdicts}", highlight=False)
        self.console.print(f"{times}; {sum(seconds.values()):.1f} s in all", highlight=False)
        self.console.print(f"Report: {folder / 'report.html'}", soft_wrap=True, highlight=False)
