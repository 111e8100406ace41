"""Tokens, queries and labels of an attention problem, validated once.

Shape legend, used in every docstring of the library:

    n    examples                    d_k  width of tokens (keys)
    m    queries per example         d_q  width of queries
    T    tokens per example          K    constraint rows
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from attsvm.errors import InputError

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class TokenData:
    """Examples an attention layer is trained or solved on (section 1.1 of arXiv 2308.16898).

    Args:
        tokens: `(n, T, d_k)`, the rows `x_it`.
        queries: `(n, d_q)`, one query `z_i` per example, or `(n, m, d_q)`. `d_q` may differ from `d_k`.
        mask: which tokens a query sees: `(n, T)` for examples of unequal length, `(n, m, T)` for causal or
            other per-query visibility. Default: everything. A query that sees nothing is padding.
        labels: `(n,)` or, one per query, `(n, m)`. Default: all +1.
        value: `(d_k,)`, the linear prediction head `h(a) = vᵀa`.
        head: any other prediction head, a JAX-differentiable callable from a pooled token `(d_k,)` to a scalar.

    Stored in canonical form: float64, `queries` as `(n, m, d_q)`, `mask` as `(n, m, T)`, `labels` as `(n, m)`.
    Tokens no query sees are set to zero.

    Raises:
        InputError: wrong shapes, NaN or infinite entries, both `value` and `head`.
    """

    tokens: Float[Array, "n T d_k"]
    queries: Float[Array, "n m d_q"]
    mask: Bool[Array, "n m T"]
    labels: Float[Array, "n m"]
    value: Float[Array, " d_k"] | None = None
    head: Callable[[Any], Any] | None = None

    def __init__(
        self,
        tokens: Any,
        queries: Any,
        *,
        mask: Any = None,
        labels: Any = None,
        value: Any = None,
        head: Callable[[Any], Any] | None = None,
    ) -> None:
        x = _numbers("tokens", tokens, (3,), "(n, T, d_k)")
        n, T, d_k = x.shape
        z = _numbers("queries", queries, (2, 3), "(n, d_q) or (n, m, d_q)")
        _expect(z.shape[0] == n, "queries", z.shape, f"one entry per example, n = {n} from tokens {x.shape}")
        z = z[:, None, :] if z.ndim == 2 else z
        visible = _visibility(mask, n, z.shape[1], T)
        y = _labels(labels, n, z.shape[1])
        x = np.where(visible.any(1)[:, :, None], x, 0.0)
        _finite("tokens", x)
        _finite("queries", z)
        if value is not None:
            if head is not None:
                raise InputError("Both value and head were given; give the linear head as value, any other as head.")
            value = _numbers("value", value, (1,), "(d_k,)")
            _expect(value.shape == (d_k,), "value", value.shape, f"({d_k},), the width of the tokens")
            _finite("value", value)
        if head is not None and not callable(head):
            raise InputError(
                f"head must be a callable from a pooled token ({d_k},) to a scalar; got {type(head).__name__}."
            )
        for name, item in dict(tokens=x, queries=z, mask=visible, labels=y, value=value, head=head).items():
            if isinstance(item, np.ndarray):
                item.setflags(write=False)
            object.__setattr__(self, name, item)

    @property
    def n(self) -> int:
        """Number of examples."""
        return self.tokens.shape[0]

    @property
    def m(self) -> int:
        """Queries per example."""
        return self.queries.shape[1]

    @property
    def T(self) -> int:
        """Tokens per example, the longest one's count."""
        return self.tokens.shape[1]

    @property
    def d_k(self) -> int:
        """Width of the tokens."""
        return self.tokens.shape[2]

    @property
    def d_q(self) -> int:
        """Width of the queries."""
        return self.queries.shape[2]

    @property
    def active(self) -> Bool[Array, "n m"]:
        """Queries that see at least one token; the others are padding."""
        return self.mask.any(-1)

    def __repr__(self) -> str:
        head = "linear" if self.value is not None else ("none" if self.head is None else "callable")
        return f"TokenData(n={self.n}, m={self.m}, T={self.T}, d_k={self.d_k}, d_q={self.d_q}, head={head})"

    def with_value(self, value: Any) -> TokenData:
        """The same examples with the linear head `value`, `(d_k,)`."""
        return TokenData(self.tokens, self.queries, mask=self.mask, labels=self.labels, value=value)

    @classmethod
    def self_attention(
        cls, tokens: Any, *, query: int | str | Any = -1, causal: bool = False, mask: Any = None, **rest: Any
    ) -> TokenData:
        """Self-attention: the queries are tokens of the example itself.

        Args:
            tokens: `(n, T, d)`.
            query: position of the token that asks: one integer for all examples (negative counts from the end),
                integers `(n,)` or `(n, m)`, or `"all"`: every token is a query, m = T.
            causal: let the query at position k see the tokens t <= k only.
            mask: `(n, T)` or `(n, m, T)`, combined with the causal rule. With `query="all"` a token that
                `mask (n, T)` hides does not ask either.
            **rest: labels, value, head as in `TokenData`.
        """
        x = _numbers("tokens", tokens, (3,), "(n, T, d)")
        n, T, _ = x.shape
        position = _positions(query, n, T)
        m = position.shape[1]
        visible = _visibility(mask, n, m, T).copy()
        if isinstance(query, str) and mask is not None and np.ndim(mask) == 2:
            visible &= visible[:, 0, :, None]
        if causal:
            visible &= np.arange(T) <= position[:, :, None]
        return cls(x, np.take_along_axis(x, position[:, :, None], axis=1), mask=visible, **rest)

    @classmethod
    def from_ragged(cls, tokens: Sequence[Any], queries: Any, **rest: Any) -> TokenData:
        """Examples of unequal length: `tokens[i]` is `(T_i, d_k)`; the rest as in `TokenData`, less `mask`."""
        parts = [_numbers(f"tokens[{i}]", x, (2,), "(T_i, d_k)") for i, x in enumerate(tokens)]
        if not parts:
            raise InputError("tokens is empty; give at least one example.")
        widths = sorted({x.shape[1] for x in parts})
        _expect(len(widths) == 1, "tokens", f"widths {widths}", "one common width d_k")
        longest = max(len(x) for x in parts)
        padded = np.stack([np.pad(x, ((0, longest - len(x)), (0, 0))) for x in parts])
        mask = np.arange(longest) < np.array([len(x) for x in parts])[:, None]
        return cls(padded, queries, mask=mask, **rest)

    def save(self, path: str | Path, *, chosen: Any = None) -> Path:
        """Write to `.npz` or `.safetensors` under the keys `X`, `z`, `y`, `mask` and, where present, `v`, `chosen`.

        Raises:
            InputError: another suffix, or a callable head (code is not data: save the arrays, pass the head again).
        """
        if self.head is not None:
            raise InputError("A callable head cannot be saved; save data without it and pass head= after loading.")
        arrays = {"X": self.tokens, "z": self.queries, "y": self.labels, "mask": self.mask}
        arrays |= {key: np.asarray(a) for key, a in (("v", self.value), ("chosen", chosen)) if a is not None}
        path = Path(path)
        if path.suffix == ".npz":
            np.savez(path, **arrays)
        elif path.suffix == ".safetensors":
            from safetensors.numpy import save_file

            save_file({key: np.ascontiguousarray(a) for key, a in arrays.items()}, path)
        else:
            raise InputError(f"Cannot tell the format of {path.name!r}; use the suffix .npz or .safetensors.")
        return path


