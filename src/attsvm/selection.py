"""Which tokens are chosen: given, optimal by score, or attended by a weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from attsvm.data import TokenData
from attsvm.errors import InputError, TieError

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Selection:
    """The chosen set `O_ik` of every query, as booleans `(n, m, T)`; all False for a padding query."""

    sets: Bool[Array, "n m T"]

    @property
    def sizes(self) -> Int[Array, "n m"]:
        """How many tokens each query chooses."""
        return self.sets.sum(-1)

    @property
    def indices(self) -> Int[Array, "n m"]:
        """The chosen token `α_ik` of every query, -1 for padding.

        Raises:
            InputError: some query chooses several tokens; use `sets`.
        """
        if self.sizes.max() > 1:
            raise InputError("Some queries choose several tokens, so there is no single index; use Selection.sets.")
        return np.where(self.sizes == 1, self.sets.argmax(-1), -1)


def as_selection(data: TokenData, chosen: Any) -> Selection:
    """Turn what a user gives into a checked `Selection`.

    Args:
        data: the examples.
        chosen: `"optimal"` (by score), indices `(n,)` or `(n, m)` (one chosen token per query), booleans
            `(n, T)` or `(n, m, T)` (chosen sets), or a `Selection`.

    Raises:
        InputError: wrong shape or type, an index out of range, a chosen token the query cannot see, a query
            that chooses nothing, an example with nothing to separate.
        TieError: `"optimal"` where two tokens share the best score.
    """
    if isinstance(chosen, str):
        if chosen != "optimal":
            raise InputError(f'chosen must be "optimal", indices, booleans or a Selection; got {chosen!r}.')
        selection = optimal(data)
    elif isinstance(chosen, Selection):
        selection = chosen
    else:
        array = _array(chosen)
        selection = _from_sets(data, array) if array.dtype == bool else _from_indices(data, array)
    _check(data, selection.sets)
    return selection


def scores(data: TokenData) -> Float[Array, "n m T"]:
    """Token scores `γ_ikt = Y_ik vᵀx_it` of arXiv 2308.16898; -inf where the query cannot see.

    Raises:
        InputError: the data carry no linear head.
    """
    if data.value is None:
        raise InputError("Scores need a linear head: give the value vector v of shape (d_k,) as TokenData(value=...).")
    gamma = data.labels[:, :, None] * (data.tokens @ data.value)[:, None, :]
    return np.where(data.mask, gamma, -np.inf)


def optimal(data: TokenData) -> Selection:
    """The optimal tokens `opt_i = argmax_t γ_it`.

    Raises:
        InputError: no linear head.
        TieError: the best score is shared, up to rounding, by two tokens of a query.
    """
    gamma = scores(data)
    size = (np.abs(data.tokens) @ np.abs(np.asarray(data.value)))[:, None, :]
    rounding = 8 * np.finfo(float).eps * np.abs(data.labels)[:, :, None] * size
    return _unique_argmax(data, gamma, rounding, "score")


def attended(data: TokenData, W: Any) -> Selection:
    """The token each query attends to most under the weight `W (d_k, d_q)`: the argmax of `x_itᵀ W z_ik`.

    Raises:
        InputError: wrong shape, NaN or inf.
        TieError: the largest logit is shared, up to rounding, by two tokens.
    """
    W = np.asarray(W, dtype=np.float64)
    if W.shape != (data.d_k, data.d_q) or not np.isfinite(W).all():
        raise InputError(f"W must be finite and of shape {(data.d_k, data.d_q)}; got shape {W.shape}.")
    logits = (data.queries @ W.T) @ data.tokens.swapaxes(1, 2)
    size = (np.abs(data.queries) @ np.abs(W).T) @ np.abs(data.tokens).swapaxes(1, 2)
    return _unique_argmax(data, np.where(data.mask, logits, -np.inf), 8 * np.finfo(float).eps * size, "logit")


def _unique_argmax(data: TokenData, values: Array, rounding: Array, what: str) -> Selection:
    best = values.max(-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        top = data.mask & (best - values <= rounding)
    tied = np.argwhere(top.sum(-1) > 1)
    if len(tied):
        i, k = (int(j) for j in tied[0])
        tokens = np.flatnonzero(top[i, k]).tolist()
        raise TieError(
            f"The best {what} is shared in {len(tied)} queries, first in example {i}, query {k}: tokens {tokens} all "
            f"have {float(best[i, k, 0]):.17g}. Choose tokens yourself (chosen=...) or remove the tie from the data."
        )
    return Selection(top)


def _array(chosen: Any) -> Array:
    try:
        return np.asarray(chosen)
    except ValueError as error:
        raise InputError(
            f"chosen must be a full array of indices or booleans ({error}). Give unequal sets as booleans (n, m, T)."
        ) from error


def _from_indices(data: TokenData, given: Array) -> Selection:
    if not np.issubdtype(given.dtype, np.integer):
        raise InputError(f"chosen must hold integer token indices or booleans; got dtype {given.dtype}.")
    index = given[:, None] if given.ndim == 1 and data.m == 1 else given
    if index.shape != (data.n, data.m):
        raise InputError(f"chosen indices have shape {given.shape}; expected ({data.n},) or ({data.n}, {data.m}).")
    wrong = np.argwhere(data.active & ((index < 0) | (index >= data.T)))
    if len(wrong):
        i, k = wrong[0]
        raise InputError(
            f"chosen[{i}, {k}] = {index[i, k]} is not a token index; indices count from 0 to T - 1 = {data.T - 1}."
        )
    return Selection((np.arange(data.T) == index[:, :, None]) & data.active[:, :, None])


def _from_sets(data: TokenData, given: Array) -> Selection:
    sets = given[:, None, :] if given.ndim == 2 and data.m == 1 else given
    if sets.shape != (data.n, data.m, data.T):
        raise InputError(
            f"chosen booleans have shape {given.shape}; expected ({data.n}, {data.T}) for one query per example "
            f"or {(data.n, data.m, data.T)}."
        )
    return Selection(sets.copy())


def _check(data: TokenData, sets: Array) -> None:
    if sets.shape != data.mask.shape or sets.dtype != bool:
        raise InputError(
            f"The selection is {sets.dtype} of shape {sets.shape}; these data need booleans {data.mask.shape}."
        )
    hidden = np.argwhere(sets & ~data.mask)
    if len(hidden):
        i, k, t = (int(j) for j in hidden[0])
        raise InputError(f"Example {i}, query {k} chooses token {t}, which its mask hides; choose a visible token.")
    empty = np.argwhere(~sets.any(-1) & data.active)
    if len(empty):
        i, k = (int(j) for j in empty[0])
        raise InputError(f"Example {i}, query {k} chooses no token; choose at least one (or mask all of its tokens).")
    idle = np.flatnonzero(~(data.mask & ~sets & data.active[:, :, None]).any((1, 2)))
    if len(idle):
        raise InputError(
            f"Example {int(idle[0])} has nothing to separate: it has no visible token that is not chosen. "
            "Leave at least one token unchosen, or drop the example."
        )
