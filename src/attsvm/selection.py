"""Which tokens are chosen: given, optimal by score, attended by a weight, or read off an attention map by a rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from attsvm.data import TokenData
from attsvm.errors import InputError, TieError

Array = np.ndarray

ROUNDING = 8 * np.finfo(float).eps


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
            that chooses nothing, an example whose queries see one token each, or no unchosen token anywhere. (An
            example whose tokens are all chosen still demands that their logits be equal.)
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
    rounding = ROUNDING * np.abs(data.labels)[:, :, None] * size
    return _unique_argmax(data, gamma, rounding, "score")


def attended(data: TokenData, W: Any) -> Selection:
    """The token each query attends to most under the weight `W (d_k, d_q)`: the argmax of `x_itᵀ W z_ik`.

    Raises:
        InputError: wrong shape, NaN or inf.
        TieError: the largest logit is shared, up to rounding, by two tokens.
    """
    return _unique_argmax(data, *_logits(data, W), "logit")


def by_threshold(probabilities: Any, level: float) -> Selection:
    """The tokens whose softmax probability exceeds `level`, the rule of the experiments of arXiv 2308.16898.

    Args:
        probabilities: an attention map `(n, m, T)` or `(n, T)`, such as `trajectory.probabilities[r, -1]`; zeros for
            padding queries.
        level: between 0 and 1.

    Raises:
        InputError: no attention map, a level out of range, or a query none of whose tokens exceeds it.
        TieError: a probability equals the level up to rounding.
    """
    p = _attention_map(probabilities)
    if not (isinstance(level, int | float | np.number) and 0 < level < 1):
        raise InputError(f"level: got {level!r}, expected a probability between 0 and 1, such as 1e-3.")
    _no_tie(np.abs(p - level).min(-1) <= ROUNDING * level, f"A probability equals the level {level:g}")
    return _nonempty(p, p > level, f"no token above the level {level:g}; lower it")


def by_mass(probabilities: Any, mass: float) -> Selection:
    """The fewest tokens that together hold the probability `mass`, the most attended ones first.

    Args:
        probabilities: as in `by_threshold`.
        mass: between 0 and 1, such as 0.99.

    Raises:
        InputError: no attention map, or a mass out of range.
        TieError: the last token taken and the first one left out have the same probability, or some of the tokens
            hold the very mass, up to rounding.
    """
    p = _attention_map(probabilities)
    if not (isinstance(mass, int | float | np.number) and 0 < mass < 1):
        raise InputError(f"mass: got {mass!r}, expected a probability between 0 and 1, such as 0.99.")
    order = np.argsort(-p, axis=-1, kind="stable")
    ranked = np.take_along_axis(p, order, axis=-1)
    held = np.cumsum(ranked, axis=-1)
    before = held - ranked
    taken = (before < mass) & (ranked > 0)
    next_one = np.where(taken, 0.0, ranked).max(-1)
    last_one = np.where(taken, ranked, 1.0).min(-1)
    _no_tie((np.abs(held - mass).min(-1) <= ROUNDING) | (last_one - next_one <= ROUNDING), "Two sets reach the mass")
    sets = np.zeros_like(taken)
    np.put_along_axis(sets, order, taken, axis=-1)
    return Selection(sets)


def by_largest_gap(data: TokenData, W: Any) -> Selection:
    """The tokens above the largest gap between neighbouring log-probabilities of a query, under `W (d_k, d_q)`.

    The gaps are those of the logits `x_itᵀ W z_ik`, which do not underflow. A query that sees one token chooses it.

    Raises:
        InputError: wrong shape, NaN or inf.
        TieError: two gaps are the largest, or all are zero, up to rounding.
    """
    logits, rounding = _logits(data, W)
    order = np.argsort(-logits, axis=-1, kind="stable")
    ranked = np.take_along_axis(logits, order, axis=-1)
    between = np.arange(1, data.T) < data.mask.sum(-1, keepdims=True)
    gaps = np.full((data.n, data.m, data.T + 1), -np.inf)
    gaps[..., -1] = 0.0  # what the largest gap has to exceed
    np.subtract(ranked[..., :-1], ranked[..., 1:], out=gaps[..., :-2], where=between)
    second, best = np.moveaxis(np.partition(gaps, -2, axis=-1)[..., -2:], -1, 0)
    _no_tie(best - second <= 2 * rounding.max(-1), "Two gaps are the largest")
    sets = np.zeros_like(data.mask)
    np.put_along_axis(sets, order, np.arange(data.T) <= gaps.argmax(-1)[..., None], axis=-1)
    return Selection(sets & data.mask)


def _logits(data: TokenData, W: Any) -> tuple[Array, Array]:
    """`x_itᵀ W z_ik`, `(n, m, T)`, -inf where hidden, and their rounding errors."""
    W = np.asarray(W, dtype=np.float64)
    if W.shape != (data.d_k, data.d_q) or not np.isfinite(W).all():
        raise InputError(f"W must be finite and of shape {(data.d_k, data.d_q)}; got shape {W.shape}.")
    logits = (data.queries @ W.T) @ data.tokens.swapaxes(1, 2)
    size = (np.abs(data.queries) @ np.abs(W).T) @ np.abs(data.tokens).swapaxes(1, 2)
    return np.where(data.mask, logits, -np.inf), ROUNDING * size


def _attention_map(probabilities: Any) -> Array:
    """Checked, as `(n, m, T)`."""
    p = np.asarray(probabilities, dtype=np.float64)
    p = p[:, None] if p.ndim == 2 else p
    if p.ndim != 3 or 0 in p.shape:
        raise InputError(f"probabilities: got shape {p.shape}, expected (n, m, T) or (n, T): one map at a time.")
    total = p.sum(-1)
    if not (p >= 0).all() or not ((np.abs(total - 1) < 1e-6) | (total == 0)).all():
        raise InputError(
            "probabilities: expected non-negative entries that sum to 1 over the tokens of a query (0 for padding); "
            f"got entries from {p.min():g} and sums from {total.min():g} to {total.max():g}."
        )
    return p


def _no_tie(tied: Array, what: str) -> None:
    where = np.argwhere(tied)
    if len(where):
        i, k = (int(j) for j in where[0])
        raise TieError(
            f"{what} up to rounding in {len(where)} queries, first in example {i}, query {k}. Change the number, "
            "train on, or choose the sets yourself (chosen=...)."
        )


def _nonempty(p: Array, sets: Array, what: str) -> Selection:
    empty = np.argwhere(~sets.any(-1) & (p.sum(-1) > 0))
    if len(empty):
        i, k = (int(j) for j in empty[0])
        raise InputError(f"Example {i}, query {k} has {what}.")
    return Selection(sets)


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
    idle = np.flatnonzero((data.mask.sum(-1) < 2).all(1))
    if len(idle):
        raise InputError(
            f"Example {int(idle[0])} has nothing to separate: each of its queries sees one token at most. "
            "Mask more tokens in, or drop the example."
        )
    if not (data.mask & ~sets).any():
        raise InputError("There is nothing to separate: every query chooses all of its tokens. Leave some unchosen.")
