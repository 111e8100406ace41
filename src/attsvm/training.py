"""Training of the one-layer attention model with the exact log-domain gradient, many runs at once."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from attsvm import attention
from attsvm._static import join, split
from attsvm.data import TokenData
from attsvm.errors import AttSVMError, InputError
from attsvm.optimizers import Matrices, Optimizer, as_optimizer
from attsvm.prediction import HeadKind, Heads, Loss, as_loss, gather_heads
from attsvm.trajectory import Trajectory, observe

Array = np.ndarray
_RECORDS = 50
_PATIENCE = 2.0  # seconds before a progress bar appears
_SLICE = 0.5  # seconds of work between looks at the clock and at Ctrl-C


@dataclass(frozen=True)
class Snapshot:
    """What a stop condition sees at a recorded step, every array over the R runs."""

    step: int
    loss: Float[Array, " R"]
    norms: Float[Array, " R"]
    chosen_probability: Float[Array, " R"]


@dataclass(frozen=True)
class SaturatedAt:
    """Stop a run once every query gives its chosen token at least this softmax probability."""

    probability: float = 0.999

    def __call__(self, snapshot: Snapshot) -> Array:
        """Which runs to stop, `(R,)`."""
        return snapshot.chosen_probability >= self.probability


class TrainingError(AttSVMError):
    """Training produced numbers that are not finite."""


def train(
    data: TokenData | Sequence[TokenData],
    *,
    form: str = "W",
    optimizer: str | Optimizer = "normalized_gd",
    learning_rate: float | None = None,
    steps: int | None = None,
    regularization: float | None = None,
    log_regularization: float | None = None,
    loss: str | Callable[[Any], Any] = "logistic",
    head: Callable[[Any], Any] | None = None,
    seeds: Any = 0,
    initial: Any = "uniform",
    inner_dim: int | None = None,
    record: str | int | Sequence[int] | Array = "log",
    stop: Callable[[Snapshot], Any] | None = None,
    progress: bool | None = None,
) -> Trajectory:
    """Train attention weights by gradient descent: W-GD or KQ-GD of section 2 of arXiv 2308.16898, any number of runs.

    Minimises `(1/n) Σ_i Σ_queries ℓ(Y h(X_iᵀ softmax(X_i W z)))`, plus `λ(‖K‖_F² + ‖Q‖_F²)`, or `λ‖W‖_F²` in W form.
    The gradient is exact in direction at any finite weights (see `attsvm.attention`), so neither saturation nor a
    `λ` far below 1e-308 stops it. A run's result depends on its data, its seed and the settings, not on its batch.

    Args:
        data: one data set, or several of equal shapes.
        form: `"W"`, or `"KQ"` for `W = K Qᵀ`.
        optimizer: `"normalized_gd"`, `"gd"`, or an object with the interface of `attsvm.optimizers.Optimizer`.
        learning_rate: for an optimizer given by name; default 0.1.
        steps: default 2,000, or the last of the given record steps.
        regularization: `λ >= 0`.
        log_regularization: the natural logarithm of `λ` instead, such as `-100 * log(10)` or far below.
        loss: `"logistic"`, `"exponential"`, `"correlation"`, or a JAX callable of one margin `Y h`.
        head: prediction head for all data sets, a JAX callable from a pooled token `(d_k,)` to a scalar. Default:
            each data set's own `head` or `value`.
        seeds: one integer; several, `(k,)`: every data set is trained from every seed; or `(B, k)`: row i holds the
            seeds of data set i. Runs are ordered by data set first.
        initial: `"uniform"`: each of W, K, Q uniform in ±1/√width, the width of what the matrix is applied to: d_q
            for W (columns) and Q (rows), d_k for K (rows). `"zeros"` (W form). Or arrays: `W`, or `(K, Q)`, with or
            without a leading run axis.
        inner_dim: columns of K and Q; default `min(d_k, d_q)`.
        record: `"log"` (50 log-spaced steps), another number of them, or the steps themselves. The last step is
            always recorded.
        stop: called with a `Snapshot` at every recorded step, returns which runs to stop, `(R,)` or one boolean. A
            stopped run keeps its weights; training ends when all have stopped. Example: `SaturatedAt(0.999)`.
        progress: show a progress bar. Default: on a terminal, once training has taken two seconds.

    Returns:
        The trajectory, in NumPy float64.

    Raises:
        InputError: an argument that cannot be used as given; the message says what to do.
        TrainingError: weights or loss that are not finite, with the run and the step.
    """
    sets = _data_sets(data)
    run_data, run_seeds = _runs(len(sets), seeds)
    rule = as_optimizer(optimizer, learning_rate)
    plan = _plan(steps, record)
    log_lambda = _log_lambda(regularization, log_regularization)
    with jax.enable_x64(True):
        cost = as_loss(loss)
        heads = gather_heads(sets, head, run_data)
        weights = _initial(initial, form, sets[0], run_seeds, inner_dim)
        loop = _Loop(sets, run_data, rule, cost, heads, log_lambda, weights, stop)
        with _progress(progress, int(plan[-1])) as tick:
            loop.run(plan, tick)
        result = loop.result()
    settings = {
        "optimizer": repr(rule),
        "steps": int(plan[-1]),
        "record": plan.tolist(),
        "log_regularization": log_lambda,
        "loss": cost.name,
        "head": "linear" if heads.linear else getattr(heads.static, "__name__", str(heads.static)),
        "initial": initial if isinstance(initial, str) else [np.asarray(w).tolist() for w in initial],
        "inner_dim": None if form == "W" else weights[0].shape[1],
        "stop": None if stop is None else repr(stop),
    }
    return Trajectory(form=form, data=sets, run_data=run_data, seeds=run_seeds, settings=settings, **result)


class _Loop:
    """The host's side of training: records, stop condition, checks. `_advance` does the steps."""

    def __init__(
        self,
        sets: tuple[TokenData, ...],
        run_data: Array,
        rule: Optimizer,
        loss: Loss,
        heads: Heads,
        log_lambda: float | None,
        weights: Matrices,
        stop: Callable[[Snapshot], Any] | None,
    ) -> None:
        self.sets, self.run_data, self.loss, self.heads, self.stop = sets, run_data, loss, heads, stop
        numbers, static = split(rule)
        inputs = attention.pack(sets, run_data)
        arrays = jax.device_put((inputs, attention.head_numbers(heads, inputs), numbers, log_lambda))
        self.advance = partial(_advance, arrays=arrays, rule=static, kind=heads.kind, log_slope=loss.log_slope)
        self.state = jax.device_put((weights, rule.init(weights)))
        self.step, self.steps, self.records = 0, [], []
        self.stopped = np.full(len(run_data), -1)
        self.seconds = self.compile_seconds = 0.0

    def run(self, plan: Array, tick: Callable[[int], None]) -> None:
        """Train to the last step of `plan`, or until every run has stopped."""
        start = time.perf_counter()
        self.state = jax.block_until_ready(self.advance(self.state, 0))
        self.compile_seconds = time.perf_counter() - start
        for target in plan:
            self._advance_to(int(target), tick)
            self._record()
            if (self.stopped >= 0).all():
                break
        self.seconds = time.perf_counter() - start - self.compile_seconds

    def _advance_to(self, target: int, tick: Callable[[int], None]) -> None:
        size = 100
        while self.step < target:
            count = min(size, target - self.step)
            start = time.perf_counter()
            self.state = jax.block_until_ready(self.advance(self.state, count))
            size = max(1, int(count * _SLICE / (time.perf_counter() - start + 1e-9)))
            self.step += count
            tick(self.step)

    def _record(self) -> None:
        weights = tuple(np.moveaxis(np.asarray(w), -1, 0) for w in self.state[0])
        if self.records:
            over = (self.stopped >= 0)[:, None, None]
            weights = tuple(np.where(over, old, new) for old, new in zip(self.records[-1], weights, strict=True))
        self._expect_finite("weights", [np.all(np.isfinite(w), axis=(1, 2)) for w in weights], self.step)
        self.steps.append(self.step)
        self.records.append(weights)
        if self.stop is not None:
            over = np.broadcast_to(np.asarray(self.stop(self._snapshot()), dtype=bool), self.stopped.shape)
            self.stopped[over & (self.stopped < 0)] = self.step

    def _snapshot(self) -> Snapshot:
        seen = observe(_product(self.records[-1])[:, None], self.sets, self.run_data, self.heads, self.loss)
        self._expect_finite("loss", [np.isfinite(seen["loss"][:, 0])], self.step)
        sure = np.where(seen["chosen"] < 0, 1.0, seen["probabilities"].max(-1))[:, 0].min((1, 2))
        return Snapshot(self.step, seen["loss"][:, 0], seen["norms"][:, 0], sure)

    def result(self) -> dict[str, Any]:
        """The fields of the trajectory that training made."""
        matrices = tuple(np.stack(parts, axis=1) for parts in zip(*self.records, strict=True))
        W = _product(matrices)
        K, Q = matrices if len(matrices) == 2 else (None, None)
        seen = observe(W, self.sets, self.run_data, self.heads, self.loss)
        for s, step in enumerate(self.steps):
            self._expect_finite("loss", [np.isfinite(seen["loss"][:, s])], step)
        times = {"seconds": self.seconds, "compile_seconds": self.compile_seconds}
        return {"steps": np.array(self.steps), "stopped": self.stopped, "W": W, "K": K, "Q": Q, **seen, **times}

    def _expect_finite(self, what: str, finite: list[Array], step: int) -> None:
        bad = np.flatnonzero(~np.logical_and.reduce(finite))
        if len(bad):
            since = f" (finite at step {self.steps[-1]})" if self.steps and self.steps[-1] < step else ""
            raise TrainingError(
                f"The {what} of run {bad[0]} (data set {self.run_data[bad[0]]}) are not finite at step {step}{since}; "
                f"{len(bad)} of {len(self.stopped)} runs are affected. Lower the learning rate, or check that the "
                "head and the loss have finite values and slopes at every pooled token and margin they meet."
            )


