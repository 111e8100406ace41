"""Every experiment by its id, in the order in which they are shown; and experiments that live in a user's own file."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache, cached_property
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from attsvm.errors import InputError
from attsvm.experiments import digits, local, paths, rank
from attsvm.experiments.base import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    one.id: one for one in (paths.PATHS_1, paths.PATHS_2, local.EXPERIMENT, rank.EXPERIMENT, digits.EXPERIMENT)
}


@dataclass(frozen=True)
class Plan:
    """An experiment and its spec, in plain values that a worker process can read.

    Attributes:
        source: id of an experiment, or the path of a Python file that defines `EXPERIMENT`.
        preset: whose spec is taken.
        changes: fields of the spec to change.
        file: the TOML file this was read from, if it was.
    """

    source: str
    preset: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment itself."""
        return _load(self.source) if self.source.endswith(".py") else EXPERIMENTS[self.source]

    @cached_property
    def spec(self) -> Any:
        """Its spec, checked."""
        presets = self.experiment.presets
        if self.preset not in presets:
            raise InputError(f"preset: got {self.preset!r}; {self.experiment.id} has {', '.join(presets)}.")
        return _changed(self.experiment.id, presets[self.preset], self.changes)

    @cached_property
    def code(self) -> str:
        """A hash of a user's file; the package has its own."""
        return sha256(Path(self.source).read_bytes()).hexdigest() if self.source.endswith(".py") else ""


def select(ids: str | Sequence[str] | None, preset: str, seeds: int | None = None) -> list[Plan]:
    """The experiments named, each once, or all of them for None.

    Raises:
        InputError: an id or preset that is not known; `seeds` where no experiment named has any.
    """
    names = list(EXPERIMENTS) if ids is None else [ids] if isinstance(ids, str) else list(dict.fromkeys(ids))
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown or not names:
        raise InputError(
            f"Experiments: got {', '.join(map(repr, unknown)) or 'none'}; known are {', '.join(EXPERIMENTS)}."
        )
    plans = [with_seeds(Plan(name, preset), seeds) for name in names]
    if seeds is not None and not any(plan.changes for plan in plans):
        raise InputError(f"seeds: {', '.join(names)} has no random runs; leave --seeds out.")
    return plans


def from_toml(path: str | Path, preset: str, seeds: int | None = None) -> Plan:
    """A plan from a TOML file: `experiment`, an id or a Python file beside it; table `[spec]`, changes to the preset.

    Raises:
        InputError: the file cannot be read as such.
    """
    path = Path(path)
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}") from None
    known = {"experiment": str, "spec": dict}
    for name, value in given.items():
        if name not in known or not isinstance(value, known[name]):
            raise InputError(f"{path}: {name} = {value!r}; expected experiment = '...' and [spec].")
    source = given.get("experiment", "")
    if source.endswith(".py"):
        source = str((path.parent / source).resolve())
    elif source not in EXPERIMENTS:
        raise InputError(f"{path}: experiment = {source!r}; give a Python file, or one of {', '.join(EXPERIMENTS)}.")
    return with_seeds(Plan(source, preset, given.get("spec", {}), str(path)), seeds)


def with_seeds(plan: Plan, seeds: int | None) -> Plan:
    """The plan with so many seeds, where its experiment has any."""
    if seeds is None or not hasattr(plan.spec, "seeds"):
        return plan
    if seeds < 1:
        raise InputError(f"seeds: got {seeds}, expected at least 1.")
    return replace(plan, changes={**plan.changes, "seeds": seeds})


@cache
def _load(path: str) -> Experiment:
    """The `EXPERIMENT` of a file; its module can be found again by the dataclasses and functions in it."""
    if not Path(path).is_file():
        raise InputError(f"There is no file {path!r}.")
    name = f"attsvm_user_{sha256(path.encode()).hexdigest()[:12]}"
    described = spec_from_file_location(name, path)
    assert described is not None
    assert described.loader is not None
    module = sys.modules[name] = module_from_spec(described)
    described.loader.exec_module(module)
    found = getattr(module, "EXPERIMENT", None)
    if not isinstance(found, Experiment):
        raise InputError(f"{path} does not define EXPERIMENT = attsvm.experiments.Experiment(...); got {found!r}.")
    return found


def _changed(experiment: str, spec: Any, changes: Mapping[str, Any]) -> Any:
    if not is_dataclass(spec) or isinstance(spec, type):
        raise InputError(f"{experiment}: its spec must be a frozen dataclass; got {spec!r}.")
    known = {one.name: getattr(spec, one.name) for one in fields(spec)}
    for name in changes:
        if name not in known:
            raise InputError(f"{experiment} has no setting {name!r}; it has {', '.join(known)}.")
    return replace(
        spec, **{name: _like(known[name], value, f"{experiment}, {name}") for name, value in changes.items()}
    )


def _like(model: Any, value: Any, where: str) -> Any:
    """The value in the type of the one it replaces: tuples for lists, a float for an integer."""
    if isinstance(model, tuple) and isinstance(value, list | tuple):
        return tuple(_like(model[0], one, where) if model else one for one in value)
    if isinstance(model, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if model is not None and type(value) is not type(model):
        raise InputError(f"{where}: got {value!r}, expected something like {model!r}.")
    return value
