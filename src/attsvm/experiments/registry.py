"""Every experiment by its id, in the order in which they run."""

from __future__ import annotations

from collections.abc import Sequence

from attsvm.errors import InputError
from attsvm.experiments import digits, local, paths, rank
from attsvm.experiments.base import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    one.id: one for one in (paths.PATHS_1, paths.PATHS_2, local.EXPERIMENT, rank.EXPERIMENT, digits.EXPERIMENT)
}


def select(ids: str | Sequence[str] | None) -> list[Experiment]:
    """The experiments named, each once, or all of them for None.

    Raises:
        InputError: an id that is not known.
    """
    names = list(EXPERIMENTS) if ids is None else [ids] if isinstance(ids, str) else list(dict.fromkeys(ids))
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown or not names:
        raise InputError(
            f"Experiments: got {', '.join(map(repr, unknown)) or 'none'}; known are {', '.join(EXPERIMENTS)}."
        )
    return [EXPERIMENTS[name] for name in names]
