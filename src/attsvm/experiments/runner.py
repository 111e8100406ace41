"""Run experiments block by block, keep what is done, write what was made, judge the claims."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from attsvm import plots, store, sweep
from attsvm.errors import InputError
from attsvm.experiments import registry, report, show
from attsvm.experiments.base import Block, Claim, Experiment, Results, Verdict, plain
from attsvm.experiments.record import command, versions
from attsvm.experiments.registry import Plan
from attsvm.store import Part, Store


@dataclass(frozen=True, eq=False)
class Reproduction:
    """What `reproduce` leaves in memory; the same is on disk under `out`.

    Attributes:
        out: the folder written to.
        claims: of every experiment that is done, in order.
        results: by experiment id.
        seconds: spent in the blocks of every experiment, over all processes; of blocks found on disk as well.
        unfinished: ids of the experiments that were interrupted.
        wall: seconds this call took.
    """

    out: Path
    claims: list[Claim]
    results: dict[str, Results]
    seconds: dict[str, float]
    unfinished: list[str]
    wall: float

    @property
    def failed(self) -> list[Claim]:
        """The claims that do not hold."""
        return [claim for claim in self.claims if claim.verdict is Verdict.FAILS]

    def __repr__(self) -> str:
        left = f"; unfinished: {', '.join(self.unfinished)}" if self.unfinished else ""
        return (
            f"Reproduction({len(self.claims)} claims, {len(self.failed)} fail; {', '.join(self.results)} in "
            f"{self.wall:.1f} s{left}; see {self.out / 'report.html'})"
        )


@dataclass(eq=False)
class _Job:
    """One experiment on its way: the blocks it has asked for, in their order, and what they gave."""

    plan: Plan
    store: Store
    parts: dict[str, Part | None] = field(default_factory=dict)
    seconds: float = 0.0
    results: Results | None = None
    claims: list[Claim] = field(default_factory=list)

    @property
    def experiment(self) -> Experiment:
        return self.plan.experiment

    def keep(self, key: str, part: Part, seconds: float) -> None:
        self.parts[key] = part
        self.seconds += seconds

    def done(self) -> list[Part]:
        return [part for part in self.parts.values() if part is not None]

    def about(self, block: Block) -> dict[str, Any]:
        """What a block is, as its place on disk is named after."""
        about = {"experiment": self.experiment.id, "spec": plain(self.plan.spec), "block": block}
        return about | {"code": self.plan.code}


def reproduce(
    ids: str | Sequence[str] | None = None,
    *,
    spec: str | Path | Sequence[str | Path] | None = None,
    preset: str = "quick",
    seeds: int | None = None,
    jobs: int | None = None,
    out: str | Path = "attsvm-out",
    force: bool = False,
    progress: Console | bool | None = None,
) -> Reproduction:
    """Run the paper's experiments, or your own, and judge their claims.

    Under `out`, for every experiment as soon as it is done: `ID/*.svg` and `ID/*.png` (figures), `ID/*.parquet`
    (tables), `ID/arrays.npz`, `ID/claims.json`; in the end `claims.json` and `report.html` (one file that opens
    offline). Every finished block of work is kept under `ID/blocks/`: the same call goes on from there. The same
    experiments, settings and versions give the same data and claims, in any number of processes.

    Ctrl-C ends it with a report of the experiments that are done; so does any error, which is then raised.

    Args:
        ids: experiments by id; None for all, or for none where `spec` is given.
        spec: TOML files of experiments with other settings, or of your own.
        preset: `"quick"` (minutes at most) or `"paper"` (the size of the paper).
        seeds: how many seeds, in place of the number in the preset.
        jobs: processes; None for one per core.
        out: folder, made if absent.
        force: do not use what is there, run everything again.
        progress: a rich console to show progress and claims on; True for standard error; False for silence. Default:
            standard error where it is a terminal.

    Raises:
        InputError: unknown id, preset or setting, or `out` is a file.
        SweepError, StoreError: a process was killed; the disk is full. What was finished is kept.
    """
    files = [] if spec is None else [spec] if isinstance(spec, str | Path) else list(spec)
    plans = registry.select(ids, preset, seeds) if ids is not None or not files else []
    plans += [registry.from_toml(file, preset, seeds) for file in files]
    names = [plan.experiment.id for plan in plans if plan.spec is not None]
    if len(set(names)) < len(names):
        raise InputError(f"Two experiments have the same id ({', '.join(names)}); run them into two folders, out.")
    folder = _folder(out)
    run = _Run([_Job(plan, Store(folder / plan.experiment.id / "blocks")) for plan in plans], folder, jobs, progress)
    if force:
        run.forget()
    return run.go(command(names if ids is not None else [], files, preset, seeds))


def run_block(source: str, preset: str, changes: Mapping[str, Any], block: Block) -> Part:
    """One block of an experiment, from plain values: what a worker process is sent."""
    plan = Plan(source, preset, changes)
    return plan.experiment.run(plan.spec, block)


Missing = tuple[_Job, str, Block]  # a block that is not on disk, and its key


class _Run:
    """One call of `reproduce`."""

    def __init__(self, work: list[_Job], out: Path, jobs: int | None, progress: Console | bool | None) -> None:
        self.work, self.out, self.jobs, self.display = work, out, jobs, show.Display(progress)

    def forget(self) -> None:
        """Clear what is on disk."""
        for job in self.work:
            job.store.clear()

    def go(self, about: str) -> Reproduction:
        start = time.perf_counter()
        with self.display:
            try:
                missing = [one for job in self.work for one in self._next(job)]
                while missing:
                    missing = self._wave(missing)
            except KeyboardInterrupt:
                pass  # what is done is reported all the same
            finally:
                made = self._report(about, time.perf_counter() - start)
        self.display.done(made)
        return made

    def _wave(self, missing: list[Missing]) -> list[Missing]:
        """Run blocks of all experiments at once; returns those that they ask for next."""
        of = {key: (job, block) for job, key, block in missing}
        later: list[Missing] = []
        for task, part, seconds in sweep.run([_task(*one) for one in missing], self.jobs):
            job, block = of[task.key]
            job.store.write(task.key, part, seconds, job.about(block))
            job.keep(task.key, part, seconds)
            self.display.advance(job.experiment)
            if None not in job.parts.values():
                later += self._next(job)
        return later

    def _next(self, job: _Job) -> list[Missing]:
        """The blocks an experiment needs next; none when it is done, which is then judged and written."""
        while blocks := job.experiment.blocks(job.plan.spec, job.done()):
            missing: list[Missing] = []
            for block in blocks:
                key = store.key(job.about(block))
                found = job.store.read(key)
                job.parts[key] = None
                if found is None:
                    missing.append((job, key, block))
                else:
                    job.keep(key, *found)
            self.display.expect(job.experiment, len(blocks), len(blocks) - len(missing))
            if missing:
                return missing
        self._finish(job)
        return []

    def _finish(self, job: _Job) -> None:
        """Judge, draw and write an experiment whose blocks are all done."""
        experiment, place = job.experiment, self.out / job.experiment.id
        results = job.experiment.gather(job.plan.spec, job.done())
        job.claims = experiment.claims(results)
        place.mkdir(exist_ok=True)
        store.write(Part(results.tables, results.arrays), place)
        for name, figure in experiment.figures(results).items():
            plots.save(figure, place / name)
        _write_json(place / "claims.json", _about(job.plan) | _listed(job.claims))
        job.results = results
        self.display.finished(experiment, job.claims, job.seconds)

    def _report(self, about: str, wall: float) -> Reproduction:
        """Write the record of the experiments that are done."""
        done = [job for job in self.work if job.results is not None]
        claims = [claim for job in done for claim in job.claims]
        left = [job.experiment.id for job in self.work if job.results is None]
        results = {job.experiment.id: job.results for job in done if job.results is not None}
        made = Reproduction(self.out, claims, results, {job.experiment.id: job.seconds for job in done}, left, wall)
        record = {"command": about, "versions": versions(), "unfinished": left}
        record["experiments"] = {job.experiment.id: _about(job.plan) for job in done}
        _write_json(self.out / "claims.json", record | _listed(claims))
        report.write(self.out / "report.html", record, [job.experiment for job in done], made)
        return made


def _task(job: _Job, key: str, block: Block) -> sweep.Task:
    plan = job.plan
    return sweep.Task(key, run_block, (plan.source, plan.preset, dict(plan.changes), block))


def _about(plan: Plan) -> dict[str, Any]:
    experiment = plan.experiment
    ids, files = ([], [plan.file]) if plan.file else ([experiment.id], [])
    return {
        "id": experiment.id,
        "title": experiment.title,
        "command": command(ids, files, plan.preset, plan.changes.get("seeds")),
        "spec": plain(plan.spec),
        "seeds": dict(experiment.seeds),
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
