"""The one-layer attention model, and the exact log-domain gradient of its training loss.

A direct softmax gradient is zero or noise once a softmax rounds to 1 (logit gaps above about 37). Every factor of the
exact gradient is nevertheless known to full relative precision. With `g_t = x_tᵀ∇h(a)`, `p` a token of largest logit,
`ĝ_t = g_t - g_p`, and 2 the token of largest logit among those with `ĝ_t ≠ 0`,

    ∂h/∂logit_t = s_t Σ_τ s_τ (g_t - g_τ) = ε (r_t ĝ_t - s_t D),
    r_t = exp(logit_t - logit_2),   D = Σ_τ r_τ ĝ_τ,   log ε = logit_2 - logit_p - log Σ_τ exp(logit_τ - logit_p).

The bracket is of order one, and `ε` and the slope of the loss stay logarithms until the largest query's scale has been
taken out of all of them. Tokens that tie with `p` in score drop out of `r`, and so cannot hide the next one behind an
underflow. One exponential and a few sums per token: O(T), where the pairwise formula costs O(T²).

Inside compiled functions the runs, R, are the last axis of every array: that is the axis the processor vectorises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from attsvm._lanes import contract, total
from attsvm._static import join
from attsvm.data import TokenData
from attsvm.errors import InputError
from attsvm.prediction import HeadKind, Heads, as_loss, gather_heads

Array = np.ndarray


class Inputs(NamedTuple):
    """Data as the compiled functions take it, N = n m queries.

    With one data set for all runs the run axis is absent from `tokens`, `centre`, `queries` and of length 1 elsewhere.
    """

    tokens: Any  # (n, T, d_k[, R]), centred per example
    centre: Any  # (n, d_k[, R])
    queries: Any  # (N, d_q[, R])
    visible: Any  # (n, m, T, R or 1)
    labels: Any  # (n, m, 1, R or 1)
    log_weight: Any  # (n, m, 1, R or 1): log(|Y|/n), -inf for padding
    once: Any  # the number 1, see `contract`


def pack(data: Sequence[TokenData], run_data: Array) -> Inputs:
    """The data sets of the runs `run_data` (indices into `data`) with the run axis last; shared if there is one."""
    parts = [_pack_one(one) for one in data]
    if len(parts) == 1:
        shared = parts[0]
        return Inputs(*shared[:3], *(a[..., None] for a in shared[3:]), once=1)
    return Inputs(*(np.stack([a[i] for i in run_data], axis=-1) for a in zip(*parts, strict=True)), once=1)


def _pack_one(data: TokenData) -> tuple[Array, ...]:
    # The softmax does not see a shift of all its tokens; taking it out keeps differences of scores precise.
    seen = np.any(data.mask, axis=1)[:, :, None]
    centre = np.where(seen, data.tokens, 0.0).sum(1) / np.maximum(seen.sum(1), 1)
    weight = np.abs(data.labels) * data.active / data.n
    with np.errstate(divide="ignore"):
        log_weight = np.log(weight)
    return (
        np.where(seen, data.tokens - centre[:, None], 0.0),
        centre,
        data.queries.reshape(-1, data.d_q),
        data.mask | ~data.active[:, :, None],
        data.labels[:, :, None],
        log_weight[:, :, None],
    )


def head_numbers(heads: Heads, inputs: Inputs) -> tuple[Array, ...]:
    """What `scorer` needs of the heads: `(g, h0)` where they are linear, or else their numbers, the run axis last."""
    if not heads.linear:
        return heads.trailing
    (value,) = heads.trailing
    # Term by term, so that the order of the sums does not depend on the number of runs.
    g = reduce(np.add, (inputs.tokens[:, :, k] * v for k, v in enumerate(value)))
    h0 = reduce(np.add, (inputs.centre[:, k] * v for k, v in enumerate(value)))
    if inputs.tokens.ndim == 3:
        g, h0 = g[..., None], h0[..., None]
    return g[:, None], h0[:, None, None]


def scorer(numbers: Any, kind: HeadKind, inputs: Inputs) -> Callable[[Any], tuple[Any, Any]]:
    """The function from softmax probabilities `(n, m, T, R)` to `h`, `(n, m, 1, R)`, and `g = X∇h`, `(n, m, T, R)`."""
    if kind.linear:
        g, h0 = numbers
        return lambda softmax: (h0 + total(softmax * g, 2), g)

    def point(numbers: Any, pooled: Any) -> tuple[Any, Any]:
        return jax.value_and_grad(lambda a: join(numbers, kind.static)(a))(pooled)

    points = jax.vmap(point, (None, 0))
    runs = jax.vmap(points, (-1 if kind.per_run else None, -1), -1)
    product = partial(contract, once=inputs.once)

    def score(softmax: Any) -> tuple[Any, Any]:
        n, m, _, R = softmax.shape
        centre = inputs.centre if inputs.centre.ndim == 3 else inputs.centre[..., None]
        pooled = centre[:, None] + product("ntk*,nmtr->nmkr", inputs.tokens, softmax)
        h, slope = runs(numbers, pooled.reshape(n * m, -1, R))
        slope = slope.reshape(n, m, -1, R)
        return h.reshape(n, m, 1, R), product("ntk*,nmkr->nmtr", inputs.tokens, slope)

    return score


def logit_gradient(logits: Any, inputs: Inputs, score: Any, log_slope: Any) -> tuple[Any, Any]:
    """`(c, log_scale)`: the gradient of the loss with respect to the logits is `exp(log_scale) * c`.

    Args:
        logits: `(n, m, T, R)`.
        inputs: the data, see `pack`.
        score: see `scorer`.
        log_slope: see `prediction.Loss`.

    Returns:
        `c` `(n, m, T, R)`, of order one in its largest entry, and `log_scale` `(R,)`, -inf where `c = 0`.
    """
    largest = partial(jnp.max, axis=2, keepdims=True)
    logits = jnp.where(inputs.visible, logits, -jnp.inf)
    top = largest(logits)
    weights = jnp.exp(logits - top)
    normalizer = total(weights, 2)
    softmax = weights / normalizer
    h, g = score(softmax)
    gap = g - largest(jnp.where(logits == top, g, -jnp.inf))
    counts = inputs.log_weight > -jnp.inf
    moving = (gap != 0) & inputs.visible & counts
    second = largest(jnp.where(moving, logits, -jnp.inf))
    pull = jnp.where(moving, jnp.exp(logits - second) * gap, 0.0)
    sign, log_loss = log_slope(inputs.labels * h)
    log_size = inputs.log_weight + log_loss + second - top - jnp.log(normalizer)
    log_size = jnp.where(counts, log_size, -jnp.inf)  # a head may be undefined at a padding query's pooled token
    log_scale = (log_size + jnp.log(largest(jnp.abs(pull)))).max((0, 1), keepdims=True)
    factor = jnp.exp(log_size - jnp.where(log_scale == -jnp.inf, 0.0, log_scale)) * sign * jnp.sign(inputs.labels)
    return (pull - softmax * total(pull, 2)) * factor, log_scale[0, 0, 0]


def weight_gradient(weights: tuple[Any, ...], inputs: Inputs, score: Any, log_slope: Any) -> tuple[Any, Any]:
    """`(direction, log_scale)` of the gradient in the weights `(Wᵀ,)` or `(K, Q)`, shapes as in `Optimizer`."""
    z, product = inputs.queries, partial(contract, once=inputs.once)
    if len(weights) == 1:
        pulled, log_scale = _key_gradient(product("Nq*,qkr->Nkr", z, weights[0]), inputs, score, log_slope)
        return (product("Nq*,Nkr->qkr", z, pulled),), log_scale
    K, Q = weights
    asked = product("Nq*,qir->Nir", z, Q)
    pulled, log_scale = _key_gradient(product("kir,Nir->Nkr", K, asked), inputs, score, log_slope)
    gK, gQ = product("Nkr,Nir->kir", pulled, asked), product("Nq*,Nir->qir", z, product("kir,Nkr->Nir", K, pulled))
    return (gK, gQ), log_scale


def _key_gradient(keys: Any, inputs: Inputs, score: Any, log_slope: Any) -> tuple[Any, Any]:
    """The gradient in `W z`, `(N, d_k, R)`, at `keys = W z`, and its log scale."""
    n, _, k = inputs.tokens.shape[:3]
    product = partial(contract, once=inputs.once)
    logits = product("ntk*,nmkr->nmtr", inputs.tokens, keys.reshape(n, -1, k, keys.shape[-1]))
    c, log_scale = logit_gradient(logits, inputs, score, log_slope)
    return product("ntk*,nmtr->nmkr", inputs.tokens, c).reshape(keys.shape), log_scale


@partial(jax.jit, static_argnames=("kind", "log_slope"))
def _gradient(weights: Any, inputs: Inputs, numbers: Any, *, kind: HeadKind, log_slope: Any) -> Any:
    return weight_gradient(weights, inputs, scorer(numbers, kind, inputs), log_slope)


def gradient(
    data: TokenData,
    weights: Any,
    *,
    head: Callable[[Any], Any] | None = None,
    loss: str | Callable[[Any], Any] = "logistic",
) -> tuple[Any, Any]:
    """The exact gradient of the training loss (eq. (ERM) of arXiv 2308.16898) at finite weights, however saturated.

    Args:
        data: the examples, with a `value` or a `head` unless `head` is given.
        weights: `W` `(d_k, d_q)` or `(R, d_k, d_q)`, or a tuple `(K, Q)`, `(d_k, r)` and `(d_q, r)`, likewise.
        head: any prediction head, see `attsvm.train`.
        loss: a name or a JAX callable of the margin `Y h`.

    Returns:
        `(direction, log_scale)`: the gradient is `exp(log_scale) * direction`. `direction` has the shape of `weights`
        and stays of order one; `log_scale` is a float, or `(R,)`, and -inf where the gradient is exactly zero.

    Raises:
        InputError: weights of the wrong shape or not finite; no head.
    """
    with jax.enable_x64(True):
        heads, rule = gather_heads([data], head, np.zeros(1, dtype=int)), as_loss(loss)
        matrices, single = as_runs(weights, data)
        inputs = pack([data], np.zeros(1, dtype=int))
        numbers = head_numbers(heads, inputs)
        out, log_scale = _gradient(matrices, inputs, numbers, kind=heads.kind, log_slope=rule.log_slope)
        direction = [np.moveaxis(np.asarray(g), -1, 0) for g in out]
    if len(direction) == 1:
        direction = [direction[0].swapaxes(1, 2)]
    if single:
        direction, log_scale = [g[0] for g in direction], log_scale[0]
    return (tuple(direction) if isinstance(weights, tuple) else direction[0]), np.asarray(log_scale)[()]


def as_runs(weights: Any, data: TokenData) -> tuple[tuple[Array, ...], bool]:
    """Weights checked and with the run axis last, as `Optimizer` takes them, and whether they had no run axis.

    Raises:
        InputError: wrong shapes, different numbers of runs, NaN or infinite entries.
    """
    names = ("K", "Q") if isinstance(weights, tuple) else ("W",)
    try:
        parts = [np.array(w, dtype=np.float64) for w in (weights if isinstance(weights, tuple) else (weights,))]
    except (TypeError, ValueError) as error:
        raise InputError(f"The weights must be an array, or a tuple of arrays (K, Q); {error}.") from error
    if len(parts) != len(names):
        raise InputError(f"The weights are a tuple of {len(parts)}; expected a tuple (K, Q), or one array W.")
    rank = parts[-1].shape[-1] if parts[-1].ndim else 0
    expected = [(data.d_k, data.d_q)] if len(parts) == 1 else [(data.d_k, rank), (data.d_q, rank)]
    for name, part, shape in zip(names, parts, expected, strict=True):
        if part.ndim not in (2, 3) or part.shape[-2:] != shape or 0 in part.shape:
            raise InputError(f"{name}: got {part.shape}, expected {shape} or (R, {shape[0]}, {shape[1]}).")
        if not np.isfinite(part).all():
            raise InputError(f"{name} has NaN or infinite entries.")
    if len({part.shape[:-2] for part in parts}) != 1:
        raise InputError(f"K has leading axes {parts[0].shape[:-2]} and Q {parts[1].shape[:-2]}; they must agree.")
    single = parts[0].ndim == 2
    parts = [part[None] if single else part for part in parts]
    parts = [parts[0].swapaxes(1, 2)] if len(parts) == 1 else parts
    return tuple(np.ascontiguousarray(np.moveaxis(part, 0, -1)) for part in parts), single


def logits(data: TokenData, W: Float[Array, "*runs d_k d_q"]) -> Float[Array, "*runs n m T"]:
    """`x_itᵀ W z_ij` for every example, query and token; -inf at tokens the query does not see."""
    keys = np.asarray(W) @ data.queries.reshape(-1, data.d_q).T
    keys = keys.reshape(*keys.shape[:-1], data.n, data.m)
    keys = np.moveaxis(keys, -3, -1)  # (*runs, n, m, d_k)
    return np.where(data.mask, keys @ data.tokens.swapaxes(1, 2), -np.inf)


def probabilities(data: TokenData, W: Float[Array, "*runs d_k d_q"]) -> Float[Array, "*runs n m T"]:
    """The softmax `s_ij = softmax(X_i W z_ij)` over the visible tokens; zeros for padding queries."""
    return softmax(logits(data, W))


def softmax(logits: Float[Array, "*any T"]) -> Float[Array, "*any T"]:
    """The softmax over the last axis; zeros where every logit is -inf."""
    top = logits.max(-1, keepdims=True)
    weights = np.exp(logits - np.where(top == -np.inf, 0.0, top))
    return weights / np.maximum(weights.sum(-1, keepdims=True), np.finfo(float).tiny)


__all__ = ["gradient", "logits", "probabilities", "softmax"]
