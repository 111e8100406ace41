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

KEYS = ("X", "z", "y", "v", "mask", "chosen", "source")


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
        source: where the numbers come from, law and seed for drawn ones; kept in the file, used for nothing else.

    Stored in canonical form: float64, `queries` as `(n, m, d_q)`, `mask` as `(n, m, T)`, `labels` as `(n, m)`.
    Tokens no query sees are set to zero, and so are padding queries (their labels to +1), whatever they held.

    Raises:
        InputError: wrong shapes, NaN or infinite entries, both `value` and `head`.
    """

    tokens: Float[Array, "n T d_k"]
    queries: Float[Array, "n m d_q"]
    mask: Bool[Array, "n m T"]
    labels: Float[Array, "n m"]
    value: Float[Array, " d_k"] | None = None
    head: Callable[[Any], Any] | None = None
    source: str | None = None

    def __init__(
        self,
        tokens: Any,
        queries: Any,
        *,
        mask: Any = None,
        labels: Any = None,
        value: Any = None,
        head: Callable[[Any], Any] | None = None,
        source: str | None = None,
    ) -> None:
        x = _numbers("tokens", tokens, (3,), "(n, T, d_k)")
        n, T, d_k = x.shape
        z = _numbers("queries", queries, (2, 3), "(n, d_q) or (n, m, d_q)")
        _expect(z.shape[0] == n, "queries", z.shape, f"one entry per example, n = {n} from tokens {x.shape}")
        z = z[:, None, :] if z.ndim == 2 else z
        visible = _visibility(mask, n, z.shape[1], T)
        seen, asks = _any(visible, 1), _any(visible, 2)
        x = np.where(seen[:, :, None], x, 0.0)
        z = np.where(asks[:, :, None], z, 0.0)
        y = np.where(asks, _labels(labels, n, z.shape[1]), 1.0)
        _finite("tokens", x)
        _finite("queries", z)
        _finite("labels", y)
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
        stored = {"tokens": x, "queries": z, "mask": visible, "labels": y, "value": value, "head": head}
        for name, item in (stored | {"source": source}).items():
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
        return _any(self.mask, 2)

    def __repr__(self) -> str:
        head = "linear" if self.value is not None else ("none" if self.head is None else "callable")
        source = f", source={self.source!r}" if self.source else ""
        return f"TokenData(n={self.n}, m={self.m}, T={self.T}, d_k={self.d_k}, d_q={self.d_q}, head={head}{source})"

    def with_value(self, value: Any) -> TokenData:
        """The same examples with the linear head `value`, `(d_k,)`."""
        source = f"{self.source}, value replaced" if self.source else None
        return TokenData(self.tokens, self.queries, mask=self.mask, labels=self.labels, value=value, source=source)

    @classmethod
    def self_attention(
        cls, tokens: Any, *, query: int | str | Any = -1, causal: bool = False, mask: Any = None, **rest: Any
    ) -> TokenData:
        """Self-attention: the queries are tokens of the example itself.

        Args:
            tokens: `(n, T, d)`.
            query: position of the token that asks: one integer for all examples, integers `(n,)` or `(n, m)`, or
                `"all"`: every token is a query, m = T. Negative positions count from the end of the example, which with
                `mask (n, T)` is its last visible token.
            causal: let the query at position k see the tokens t <= k only.
            mask: `(n, T)` or `(n, m, T)`, combined with the causal rule. With `query="all"` a token that
                `mask (n, T)` hides does not ask either.
            **rest: labels, value, head, source as in `TokenData`.

        Raises:
            InputError: as in `TokenData`; a position out of range, or of a token that `mask (n, T)` hides.
        """
        x = _numbers("tokens", tokens, (3,), "(n, T, d)")
        n, T, _ = x.shape
        ragged = mask is not None and np.ndim(mask) == 2
        present = _visibility(mask if ragged else None, n, 1, T)[:, 0]
        position = _positions(query, present)
        visible = _visibility(mask, n, position.shape[1], T).copy()
        if isinstance(query, str):
            visible &= present[:, :, None]
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
        """Write to `.npz` or `.safetensors`: keys `X`, `z`, `y`, `mask` and, where present, `v`, `chosen`, `source`.

        Args:
            path: ends in `.npz` or `.safetensors`; its folder exists.
            chosen: token indices, booleans or a `Selection`, as `attsvm.solve` takes them.

        Raises:
            InputError: another suffix, no such folder, a `chosen` that is none of these, or a callable head (code is
                not data: save the arrays, pass the head again).
        """
        if self.head is not None:
            raise InputError("A callable head cannot be saved; save data without it and pass head= after loading.")
        arrays = {"X": self.tokens, "z": self.queries, "y": self.labels, "mask": self.mask}
        arrays |= {} if self.value is None else {"v": self.value}
        arrays |= {} if chosen is None else {"chosen": _storable(chosen)}
        path = Path(path)
        if not path.parent.is_dir():
            raise InputError(f"There is no folder {str(path.parent)!r}; make it first.")
        if path.suffix == ".npz":
            arrays |= {"source": np.array(self.source)} if self.source else {}
            np.savez(path, allow_pickle=False, **arrays)
        elif path.suffix == ".safetensors":
            from safetensors.numpy import save_file

            metadata = {"source": self.source} if self.source else None
            save_file({key: np.ascontiguousarray(a) for key, a in arrays.items()}, path, metadata)
        else:
            raise InputError(f"Cannot tell the format of {path.name!r}; use the suffix .npz or .safetensors.")
        return path


def load(path: str | Path) -> tuple[TokenData, Array | None]:
    """Read `(data, chosen)` from npz or safetensors: keys `X`, `z`, optional `y`, `v`, `mask`, `chosen`, `source`.

    `chosen` comes back as stored (indices or booleans) or as None; `attsvm.solve(data, chosen)` takes it as it is.

    Raises:
        InputError: no such file, not the named format, a key missing, or one written in the wrong case.
    """
    path = Path(path)
    arrays = _read(path)
    source = arrays.pop("source", None)
    missing = {"X", "z"} - arrays.keys()
    strange = sorted(key for key in arrays if key not in KEYS and key.lower() in map(str.lower, KEYS))
    if missing:
        raise InputError(
            f"{path.name} lacks the key(s) {sorted(missing)}; it has {sorted(arrays)}. "
            "Expected X (n, T, d_k) and z (n, d_q) or (n, m, d_q), optionally y, v, mask, chosen."
        )
    if strange:  # left alone, a file's labels under "Y" would silently count as absent
        raise InputError(
            f"{path.name} has the key(s) {strange}, which differ from {', '.join(KEYS)} in case only; rename."
        )
    data = TokenData(
        arrays["X"],
        arrays["z"],
        mask=arrays.get("mask"),
        labels=arrays.get("y"),
        value=arrays.get("v"),
        source=None if source is None else str(source),
    )
    return data, arrays.get("chosen")


def _read(path: Path) -> dict[str, Array]:
    if not path.is_file():
        raise InputError(f"There is no file {str(path)!r}.")
    try:
        if path.suffix == ".safetensors":
            from safetensors import safe_open

            with safe_open(path, framework="numpy") as file:
                text = {key: np.array(line) for key, line in (file.metadata() or {}).items() if key == "source"}
                return {key: file.get_tensor(key) for key in file.keys()} | text  # noqa: SIM118 - not a mapping
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except Exception as error:  # whatever a damaged file raises, the user needs its name and the format
        raise InputError(f"{path.name} cannot be read; expected an .npz or .safetensors file ({error}).") from error


def _numbers(name: str, given: Any, ndims: tuple[int, ...], shape: str) -> Array:
    try:
        array = np.asarray(given)
        if array.dtype.kind in "cSUMm":  # NumPy would drop imaginary parts and read digits out of text
            raise TypeError(f"got dtype {array.dtype}")
        array = array.astype(np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} must be an array of real numbers of shape {shape}; {error}.") from error
    _expect(array.ndim in ndims and 0 not in array.shape, name, array.shape, f"shape {shape}, no axis empty")
    return array


def _any(mask: Array, axis: int) -> Array:
    return np.logical_or.reduce(mask, axis=axis)  # ndarray.any is typed as a scalar


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
        return np.broadcast_to(mask.copy()[:, None, :], (n, m, T))
    _expect(mask.shape == (n, m, T), "mask", mask.shape, f"{(n, T)} or {(n, m, T)}")
    return mask.copy()


def _labels(labels: Any, n: int, m: int) -> Array:
    if labels is None:
        return np.ones((n, m))
    y = _numbers("labels", labels, (1, 2), "(n,) or (n, m)")
    if y.shape == (n,):
        return np.repeat(y[:, None], m, axis=1)
    _expect(y.shape == (n, m), "labels", y.shape, f"{(n,)} or {(n, m)}")
    return y


def _positions(query: Any, present: Bool[Array, "n T"]) -> Array:
    n, T = present.shape
    if isinstance(query, str):
        _expect(query == "all", "query", repr(query), '"all" or token positions')
        return np.broadcast_to(np.arange(T), (n, T))
    position = np.asarray(query)
    if not np.issubdtype(position.dtype, np.integer):
        raise InputError(f'query must be "all" or integer token positions; got dtype {position.dtype}.')
    shape = position.shape
    position = np.broadcast_to(position, (n,)) if position.ndim == 0 else position
    _expect(position.ndim in (1, 2) and len(position) == n, "query", shape, f"one integer, ({n},) or ({n}, m)")
    _expect(position.size > 0, "query", shape, "at least one position per example")
    position = position.reshape(n, -1)
    if (position < -T).any() or (position >= T).any():
        raise InputError(f"query positions must lie in [-{T}, {T - 1}]; got {position.min()} to {position.max()}.")
    visible_last = np.argsort(present, axis=1, kind="stable")
    position = np.where(position < 0, np.take_along_axis(visible_last, position % T, axis=1), position)
    hidden = np.argwhere(~np.take_along_axis(present, position, axis=1))
    if len(hidden):
        i, k = hidden[0]
        raise InputError(f"Example {i} asks with token {position[i, k]}, which the mask hides; name a visible token.")
    return position


def _storable(chosen: Any) -> Array:
    array = np.asarray(getattr(chosen, "sets", chosen))
    if array.dtype.kind not in "biu":
        raise InputError(f"chosen must be token indices, booleans or a Selection to be saved; got dtype {array.dtype}.")
    return array


__all__ = ["TokenData", "load"]
