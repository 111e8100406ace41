"""What a reader needs to remake a result: versions and the command."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Sequence
from importlib.metadata import version

PACKAGES = ("attsvm", "numpy", "scipy", "jax", "jaxlib", "polars", "matplotlib", "scikit-learn")


def command(ids: Sequence[str], files: Sequence[object], preset: str, seeds: int | None) -> str:
    """The command line that runs these experiments."""
    words = ["attsvm", "reproduce", *ids, *(word for file in files for word in ("--spec", str(file)))]
    words += ["--preset", preset] + ([] if seeds is None else ["--seeds", str(seeds)])
    return shlex.join(words)


def versions() -> dict[str, str]:
    """Versions of Python and of every package a number depends on."""
    import attsvm

    named = {name: attsvm.__version__ if name == "attsvm" else version(name) for name in PACKAGES}
    return {"python": platform.python_version()} | named | {"machine": f"{platform.system()} {platform.machine()}"}
