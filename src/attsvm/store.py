"""Finished pieces of work on disk: each whole or absent, and checked when it is read.

    FOLDER/KEY/NAME.parquet    a table of the piece
    FOLDER/KEY/arrays.npz      its arrays, where it has any
    FOLDER/KEY/about.json      format, what the piece is, seconds it took, SHA-256 of the other files

A piece is written under another name and renamed, so that a process that dies leaves no half of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from attsvm.errors import StoreError

FORMAT = 1
PACKAGES = ("numpy", "scipy", "jax", "jaxlib", "scikit-learn")  # a number may depend on these


@dataclass(frozen=True, eq=False)
class Part:
    """What a piece of work gives: tables that stack row under row, arrays that stack along their first axis."""

    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


def stack(parts: Sequence[Part]) -> Part:
    """All parts as one, in the order given; a table or array may be missing from some of them."""
    tables = {name: None for part in parts for name in part.tables}
    arrays = {name: None for part in parts for name in part.arrays}
    return Part(
        {
            name: pl.concat([p.tables[name] for p in parts if name in p.tables], how="vertical_relaxed")
            for name in tables
        },
        {name: np.concatenate([p.arrays[name] for p in parts if name in p.arrays]) for name in arrays},
    )


class Store:
    """The pieces under one folder.

    Attributes:
        folder: where they are.
        damaged: keys of pieces that were there but not as they had been written; they count as absent.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.damaged: list[str] = []

    def read(self, key: str) -> tuple[Part, float] | None:
        """The piece and the seconds it took, or None where it is absent or damaged."""
        place = self.folder / key
        if not place.is_dir():
            return None
        try:
            about = json.loads((place / "about.json").read_text(encoding="utf-8"))
            if about["format"] != FORMAT or any(_digest(place / name) != was for name, was in about["files"].items()):
                raise ValueError("not as it was written")
            return _read(place, about["files"]), float(about["seconds"])
        except (OSError, ValueError, KeyError, TypeError):
            self.damaged.append(key)
            return None

    def write(self, key: str, part: Part, seconds: float, about: Mapping[str, Any]) -> None:
        """Write a piece, in place of one under the same key.

        Raises:
            StoreError: the disk is full or the folder cannot be written to; nothing half-written is left.
        """
        place, draft = self.folder / key, self.folder / f".{key}.{os.getpid()}"
        try:
            draft.mkdir(parents=True, exist_ok=True)
            write(part, draft)
            files = {file.name: _digest(file) for file in sorted(draft.iterdir())}
            record = {"format": FORMAT, "about": about, "seconds": seconds, "files": files}
            (draft / "about.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            shutil.rmtree(place, ignore_errors=True)
            draft.rename(place)
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            raise StoreError(
                f"Cannot write a result to {str(self.folder)!r}: {error.strerror or error}. What was finished before "
                "is kept; make room or give another folder, and the same command goes on from there."
            ) from error

    def clear(self) -> None:
        """Forget every piece."""
        shutil.rmtree(self.folder, ignore_errors=True)


def write(part: Part, folder: Path) -> None:
    """Write tables as Parquet and arrays as one npz; the same content gives the same bytes."""
    for name, table in part.tables.items():
        table.write_parquet(folder / f"{name}.parquet")
    if part.arrays:
        plain = {name: np.ascontiguousarray(array) for name, array in part.arrays.items()}
        np.savez_compressed(folder / "arrays.npz", allow_pickle=False, **plain)


def key(about: Mapping[str, Any]) -> str:
    """A name for a piece of work: a hash of what it is and of the code and versions it is made with."""
    text = json.dumps([about, fingerprint()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@cache
def fingerprint() -> str:
    """A hash of this package's code and of the versions that a number may depend on."""
    code = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        code.update(file.read_bytes())
    return " ".join([code.hexdigest(), *(version(name) for name in PACKAGES)])


def _read(place: Path, files: Mapping[str, str]) -> Part:
    tables = {name[:-8]: pl.read_parquet(place / name) for name in files if name.endswith(".parquet")}
    if "arrays.npz" not in files:
        return Part(tables)
    with np.load(place / "arrays.npz", allow_pickle=False) as arrays:
        return Part(tables, dict(arrays))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
