"""The training loss in a form that can be compared and descended however saturated the softmax is.

With a linear head the infimum of the loss is known: every query attends to a token of best score `γ* = max_t γ_t`. The
loss exceeds it by

    L - L_inf = (1/n) Σ [ℓ(γ* - D) - ℓ(γ*)],   D = Σ_t s_t (γ* - γ_t),

and `log(L - L_inf)` is a smooth function of the logits without cancellation: `log D` is a difference of two
log-sum-exps, and for small D the bracket is D times the mean slope of ℓ over `[γ* - D, γ*]`. Its gradient is the exact
gradient of `attsvm.attention` over `L - L_inf`, two logarithms subtracted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jax.scipy.special import logsumexp
from jaxtyping import Float

from attsvm import attention
from attsvm.data import TokenData
from attsvm.prediction import HeadKind, as_loss, gather_heads

Array = np.ndarray
_SMALL = 1e-3  # D up to which the mean slope replaces the difference of two losses
_NODES, _SHARES = (np.polynomial.legendre.leggauss(3)[0] + 1) / 2, np.polynomial.legendre.leggauss(3)[1] / 2


@dataclass(frozen=True)
class Point:
    """The objective at L weights.

    Attributes:
        value: `log(L - L_inf)`, or the loss itself where the head is not linear.
        gradient: of `value`.
        relative: the gradient of the loss over the sum of the sizes of its terms, at most 1: zero only where the
            gradient is, however small that is.
        loss: the training loss.
    """

    value: Float[Array, " L"]
    gradient: Float[Array, "N L"]
    relative: Float[Array, "N L"]
    loss: Float[Array, " L"]


class Objective:
    """The objective as a function of weights `(N, L)`, one column each: `Wᵀ`, or K and then Q, row by row.

    `optimal` `(n, m)` are the tokens of best score, -1 for padding; None where the head is not linear.
    """

    def __init__(self, data: TokenData, form: str, loss: Any, head: Callable[[Any], Any] | None) -> None:
        heads = gather_heads([data], head, np.zeros(1, dtype=int))
        self.data, self.loss, self.linear = data, as_loss(loss), heads.linear
        self.inner = min(data.d_k, data.d_q) if form == "KQ" else None
        inputs = attention.pack([data], np.zeros(1, dtype=int))
        gap, self.best = _gaps(data, heads.trailing[0]) if heads.linear else (None, None)
        length = _lengths(data, inputs)
        arrays = jax.device_put((inputs, attention.head_numbers(heads, inputs), gap, self.best, length))
        self.optimal = None if gap is None else np.where(data.active, gap.argmin(-1), -1)
        self.measure = partial(_measure, arrays=arrays, kind=heads.kind, log_slope=self.loss.log_slope)

    @property
    def size(self) -> int:
        """Numbers in one weight."""
        d_k, d_q = self.data.d_k, self.data.d_q
        return d_k * d_q if self.inner is None else (d_k + d_q) * self.inner

    def split(self, V: Float[Array, "N L"]) -> tuple[Array, ...]:
        """The matrices `(Wᵀ,)` or `(K, Q)`, runs last."""
        d_k, d_q, r = self.data.d_k, self.data.d_q, self.inner
        if r is None:
            return (V.reshape(d_q, d_k, -1),)
        return V[: d_k * r].reshape(d_k, r, -1), V[d_k * r :].reshape(d_q, r, -1)

    def __call__(self, V: Float[Array, "N L"]) -> Point:
        """Value, gradient and loss at every column."""
        matrices = self.split(V)
        G, log_scale, size, h, log_short, log_slope = jax.device_get(self.measure(matrices))
        loss = self._total(self.loss.value(self.data.labels[..., None] * h))
        value = self._log_excess(log_short, log_slope) if self.linear else loss
        flat = _chain(matrices, G).reshape(V.shape)
        with np.errstate(over="ignore", invalid="ignore"):
            factor = np.exp(log_scale - value if self.linear else log_scale)
        factor = np.where(np.isfinite(log_scale), factor, 0.0)
        reach = size * (1.0 if self.inner is None else np.linalg.norm(V, axis=0))
        relative = flat / np.where(reach > 0, reach, 1.0)
        return Point(value, factor * flat, relative, loss)

    def _total(self, losses: Float[Array, "n m L"]) -> Float[Array, " L"]:
        return np.where(self.data.active[..., None], losses, 0.0).sum((0, 1)) / self.data.n

    def _log_excess(self, log_short: Float[Array, "n m L"], log_slope: Float[Array, "n m L"]) -> Float[Array, " L"]:
        assert self.best is not None
        short, best = np.exp(log_short), self.best[..., None]
        with np.errstate(divide="ignore", invalid="ignore"):
            difference = np.log(self.loss.value(best - short) - self.loss.value(best + 0 * short))
        each = np.where(short > _SMALL, difference, log_short + log_slope)
        each = np.where(self.data.active[..., None], each, -np.inf)
        return np.asarray(scipy.special.logsumexp(each, axis=(0, 1))) - np.log(self.data.n)


def _gaps(data: TokenData, value: Array) -> tuple[Float[Array, "n m T"], Float[Array, "n m"]]:
    """`log(γ* - γ_t)`, -inf for hidden tokens, and `γ*`; padding queries get 0."""
    visible = data.mask | ~data.active[:, :, None]
    scores = np.where(visible, data.labels[:, :, None] * (data.tokens @ value)[:, None], -np.inf)
    best = scores.max(-1)
    with np.errstate(divide="ignore"):
        log_gap = np.log(best[..., None] - np.where(visible, scores, best[..., None]))
    return log_gap, np.where(data.active, best, 0.0)


def _lengths(data: TokenData, inputs: attention.Inputs) -> Float[Array, "n m T"]:
    """`‖x_t - x̄‖ ‖z‖`, the size of the matrix by which the gradient in a logit enters that in W."""
    keys, queries = np.linalg.norm(inputs.tokens, axis=-1), np.linalg.norm(inputs.queries, axis=-1)
    return keys[:, None] * queries.reshape(data.n, data.m, 1)


def _chain(matrices: tuple[Array, ...], G: Float[Array, "d_q d_k L"]) -> Array:
    """The gradient in the weights from `G`, that in `Wᵀ`."""
    if len(matrices) == 1:
        return G
    K, Q = matrices
    return np.concatenate([np.einsum("qkl,qil->kil", G, Q), np.einsum("qkl,kil->qil", G, K)]).reshape(-1, G.shape[-1])


@partial(jax.jit, static_argnames=("kind", "log_slope"))
def _measure(matrices: Any, *, arrays: Any, kind: HeadKind, log_slope: Any) -> Any:
    """Gradient in `Wᵀ` and its log scale, the sum of the sizes of its terms, h, `log D` and the log mean slope."""
    inputs, numbers, log_gap, best, length = arrays
    n, m = inputs.labels.shape[:2]
    queries = inputs.queries.reshape(n, m, -1)
    Wt = matrices[0] if len(matrices) == 1 else jnp.einsum("kil,qil->qkl", *matrices)
    logits = jnp.einsum("ntk,qkl,nmq->nmtl", inputs.tokens, Wt, queries)
    logits = jnp.where(inputs.visible, logits, -jnp.inf)
    score = attention.scorer(numbers, kind, inputs)
    c, log_scale = attention.logit_gradient(logits, inputs, score, log_slope)
    G = jnp.einsum("nmtl,ntk,nmq->qkl", c, inputs.tokens, queries)
    size = jnp.einsum("nmtl,nmt->l", jnp.abs(c), length)
    h, _ = score(jax.nn.softmax(logits, axis=2))
    if log_gap is None:
        return G, log_scale, size, h[:, :, 0], None, None
    log_short = logsumexp(logits + log_gap[..., None], axis=2) - logsumexp(logits, axis=2)
    at = best[..., None, None] - jnp.exp(log_short)[..., None] * _NODES
    return G, log_scale, size, h[:, :, 0], log_short, logsumexp(log_slope(at)[1], axis=-1, b=_SHARES)


__all__ = ["Objective", "Point"]
