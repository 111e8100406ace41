"""Pieces of work through joblib: on this machine's processes, or on whatever backend joblib is told to use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from joblib import Parallel, cpu_count, delayed
from joblib.externals.loky.process_executor import TerminatedWorkerError
from threadpoolctl import threadpool_limits

from attsvm.errors import InputError, SweepError
from attsvm.store import Part


@dataclass(frozen=True)
class Task:
    """A piece of work: a function that a worker can import, and what it is called with.

    Attributes:
        key: its name in the store.
        call: returns a `Part` that depends on the arguments alone.
        arguments: of `call`.
    """

    key: str
    call: Callable[..., Part]
    arguments: tuple[Any, ...]


def run(tasks: Sequence[Task], jobs: int | None = None) -> Iterator[tuple[Task, Part, float]]:
    """Run the tasks; yields each with its part and the seconds it took, as soon as it is done.

    Args:
        tasks: handed out in this order.
        jobs: processes; None for one per core. One process is this one.

    Raises:
        InputError: `jobs` below 1.
        SweepError: a worker process was killed, most often for want of memory.
    """
    workers = min(cpu_count() if jobs is None else jobs, max(len(tasks), 1))
    if workers < 1:
        raise InputError(f"jobs: got {jobs}, expected at least 1; leave it out for one process per core.")
    pool = Parallel(n_jobs=workers, return_as="generator_unordered", batch_size=1)  # type: ignore[arg-type]
    calls = (delayed(_timed)(index, task.call, task.arguments) for index, task in enumerate(tasks))
    try:
        for index, part, seconds in pool(calls):  # type: ignore[misc]
            yield tasks[index], part, seconds
    except TerminatedWorkerError as error:
        raise SweepError(
            "A worker process ended before its work was done, most often for want of memory. What was finished is "
            "kept: the same command goes on from there; with fewer jobs it needs less memory."
        ) from error


def _timed(index: int, call: Callable[..., Part], arguments: tuple[Any, ...]) -> tuple[int, Part, float]:
    start = time.perf_counter()
    with threadpool_limits(1):  # on matrices this small, threads cost more than they give, and change the last digit
        part = call(*arguments)
    return index, part, time.perf_counter() - start