def load(path: str | Path) -> tuple[TokenData, Array | None]:
    """Read `(data, chosen)` from an npz or safetensors file with the keys `X`, `z` and optional `y`, `v`, `mask`, `chosen`.

    `chosen` comes back as stored (indices or booleans) or as None; `attsvm.solve(data, chosen)` takes it as it is.

    Raises:
        InputError: no such file, not the named format, or a key missing.
    """
    path = Path(path)
    arrays = _read(path)
    missing = {"X", "z"} - arrays.keys()
    if missing:
        raise InputError(
            f"{path.name} lacks the key(s) {sorted(missing)}; it has {sorted(arrays)}. "
            "Expected X (n, T, d_k) and z (n, d_q) or (n, m, d_q), optionally y, v, mask, chosen."
        )
    data = TokenData(arrays["X"], arrays["z"], mask=arrays.get("mask"), labels=arrays.get("y"), value=arrays.get("v"))
    return data, arrays.get("chosen")


def _read(path: Path) -> dict[str, Array]:
    if not path.is_file():
        raise InputError(f"There is no file {str(path)!r}.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.numpy import load_file

            return load_file(path)
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except Exception as error:  # noqa: BLE001 - whatever a damaged file raises, the user needs its name and the format
        raise InputError(f"{path.name} cannot be read as {path.suffix or 'npz'}: {error}") from error


def _numbers(name: str, given: Any, ndims: tuple[int, ...], shape: str) -> Array:
    try:
        array = np.array(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array of numbers of shape {shape}; {error}.") from error
    _expect(array.ndim in ndims and 0 not in array.shape, name, array.shape, f"shape {shape}, no axis empty")
    return array


def _expect(ok: bool, name: str, got: Any, expected: str) -> None:
    if not ok:
        raise InputError(f"{name}: got {got}, expected {expected}.")


def _finite(name: str, array: Array) -> None:
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        where = tuple(int(i) for i in bad[0])
        raise InputError(f"{name} has {len(bad)} NaN or infinite entries, the first at {where}; remove or mask them.")


def _visibility(mask: Any, n: int, m: int, T: int) -> Array:
    if mask is None:
        return np.ones((n, m, T), dtype=bool)
    mask = np.asarray(mask)
    if mask.dtype != bool:
        raise InputError(f"mask must be boolean (True = visible); got dtype {mask.dtype}. Use mask.astype(bool).")
    if mask.shape == (n, T):
        return np.broadcast_to(mask[:, None, :], (n, m, T))
    _expect(mask.shape == (n, m, T), "mask", mask.shape, f"{(n, T)} or {(n, m, T)}")
    return mask.copy()


def _labels(labels: Any, n: int, m: int) -> Array:
    if labels is None:
        return np.ones((n, m))
    y = _numbers("labels", labels, (1, 2), "(n,) or (n, m)")
    _finite("labels", y)
    if y.shape == (n,):
        return np.repeat(y[:, None], m, axis=1)
    _expect(y.shape == (n, m), "labels", y.shape, f"{(n,)} or {(n, m)}")
    return y


def _positions(query: Any, n: int, T: int) -> Array:
    if isinstance(query, str):
        _expect(query == "all", "query", repr(query), '"all" or token positions')
        return np.broadcast_to(np.arange(T), (n, T))
    position = np.asarray(query)
    if not np.issubdtype(position.dtype, np.integer):
        raise InputError(f'query must be "all" or integer token positions; got dtype {position.dtype}.')
    position = np.broadcast_to(position, (n,)) if position.ndim == 0 else position
    _expect(
        position.ndim in (1, 2) and len(position) == n,
        "query",
        position.shape,
        f"one integer, ({n},) or ({n}, m)",
    )
    if (position < -T).any() or (position >= T).any():
        raise InputError(f"query positions must lie in [-{T}, {T - 1}]; got {position.min()} to {position.max()}.")
    return (position % T).reshape(n, -1)


__all__ = ["TokenData", "load"]
