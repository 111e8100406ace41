"""Sums over short axes of arrays whose last axis is the runs: the axis the processor vectorises.

Written out term by term, a short sum fuses into one loop over the runs, where XLA's own products would first transpose
their operands. The order of the terms is then fixed as well: XLA's reductions choose theirs by the number of runs, and a
run would depend, in its last bits, on how many others are trained beside it.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

_SHORT = 16


def total(x: Any, axis: int) -> Any:
    """`x.sum(axis, keepdims=True)`."""
    if x.shape[axis] > _SHORT:
        return x.sum(axis, keepdims=True)
    return sum(lax.slice_in_dim(x, i, i + 1, axis=axis) for i in range(x.shape[axis]))


def contract(equation: str, a: Any, b: Any) -> Any:
    """`einsum` with `*` standing for the run axis `r` where `a` has one.

    Exactly one index is summed. Axes of length one broadcast.
    """
    indices = equation.split(",")[0]
    equation = equation.replace("*", "r" if a.ndim == len(indices) else "")
    (left, right), out = equation.split("->")[0].split(","), equation.split("->")[1]
    (summed,) = {*left} & {*right} - {*out}
    length = a.shape[left.index(summed)]
    if length > _SHORT:
        return jnp.einsum(equation, a, b)

    def term(x: Any, names: str, i: int) -> Any:
        x = lax.index_in_dim(x, i, names.index(summed), keepdims=False)
        names = names.replace(summed, "")
        x = x.transpose([names.index(k) for k in out if k in names])
        return jnp.expand_dims(x, [axis for axis, k in enumerate(out) if k not in names])

    total = sum(term(a, left, i) * term(b, right, i) for i in range(length))
    return lax.optimization_barrier(total)
