"""Training on after the chosen sets are settled: a finite part inside the sets, a direction that separates them.

Where several tokens stay chosen, `W -> W_fin + R W_mm` (eq. (SVMeq) of arXiv 2308.16898). The gradient that settles the
finite part dwarfs the exponentially small one that drives R, and a normalised step of fixed length spends itself on the
former: `‖W‖` stops growing. The rule here splits every step. E is the span of `(x_t - x_τ) zᵀ`, t, τ both chosen by the
query z:

    on E                 a plain step of the gradient, or a natural one (below);
    on its complement    a normalised step of the gradient without the pairs inside the chosen sets.

The gradient in the logits of a query is `c_t = ω s_t Σ_τ s_τ (g_t - g_τ)`. Pairs inside a chosen set move W inside E
only, so they are left out of the second part before anything is rounded. Of the other pairs, each has a factor s_τ of a
token that is not chosen; the largest of these is taken out of all of them as a logarithm (compare `attsvm.attention`).

A query without force (a dead ReLU, see `attsvm.decompose.flat_queries`) that chooses several tokens has pairs in E too,
and no gradient there: this rule holds their logits fixed, where another step may let them drift. To let them, give such
a query the set of its most attended token.

With `c (n m T,)` the coefficients of `Σ c_t x_t zᵀ`, S the differences of coefficients that span E and Γ the Gram
matrix of all `x_t zᵀ`, the projection on E is `A c` with `A = M Γ`, `M = S (SᵀΓS)⁺ Sᵀ`: computed once per run.

The natural step moves the logits inside a set by `-η ω (g_t - ḡ)`: the gradient in the metric of the softmax, without
the factor `s_t` that holds back tokens of small weight. On one query it is exponentiated gradient descent on its map.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from attsvm import attention
from attsvm._lanes import contract, total
from attsvm._static import join, split
from attsvm.data import TokenData
from attsvm.errors import InputError
from attsvm.prediction import HeadKind, Heads, Loss, as_loss, gather_heads
from attsvm.selection import Selection
from attsvm.training import _data_sets, _Loop, _plan, _progress
from attsvm.trajectory import Trajectory

Array = np.ndarray


@partial(jax.tree_util.register_dataclass, data_fields=["learning_rate"], meta_fields=["finite"])
@dataclass(frozen=True)
class TwoScale:
    """The rule of this module: the length of the steps, and the kind of step inside the chosen sets."""

    learning_rate: Any = 0.1
    finite: str = "gd"


def train_two_scale(
    start: Trajectory | tuple[Any, Any],
    chosen: Any,
    *,
    steps: int = 20_000,
    learning_rate: float = 0.1,
    finite: str = "gd",
    loss: str | Callable[[Any], Any] = "logistic",
    head: Callable[[Any], Any] | None = None,
    record: Any = "log",
    progress: bool | None = None,
) -> Trajectory:
    """Continue trained runs in W form until both the finite part and the direction have converged.

    Args:
        start: a `Trajectory`, continued from its last weights, or `(data, W)`: one data set with `W (d_k, d_q)` or
            `(R, d_k, d_q)`, or R data sets of equal shapes with `W (R, d_k, d_q)`.
        chosen: the chosen sets: a `Selection` or booleans `(n, m, T)` for all runs, or a list of R of them, such as
            `by_threshold(trajectory.probabilities[r, -1], 1e-3)` of every run r. A set may hold all tokens; where all
            do, E is everything there is and no direction is left.
        steps: further steps.
        learning_rate: of both parts, in the sense of plain and of normalised gradient descent.
        finite: the step inside the chosen sets: `"gd"`, or `"natural"`, which does not stall on tokens of small weight.
        loss: as in `attsvm.train`; give again what the runs were trained with.
        head: likewise. Default: each data set's own.
        record: as in `attsvm.train`; step 0 is the start.
        progress: as in `attsvm.train`.

    Returns:
        The continuation as a trajectory of its own. Its chosen sets should still be `chosen`: if they are not, the
        split was made too early. `seeds` are those of `start`, -1 for given weights.

    Raises:
        InputError: (K, Q) weights, sets that do not fit the data, or another unusable argument.
        TrainingError: weights or loss that are not finite.
    """
    sets, run_data, seeds, W = _start(start)
    selected = _selected(chosen, sets, run_data)
    rule, plan = _rule(learning_rate, finite), _plan(steps, record)
    with jax.enable_x64(True):
        cost, heads = as_loss(loss), gather_heads(sets, head, run_data)
        loop = _TwoScaleLoop(sets, run_data, rule, cost, heads, W, selected)
        with _progress(progress, int(plan[-1])) as tick:
            loop.run(plan, tick)
        result = loop.result()
    settings = {
        "optimizer": repr(rule),
        "steps": int(plan[-1]),
        "record": plan.tolist(),
        "loss": cost.name,
        "chosen_sets": selected.tolist(),
        "start": start.settings if isinstance(start, Trajectory) else "given weights",
    }
    return Trajectory(form="W", data=sets, run_data=run_data, seeds=seeds, settings=settings, **result)


class _TwoScaleLoop(_Loop):
    """The training loop with another step."""

    def __init__(
        self,
        sets: tuple[TokenData, ...],
        run_data: Array,
        rule: TwoScale,
        loss: Loss,
        heads: Heads,
        weights: tuple[Array, ...],
        chosen: Bool[Array, "R n m T"],
    ) -> None:
        self.sets, self.run_data, self.loss, self.heads, self.stop = sets, run_data, loss, heads, None
        pairs = [_projection(sets[i], one) for i, one in zip(run_data, chosen, strict=True)]
        projections = tuple(np.stack(parts, axis=-1) for parts in zip(*pairs, strict=True))
        inputs, numbers = attention.pack(sets, run_data), split(rule)
        arrays = inputs, attention.head_numbers(heads, inputs), numbers[0], np.moveaxis(chosen, 0, -1), *projections
        keywords = {"arrays": jax.device_put(arrays), "kind": heads.kind, "log_slope": loss.log_slope}
        self.advance = partial(_advance, rule=numbers[1], **keywords)
        self.state = jax.device_put((weights, ()))
        self.step, self.steps, self.records = 0, [], []
        self.stopped = np.full(len(run_data), -1)
        self.seconds = self.compile_seconds = 0.0


@partial(jax.jit, static_argnames=("rule", "kind", "log_slope"))
def _advance(state: Any, count: Any, *, arrays: Any, rule: Any, kind: HeadKind, log_slope: Any) -> Any:
    """`count` steps, a traced number as in `attsvm.train`."""
    inputs, head_numbers, rule_numbers, chosen, M, A = arrays
    optimizer = join(rule_numbers, rule)
    score, rate = attention.scorer(head_numbers, kind, inputs), optimizer.learning_rate
    product = partial(contract, once=inputs.once)
    n = len(inputs.tokens)

    def apply(matrix: Any, c: Any) -> Any:
        return product("abr,br->ar", matrix, c.reshape(-1, c.shape[-1])).reshape(c.shape)

    def weight(c: Any) -> Any:
        pulled = product("ntk*,nmtr->nmkr", inputs.tokens, c)
        return product("Nq*,Nkr->qkr", inputs.queries, pulled.reshape(-1, *pulled.shape[2:]))

    def step(_: Any, state: Any) -> Any:
        (w,), memory = state
        keys = product("Nq*,qkr->Nkr", inputs.queries, w)
        logits = product("ntk*,nmkr->nmtr", inputs.tokens, keys.reshape(n, -1, *keys.shape[1:]))
        natural, plain, outer = split_gradient(logits, inputs, score, log_slope, chosen)
        inner = apply(M, natural) if optimizer.finite == "natural" else apply(A, plain)
        away = weight(outer - apply(A, outer))
        size = jnp.sqrt(total(total(away * away, 0), 1))
        return (w - rate * (weight(inner) + jnp.where(size == 0, 0.0, away / size)),), memory

    return jax.lax.fori_loop(0, count, step, state)


def split_gradient(
    logits: Any, inputs: attention.Inputs, score: Any, log_slope: Any, chosen: Any
) -> tuple[Any, Any, Any]:
    """The gradient in the logits, `(n, m, T, R)` like every array here, in three ways.

    Returns:
        `natural`: inside the chosen sets without the factor of the softmax, zero elsewhere. `plain`: the gradient.
        `outer`: the pairs that are not inside a chosen set, in units of the largest of the run, hence of order one.
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
    sign, log_loss = log_slope(inputs.labels * h)
    # A head may be undefined at a padding query's pooled token.
    log_pull = jnp.where(counts, inputs.log_weight + log_loss, -jnp.inf)
    sign = jnp.where(counts, sign * jnp.sign(inputs.labels), 0.0)
    above = gap - total(softmax * gap, 2)
    natural = jnp.where(chosen & counts, sign * jnp.exp(log_pull) * above, 0.0)
    plain = jnp.where(counts, softmax * sign * jnp.exp(log_pull) * above, 0.0)

    # As in `attention.logit_gradient`, tokens that exert no force must not hide the next one behind an underflow.
    uneven = largest(jnp.where(chosen, jnp.abs(gap), 0.0)) > 0
    moving = inputs.visible & counts & ~chosen & ((gap != 0) | uneven)
    second = largest(jnp.where(moving, logits, -jnp.inf))
    r = jnp.where(moving, jnp.exp(logits - second), 0.0)
    across = jnp.where(chosen, softmax * (gap * total(r, 2) - total(r * gap, 2)), 0.0)
    pull = across + jnp.where(moving, r * above, 0.0)
    log_size = log_pull + second - top - jnp.log(normalizer)
    log_scale = (log_size + jnp.log(largest(jnp.abs(pull)))).max((0, 1), keepdims=True)
    factor = jnp.exp(log_size - jnp.where(log_scale == -jnp.inf, 0.0, log_scale)) * sign
    return natural, plain, pull * factor