@partial(jax.jit, static_argnames=("rule", "kind", "log_slope"))
def _advance(state: Any, count: Any, *, arrays: Any, rule: Any, kind: HeadKind, log_slope: Any) -> Any:
    """`count` steps, a traced number: one compilation serves every distance between records."""
    inputs, head_numbers, rule_numbers, log_lambda = arrays
    optimizer = join(rule_numbers, rule)
    score = attention.scorer(head_numbers, kind, inputs)

    def step(_: Any, state: Any) -> Any:
        weights, memory = state
        direction, log_scale = attention.weight_gradient(weights, inputs, score, log_slope)
        if log_lambda is not None:
            direction, log_scale = _regularized(weights, direction, log_scale, log_lambda)
        return optimizer.update(weights, direction, log_scale, memory)

    return jax.lax.fori_loop(0, count, step, state)


def _regularized(weights: Matrices, direction: Matrices, log_scale: Any, log_lambda: Any) -> tuple[Matrices, Any]:
    top = jnp.maximum(log_scale, log_lambda)
    pull, decay = jnp.exp(log_scale - top), 2 * jnp.exp(log_lambda - top)
    return tuple(pull * g + decay * w for g, w in zip(direction, weights, strict=True)), top


def _product(weights: tuple[Array, ...]) -> Array:
    """`W` from `(Wᵀ,)` or `(K, Q)` whose last two axes are the matrix."""
    return weights[0].swapaxes(-1, -2) if len(weights) == 1 else weights[0] @ weights[1].swapaxes(-1, -2)


