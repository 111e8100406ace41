"""Prediction heads `h` (pooled token to scalar) and losses `ℓ` (margin `Y h` to scalar).

A prediction head is any JAX-differentiable callable from a pooled token `(d_k,)` to a scalar; it is not an attention
head. A head that is a JAX pytree, such as `jax.tree_util.Partial(f, V)` or the heads below, may carry other numbers for
every data set of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from attsvm._static import join, split
from attsvm.data import TokenData
from attsvm.errors import InputError

Array = np.ndarray


@partial(jax.tree_util.register_dataclass, data_fields=["value"], meta_fields=[])
@dataclass(frozen=True, eq=False)
class LinearHead:
    """`h(a) = vᵀa`, the head of most of arXiv 2308.16898; `value` is `v`, `(d_k,)`."""

    value: Any

    def __call__(self, pooled: Any) -> Any:
        """`vᵀa` for a pooled token `(d_k,)`."""
        return pooled @ self.value


@partial(jax.tree_util.register_dataclass, data_fields=["value", "penalty"], meta_fields=[])
@dataclass(frozen=True, eq=False)
class QuadraticHead:
    """`h(a) = vᵀa - λ‖a‖²`: the penalty makes attention choose several tokens (section 6 of arXiv 2308.16898).

    On orthonormal tokens the best attention is `sparsemax(Xv / 2λ)`.

    Attributes:
        value: `v`, `(d_k,)`.
        penalty: `λ`, a scalar.
    """

    value: Any
    penalty: Any

    def __call__(self, pooled: Any) -> Any:
        """`vᵀa - λ‖a‖²` for a pooled token `(d_k,)`."""
        return pooled @ self.value - self.penalty * (pooled @ pooled)


ACTIVATIONS = {"relu": jax.nn.relu, "gelu": partial(jax.nn.gelu, approximate=False)}


@partial(jax.tree_util.register_dataclass, data_fields=["V", "out"], meta_fields=["activation"])
@dataclass(frozen=True, eq=False)
class MLPHead:
    """`h(a) = outᵀ act(V a)`, one hidden layer; with `out = 1` and ReLU the head of section 6 of arXiv 2308.16898.

    Where every unit is dead, the slope of a ReLU head is exactly zero (at a kink it is taken as zero): see
    `attsvm.flat_queries`.

    Attributes:
        V: `(width, d_k)`.
        out: `(width,)`, or a scalar for all units.
        activation: `"relu"` or `"gelu"` (exact, with the error function).

    Raises:
        InputError: another activation.
    """

    V: Any
    out: Any = 1.0
    activation: str = "relu"

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise InputError(f"MLPHead: activation is one of {sorted(ACTIVATIONS)}; got {self.activation!r}.")

    def __call__(self, pooled: Any) -> Any:
        """`outᵀ act(V a)` for a pooled token `(d_k,)`."""
        return (self.out * ACTIVATIONS[self.activation](self.V @ pooled)).sum()


@dataclass(frozen=True)
class Loss:
    """A loss of the margin: its value on NumPy arrays, and `(sign, log|ℓ'|)` on JAX arrays.

    The slope is a logarithm because it underflows long before training ends: at margin 1e3 it is e^-1000.
    """

    name: str
    value: Callable[[Array], Array]
    log_slope: Callable[[Any], tuple[Any, Any]]


LOSSES = {
    "logistic": Loss("logistic", lambda x: np.logaddexp(0.0, -x), lambda x: (-1.0, -jnp.logaddexp(0.0, x))),
    "exponential": Loss("exponential", lambda x: np.exp(-x), lambda x: (-1.0, -x)),
    "correlation": Loss("correlation", lambda x: -x, lambda x: (-1.0, jnp.zeros_like(x))),
}


def as_loss(loss: str | Callable[[Any], Any]) -> Loss:
    """A built-in loss by name, or a JAX callable from one margin to a scalar; its slope is `jax.grad`'s.

    Raises:
        InputError: an unknown name, or a callable that does not return a scalar.
    """
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise InputError(f"loss: got {loss!r}, expected one of {sorted(LOSSES)} or a callable of the margin.")
        return LOSSES[loss]
    _expect_scalar("loss", loss, (), "one margin, a scalar")
    return _callable_loss(loss)


def _callable_loss(loss: Callable[[Any], Any]) -> Loss:
    name = getattr(loss, "__name__", type(loss).__name__)
    return Loss(name, partial(_value_of_callable, loss), _SlopeOfCallable(loss))


def _value_of_callable(loss: Callable[[Any], Any], margin: Array) -> Array:
    return np.asarray(jax.vmap(loss)(margin.ravel())).reshape(margin.shape)


@dataclass(frozen=True)
class _SlopeOfCallable:
    """Hashes by the callable it wraps, so that training with it again does not compile again."""

    loss: Callable[[Any], Any]

    def __call__(self, margin: Any) -> tuple[Any, Any]:
        slope = jax.vmap(jax.grad(self.loss))(margin.ravel()).reshape(margin.shape)
        return jnp.sign(slope), jnp.log(jnp.abs(slope))


class HeadKind(NamedTuple):
    """What the compiled functions must know of the heads beforehand."""

    static: Any
    linear: bool
    per_run: bool


@dataclass(frozen=True, eq=False)
class Heads:
    """The heads of a batch of runs: one static part, and numbers shared by all runs or one set per run.

    `numbers` have a leading run axis where `per_run`.
    """

    numbers: tuple[Array, ...]
    static: Any
    per_run: bool

    @property
    def linear(self) -> bool:
        """Whether every head is a `LinearHead`."""
        return isinstance(join(self.numbers, self.static), LinearHead)

    @property
    def kind(self) -> HeadKind:
        """The part of the heads that a compilation depends on."""
        return HeadKind(None, True, False) if self.linear else HeadKind(self.static, False, self.per_run)

    @property
    def trailing(self) -> tuple[Array, ...]:
        """The numbers with the run axis last, as the compiled functions want them."""
        return tuple(np.moveaxis(a, 0, -1) for a in self.numbers) if self.per_run else self.numbers

    def __call__(self, pooled: Float[Array, "R P d_k"]) -> Float[Array, "R P"]:
        """`h` of the pooled tokens of every run."""
        if self.linear:
            return np.matmul(pooled, self.numbers[0][..., None])[..., 0]
        return np.asarray(_evaluate(self.numbers, pooled, static=self.static, per_run=self.per_run))


@partial(jax.jit, static_argnames=("static", "per_run"))
def _evaluate(numbers: Any, pooled: Any, *, static: Any, per_run: bool) -> Any:
    points = jax.vmap(lambda numbers, a: join(numbers, static)(a), (None, 0))
    return jax.vmap(points, (0 if per_run else None, 0))(numbers, pooled)


def gather_heads(data: Sequence[TokenData], head: Callable[[Any], Any] | None, run_data: Array) -> Heads:
    """The heads of runs `run_data` (indices into `data`): `head` if given, else each data set's own.

    Raises:
        InputError: no head anywhere, a head that does not map `(d_k,)` to a scalar, or data sets whose heads
            differ by more than their numbers.
    """
    own = [head if head is not None else _own_head(one, i) for i, one in enumerate(data)]
    for each in {id(each): each for each in own}.values():
        check_head(each, data[0].d_k)
    parts = [split(each) for each in own]
    if any((type(s), s) != (type(parts[0][1]), parts[0][1]) for _, s in parts):
        raise InputError(
            "The data sets carry different prediction heads. Give one head= for all, or heads that differ only in "
            "their numbers: jax.tree_util.Partial(f, V_i) with the same function f."
        )
    if head is not None or len(data) == 1:
        return Heads(*parts[0], per_run=False)
    stacked = tuple(np.stack(leaves)[run_data] for leaves in zip(*(p[0] for p in parts), strict=True))
    return Heads(stacked, parts[0][1], per_run=bool(stacked))


def check_head(head: Any, d_k: int) -> None:
    """Raise InputError unless `head` maps a pooled token `(d_k,)` to a scalar."""
    if isinstance(head, LinearHead):
        value = np.asarray(head.value)
        if value.shape != (d_k,) or not np.isfinite(value).all():
            raise InputError(f"head: LinearHead needs a finite value of shape ({d_k},); got shape {value.shape}.")
        return
    if not all(np.isfinite(numbers).all() for numbers in split(head)[0]):
        raise InputError(f"head: the numbers of this {type(head).__name__} are not all finite; check its weights.")
    _expect_scalar("head", head, (d_k,), f"a pooled token of shape ({d_k},)")


def _own_head(data: TokenData, i: int) -> Any:
    if data.head is not None:
        return data.head
    if data.value is None:
        raise InputError(
            f"Data set {i} has no prediction head, so there is nothing to train for. "
            "Give TokenData(value=v) or TokenData(head=f), or train(..., head=f)."
        )
    return LinearHead(data.value)


def _expect_scalar(name: str, function: Any, shape: tuple[int, ...], argument: str) -> None:
    if not callable(function):
        raise InputError(f"{name}: got {type(function).__name__}, expected a JAX callable of {argument}.")
    try:
        out = jax.eval_shape(function, jax.ShapeDtypeStruct(shape, jnp.float64))
    except Exception as error:  # whatever the user's function raises
        raise InputError(
            f"{name} fails on {argument}: {type(error).__name__}: {error}. It must be written with jax.numpy."
        ) from error
    if getattr(out, "shape", None) != () or not jnp.issubdtype(out.dtype, jnp.floating):
        got = getattr(out, "shape", type(out).__name__)
        raise InputError(f"{name} must return one real scalar for {argument}; it returned {got}. Sum or index it.")


__all__ = [
    "LOSSES",
    "HeadKind",
    "Heads",
    "LinearHead",
    "Loss",
    "MLPHead",
    "QuadraticHead",
    "as_loss",
    "check_head",
    "gather_heads",
]
