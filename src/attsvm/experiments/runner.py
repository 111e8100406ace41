"""Run experiments, write what they made, judge their claims."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from attsvm import plots
from attsvm.errors import InputError
from attsvm.experiments import report, show
from attsvm.experiments.base import Claim, Experiment, Progress, Results, Verdict, plain
from attsvm.experiments.record import command, versions
from attsvm.experiments.registry import select


@dataclass(frozen=True, eq=False)
class Reproduction:
    """What `reproduce` leaves in memory; the same is on disk under `out`.

    Attributes:
        preset: `"quick"` or `"paper"`.
        out: the folder written to.
        claims: of every experiment, in order.
        results: by experiment id.
        seconds: wall time of every experiment, figures and files included.
    """

    preset: str
    out: Path
    claims: list[Claim]
    results: dict[str, Results]
    seconds: dict[str, float]

    @property
    def failed(self) -> list[Claim]:
        """The claims that do not hold."""
        return [claim for claim in self.claims if claim.verdict is Verdict.FAILS]

    def __repr__(self) -> str:
        return (
            f"Reproduction({self.preset}: {len(self.claims)} claims, {len(self.failed)} fail; "
            f"{', '.join(self.results)} in {sum(self.seconds.values()):.1f} s; see {self.out / 'report.html'})"
        )


def reproduce(
    ids: str | Sequence[str] | None = None,
    *,
    preset: str = "quick",
    out: str | Path = "attsvm-out",
    progress: Console | bool | None = None,
) -> Reproduction:
    """Run the paper's experiments and judge its claims.

    Under `out`, for every experiment as soon as it is done: `ID/*.svg` and `ID/*.png` (figures), `ID/*.parquet`
    (tables), `ID/arrays.npz`, `ID/claims.json`; and over this call, after every experiment, `claims.json` and
    `report.html` (one file that opens offline). The same ids, preset and versions give the same data and claims.

    Args:
        ids: experiments by id; None for all.
        preset: `"quick"` (minutes at most) or `"paper"` (the size of the paper).
        out: folder, made if absent.
        progress: a rich console to show progress and claims on; True for standard error; False for silence. Default:
            standard error where it is a terminal.

    Raises:
        InputError: unknown id or preset, or `out` is a file.
    """
    chosen = select(ids)
    for experiment in chosen:
        if preset not in experiment.presets:
            raise InputError(f"preset: got {preset!r}; {experiment.id} has {', '.join(experiment.presets)}.")
    folder, display = _folder(out), show.Display(progress)
    made = Reproduction(preset, folder, [], {}, {})
    for experiment in chosen:
        start = time.perf_counter()
        with display.experiment(experiment) as tick:
            results, claims = _one(experiment, preset, folder, tick)
        made.claims.extend(claims)
        made.results[experiment.id] = results
        made.seconds[experiment.id] = time.perf_counter() - start
        display.finished(experiment, claims, made.seconds[experiment.id])
        _write_record(made, chosen[: len(made.results)])
    display.done(made.claims, made.seconds, folder)
    return made


def _one(experiment: Experiment, preset: str, folder: Path, tick: Progress) -> tuple[Results, list[Claim]]:
    spec = experiment.presets[preset]
    results = experiment.run(spec, tick)
    tick("judging and drawing")
    claims = experiment.claims(results)
    place = folder / experiment.id
    place.mkdir(exist_ok=True)
    for name, table in results.tables.items():
        table.write_parquet(place / f"{name}.parquet")
    if results.arrays:
        np.savez_compressed(place / "arrays.npz", allow_pickle=False, **results.arrays)
    for name, figure in experiment.figures(results).items():
        plots.save(figure, place / name)
    _write_json(place / "claims.json", _about(experiment, preset, results) | _listed(claims))
    return results, claims


def _write_record(made: Reproduction, finished: Sequence[Experiment]) -> None:
    about = {one.id: _about(one, made.preset, made.results[one.id]) for one in finished}
    ids = list(about)
    record = {"command": command(ids, made.preset), "preset": made.preset, "versions": versions(), "experiments": about}
    _write_json(made.out / "claims.json", record | _listed(made.claims))
    report.write(made.out / "report.html", record, finished, made.claims, made.seconds)


def _about(experiment: Experiment, preset: str, results: Results) -> dict[str, Any]:
    return {
        "id": experiment.id,
        "title": experiment.title,
        "command": command([experiment.id], preset),
        "preset": preset,
        "spec": plain(results.spec),
        "seeds": dict(results.seeds),
        "versions": versions(),
    }


def _listed(claims: Sequence[Claim]) -> dict[str, Any]:
    return {"claims": [asdict(claim) for claim in claims]}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def _folder(out: str | Path) -> Path:
    path = Path(out)
    if path.exists() and not path.is_dir():
        raise InputError(f"out: {str(path)!r} is a file; give a folder to write to.")
    path.mkdir(parents=True, exist_ok=True)
    return path