def _projection(data: TokenData, chosen: Bool[Array, "n m T"]) -> tuple[Float[Array, "N N"], Float[Array, "N N"]]:
    """`M` and `A` of the module's text, `N = n m T`."""
    seen = np.logical_or.reduce(data.mask, axis=1)[:, :, None]
    centre = np.where(seen, data.tokens, 0.0).sum(1, keepdims=True) / np.maximum(seen.sum(1, keepdims=True), 1)
    X = np.repeat(np.where(seen, data.tokens - centre, 0.0)[:, None], data.m, axis=1).reshape(-1, data.d_k)
    Z = np.repeat(data.queries.reshape(-1, data.d_q), data.T, axis=0)
    gram = (X @ X.T) * (Z @ Z.T)
    reference = np.arange(data.T) == chosen.argmax(-1)[..., None]
    other = np.flatnonzero(chosen & ~reference)
    differences = np.zeros((chosen.size, len(other)))
    differences[other, np.arange(len(other))] = 1.0
    differences[np.flatnonzero(reference)[other // data.T], np.arange(len(other))] = -1.0
    inner = np.linalg.pinv(differences.T @ gram @ differences, rcond=1e-13, hermitian=True)
    M = differences @ inner @ differences.T
    return M, M @ gram


def _rule(learning_rate: Any, finite: Any) -> TwoScale:
    if not (isinstance(learning_rate, int | float | np.number) and 0 < learning_rate < np.inf):
        raise InputError(f"learning_rate: got {learning_rate!r}, expected a positive finite number.")
    if finite not in ("gd", "natural"):
        raise InputError(f'finite: got {finite!r}, expected "gd" or "natural".')
    return TwoScale(float(learning_rate), finite)


def _start(start: Any) -> tuple[tuple[TokenData, ...], Array, Array, tuple[Array, ...]]:
    """Data sets, the data set and the seed of every run, and `Wᵀ` with the runs last."""
    if isinstance(start, Trajectory):
        if start.form != "W":
            raise InputError('Two scales are a rule for W; this trajectory was trained in form="KQ".')
        weights, _ = attention.as_runs(start.final, start.data[0])
        return start.data, start.run_data, start.seeds, weights
    if not isinstance(start, tuple) or len(start) != 2:
        raise InputError(f"start: got {type(start).__name__}, expected a Trajectory or a tuple (data, W).")
    sets = _data_sets(start[0])
    if isinstance(start[1], tuple):
        raise InputError("Two scales are a rule for W; got a tuple of weights.")
    weights, single = attention.as_runs(start[1], sets[0])
    runs = weights[0].shape[-1]
    if len(sets) > 1 and (single or runs != len(sets)):
        raise InputError(f"W: got {1 if single else runs} weights for {len(sets)} data sets; give one for each.")
    run_data = np.arange(runs) if len(sets) > 1 else np.zeros(runs, dtype=int)
    return sets, run_data, np.full(runs, -1), weights


def _selected(chosen: Any, sets: Sequence[TokenData], run_data: Array) -> Bool[Array, "R n m T"]:
    given = chosen if isinstance(chosen, list) else [chosen] * len(run_data)
    if len(given) != len(run_data):
        raise InputError(f"chosen lists {len(given)} sets for {len(run_data)} runs; give one for each, or one for all.")
    out = []
    for r, one in enumerate(given):
        array, data = one.sets if isinstance(one, Selection) else np.asarray(one), sets[int(run_data[r])]
        if array.dtype != bool or array.shape != data.mask.shape:
            raise InputError(
                f"chosen, run {r}: got {array.dtype} of shape {array.shape}, expected booleans {data.mask.shape}."
            )
        if (array & ~data.mask).any() or (data.active & ~array.any(-1)).any():
            raise InputError(f"chosen, run {r}: a query chooses a token it cannot see, or none at all.")
        out.append(array)
    return np.stack(out)


__all__ = ["TwoScale", "train_two_scale"]
