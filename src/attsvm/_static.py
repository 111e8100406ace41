"""Objects passed into compiled functions: their numbers as arguments, the rest as a static, hashable part.

A JAX pytree of numbers (`jax.tree_util.Partial`, a registered dataclass, an Equinox module) is split, so that other
numbers need no new compilation. Anything else is static as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Number
from typing import Any

import jax
import numpy as np


@dataclass(frozen=True)
class _Structure:
    """A pytree's structure as a cache key. JAX calls the structures of two dataclasses equal if their fields agree."""

    tree: Any
    kind: type
    spelled: str


def split(thing: Any) -> tuple[tuple[np.ndarray, ...], Any]:
    """The numbers of `thing` and its static part."""
    leaves, tree = jax.tree.flatten(thing)
    if all(isinstance(leaf, Number | np.ndarray | np.generic | jax.Array) for leaf in leaves):
        return tuple(np.asarray(leaf) for leaf in leaves), _Structure(tree, type(thing), str(tree))
    return (), thing


def join(numbers: Any, static: Any) -> Any:
    """The inverse of `split`; the numbers may be traced."""
    return jax.tree.unflatten(static.tree, numbers) if isinstance(static, _Structure) else static
