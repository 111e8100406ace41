"""Sums over short axes of arrays whose last axis is the runs, the axis the processor vectorises.

Written out term by term, such a sum is one loop over the runs, where XLA's own products first transpose their operands.
The order of the terms is then fixed as well: XLA's products and reductions choose theirs by the number of runs, and a
run would depend, in its last bits, on how many others are trained beside it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

_SHORT = 16


def total(x: Any, axis: int) -> Any:
    """`x.sum(axis, keepdims=True)`."""
    if x.shape[axis] > _SHORT:
        return x.sum(axis, keepdims=True)
    return sum(lax.slice_in_dim(x, i, i + 1, axis=axis) for i in range(x.shape[axis]))


def contract(equation: str, a: Any, b: Any, once: Any) -> Any:
    """`einsum` over exactly one index, with `*` standing for the run axis `r` where `a` has one.

    `once` is the number 1, unknown to the compiler. XLA would fuse one product into the next and compute the first
    anew for every term of the second, and on processors it drops its own fusion barriers; a loop whose count it does
    not know, it keeps apart. Axes of length one broadcast.
    """
    indices = equation.split(",")[0]
    equation = equation.replace("*", "r" if a.ndim == len(indices) else "")
    (left, right), out = equation.split("->")[0].split(","), equation.split("->")[1]
    (summed,) = {*left} & {*right} - {*out}
    length = a.shape[left.index(summed)]
    if length > _SHORT or jax.default_backend() != "cpu":
        return jnp.einsum(equation, a, b)
    a, b = _summed_first(a, left, summed, out), _summed_first(b, right, summed, out)
    start = jnp.zeros(jnp.broadcast_shapes(a.shape[1:], b.shape[1:]), a.dtype)

    def terms(*_: Any) -> Any:
        return sum(
            lax.index_in_dim(a, i, keepdims=False) * lax.index_in_dim(b, i, keepdims=False) for i in range(length)
        )

    return lax.fori_loop(0, once, terms, start)


def _summed_first(x: Any, names: str, summed: str, out: str) -> Any:
    """`x` with the summed axis first and the others as in `out`, of length one where it lacks them."""
    x = x.transpose([names.index(k) for k in summed + out if k in names])
    return jnp.expand_dims(x, [1 + axis for axis, k in enumerate(out) if k not in names])