def _data_sets(data: TokenData | Sequence[TokenData]) -> tuple[TokenData, ...]:
    sets = (data,) if isinstance(data, TokenData) else tuple(data)
    if not sets or not all(isinstance(one, TokenData) for one in sets):
        raise InputError("data must be a TokenData or a non-empty sequence of them; see TokenData(tokens, queries).")
    shapes = [(one.n, one.m, one.T, one.d_k, one.d_q) for one in sets]
    other = [i for i, shape in enumerate(shapes) if shape != shapes[0]]
    if other:
        raise InputError(
            f"Data sets trained together need equal (n, m, T, d_k, d_q): data set 0 has {shapes[0]}, data set "
            f"{other[0]} has {shapes[other[0]]}. Pad the shorter examples with a mask, or train them in separate calls."
        )
    return sets


def _runs(count: int, seeds: Any) -> tuple[Array, Array]:
    """The data set and the seed of every run."""
    given = np.asarray(seeds)
    if not np.issubdtype(given.dtype, np.integer) or given.ndim > 2 or given.size == 0 or (given < 0).any():
        raise InputError(f"seeds: got {seeds!r}, expected non-negative integers: one, (k,), or (B, k) for B data sets.")
    if given.ndim == 2 and len(given) != count:
        raise InputError(f"seeds: got shape {given.shape} for {count} data sets; expected one row per data set.")
    table = np.broadcast_to(np.atleast_1d(given), (count, given.shape[-1] if given.ndim else 1))
    return np.repeat(np.arange(count), table.shape[1]), table.ravel().astype(np.int64)


def _plan(steps: int | None, record: str | int | Sequence[int] | Array) -> Array:
    """The steps to record, ascending; the last one is the last step."""
    if steps is not None and (not isinstance(steps, int | np.integer) or steps < 1):
        raise InputError(f"steps: got {steps!r}, expected a positive integer.")
    if isinstance(record, str) and record != "log":
        raise InputError(f'record: got {record!r}, expected "log", a number of records or the steps to record.')
    if isinstance(record, str | int | np.integer):
        count = _RECORDS if isinstance(record, str) else record
        if count < 2:
            raise InputError(f"record: got {count} records, expected at least 2: the first step and the last.")
        last = 2000 if steps is None else steps
        return np.unique(np.concatenate([[0], np.geomspace(1, last, count - 1).round(), [last]])).astype(np.int64)
    given = np.unique(np.asarray(record))
    if given.ndim != 1 or not np.issubdtype(given.dtype, np.integer) or given.size == 0 or given[0] < 0:
        raise InputError(f"record: got {record!r}, expected non-negative integer steps.")
    last = int(given[-1]) if steps is None else int(steps)
    if given[-1] > last:
        raise InputError(f"record: step {given[-1]} lies beyond the last step, {last}; raise steps or drop it.")
    return np.unique(np.append(given, last)).astype(np.int64)


def _log_lambda(regularization: float | None, log_regularization: float | None) -> float | None:
    if regularization is not None and log_regularization is not None:
        raise InputError("Both regularization and log_regularization were given; give λ or its logarithm, not both.")
    if regularization is not None:
        if not 0 <= regularization < np.inf:
            raise InputError(f"regularization: got {regularization!r}, expected λ >= 0 and finite.")
        return None if regularization == 0 else float(np.log(regularization))
    if log_regularization is not None and not np.isfinite(log_regularization):
        raise InputError(f"log_regularization: got {log_regularization!r}, expected a finite log λ; None for λ = 0.")
    return None if log_regularization is None else float(log_regularization)


def _initial(initial: Any, form: str, data: TokenData, seeds: Array, inner_dim: int | None) -> Matrices:
    """The first weights as `Optimizer` takes them."""
    if form not in ("W", "KQ"):
        raise InputError(f'form: got {form!r}, expected "W" or "KQ".')
    if not isinstance(initial, str):
        return _given(initial, form, data, len(seeds), inner_dim)
    if initial not in ("uniform", "zeros"):
        raise InputError(f'initial: got {initial!r}, expected "uniform", "zeros" or arrays.')
    if form == "W" and inner_dim is not None:
        raise InputError('inner_dim belongs to form="KQ"; W form has no inner dimension.')
    if initial == "zeros" and form == "KQ":
        raise InputError("K = Q = 0 is a stationary point: training would never leave it. Give (K0, Q0), one nonzero.")
    if initial == "zeros":
        return (np.zeros((data.d_q, data.d_k, len(seeds))),)
    inner = min(data.d_k, data.d_q) if inner_dim is None else inner_dim
    if not isinstance(inner, int | np.integer) or inner < 1:
        raise InputError(f"inner_dim: got {inner_dim!r}, expected a positive integer.")
    drawn = [_uniform(form, data, inner, np.random.default_rng(int(seed))) for seed in seeds]
    return tuple(np.stack(parts, axis=-1) for parts in zip(*drawn, strict=True))


def _uniform(form: str, data: TokenData, inner: int, rng: np.random.Generator) -> Matrices:
    if form == "W":
        return (rng.uniform(-1, 1, (data.d_k, data.d_q)).T / np.sqrt(data.d_q),)
    K = rng.uniform(-1, 1, (data.d_k, inner)) / np.sqrt(data.d_k)
    return K, rng.uniform(-1, 1, (data.d_q, inner)) / np.sqrt(data.d_q)


def _given(initial: Any, form: str, data: TokenData, runs: int, inner_dim: int | None) -> Matrices:
    if isinstance(initial, tuple) != (form == "KQ"):
        raise InputError('initial: give one array W in form="W", a tuple (K, Q) in form="KQ".')
    weights, single = attention.as_runs(initial, data)
    if not single and weights[0].shape[-1] != runs:
        raise InputError(f"initial: got weights for {weights[0].shape[-1]} runs, expected {runs} (data sets x seeds).")
    if inner_dim is not None and weights[0].shape[1] != inner_dim:
        raise InputError(
            f"inner_dim = {inner_dim}, but initial has K with {weights[0].shape[1]} columns; drop inner_dim."
        )
    return tuple(np.repeat(w, runs, axis=-1) if single else w for w in weights)


@contextmanager
def _progress(wanted: bool | None, total: int) -> Iterator[Callable[[int], None]]:
    """A function to call with the step reached; its bar appears only once training has taken a while."""
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield lambda step: None
        return
    from rich.console import Console
    from rich.progress import Progress

    bar, start = Progress(console=Console(stderr=True)), time.perf_counter()
    task = bar.add_task("training", total=total)

    def tick(step: int) -> None:
        if wanted or time.perf_counter() - start > _PATIENCE:
            bar.start()
            bar.update(task, completed=step)

    try:
        yield tick
    finally:
        if bar.live.is_started:
            bar.stop()


__all__ = ["SaturatedAt", "Snapshot", "TrainingError", "train"]
