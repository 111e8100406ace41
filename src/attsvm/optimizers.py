"""Update rules. A rule sees the direction of the gradient and its size as a logarithm, never a number that underflows.

A new rule is a frozen dataclass with `init` and `update`; the training loop does not change. Register it with JAX as
below and its numbers are arguments of the compiled loop, so that another learning rate does not compile again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from attsvm import steepest
from attsvm._lanes import total
from attsvm.errors import InputError
from attsvm.steepest import Adam, MirrorDescent, SignDescent, SpectralDescent

Matrices = tuple[Any, ...]


@runtime_checkable
class Optimizer(Protocol):
    """What the training loop asks of an update rule. Every array has the runs, R, as its last axis.

    The matrices are `(Wᵀ,)`, `(d_q, d_k, R)`, or `(K, Q)`, `(d_k, r, R)` and `(d_q, r, R)`. The gradient is
    `exp(log_scale) * direction`, `log_scale` being `(R,)`; -inf where the gradient is exactly zero.
    """

    @property
    def learning_rate(self) -> Any:
        """Length of a step, in the rule's own sense."""
        ...

    def init(self, weights: Matrices) -> Any:
        """The rule's own state before the first step, any JAX pytree."""
        ...

    def update(self, weights: Matrices, direction: Matrices, log_scale: Any, state: Any) -> tuple[Matrices, Any]:
        """The weights and the state after one step."""
        ...


@partial(jax.tree_util.register_dataclass, data_fields=["learning_rate"], meta_fields=[])
@dataclass(frozen=True)
class NormalizedGD:
    """`W ← W - η g/‖g‖_F`; in `(K, Q)` form each factor is normalised by itself. A zero gradient takes no step."""

    learning_rate: Any = 0.1
    svm_norm = "fro"

    def init(self, weights: Matrices) -> Any:
        """No state."""
        return ()

    def update(self, weights: Matrices, direction: Matrices, log_scale: Any, state: Any) -> tuple[Matrices, Any]:
        """One step of length `learning_rate` in every matrix."""
        return tuple(w - self.learning_rate * _unit(g) for w, g in zip(weights, direction, strict=True)), state


@partial(jax.tree_util.register_dataclass, data_fields=["learning_rate"], meta_fields=[])
@dataclass(frozen=True)
class GD:
    """Plain gradient descent, `W ← W - η g` (W-GD and KQ-GD of arXiv 2308.16898)."""

    learning_rate: Any = 0.1
    svm_norm = "fro"

    def init(self, weights: Matrices) -> Any:
        """No state."""
        return ()

    def update(self, weights: Matrices, direction: Matrices, log_scale: Any, state: Any) -> tuple[Matrices, Any]:
        """One step."""
        step = self.learning_rate * jnp.exp(log_scale)
        return tuple(w - step * g for w, g in zip(weights, direction, strict=True)), state


RULES = {"normalized_gd": NormalizedGD, "gd": GD, "sign": SignDescent, "spectral": SpectralDescent, "adam": Adam}


def as_optimizer(optimizer: str | Optimizer, learning_rate: float | None) -> Optimizer:
    """A rule by name with `learning_rate` (default 0.1), or the object given.

    Raises:
        InputError: an unknown name, an object without the interface, a learning rate that is not positive
            and finite, or one given twice.
    """
    if isinstance(optimizer, str):
        if optimizer == "mirror":
            raise InputError('optimizer: "mirror" needs its exponent; give MirrorDescent(p, learning_rate).')
        if optimizer not in RULES:
            raise InputError(f"optimizer: got {optimizer!r}, expected one of {sorted(RULES)} or an Optimizer object.")
        return as_optimizer(RULES[optimizer](0.1 if learning_rate is None else learning_rate), None)
    if learning_rate is not None:
        raise InputError("learning_rate was given beside an Optimizer object; set it in the object.")
    if not isinstance(optimizer, Optimizer):
        raise InputError(f"optimizer: got {type(optimizer).__name__}, expected a name or an object like NormalizedGD.")
    rate = optimizer.learning_rate
    if not (isinstance(rate, int | float | np.floating | np.integer) and 0 < rate < np.inf):
        raise InputError(f"learning_rate: got {rate!r}, expected a positive finite number.")
    steepest.check(optimizer)
    return optimizer


def svm_of(rule: str | Optimizer) -> str | float:
    """The norm of the attention SVM that W, trained by this rule, turns to: what `attsvm.solve` takes as `norm`.

    How far that is theorem, conjecture or measurement: see `attsvm.steepest`.

    Raises:
        InputError: no such rule, or one whose class does not name an `svm_norm`.
    """
    norm = getattr(as_optimizer(rule, None), "svm_norm", None)
    if norm is None:
        raise InputError(f"svm_of: {type(rule).__name__} names no svm_norm; give its class one, as NormalizedGD has.")
    return norm


def _unit(g: Any) -> Any:
    # A NaN norm must stay NaN: the training loop reports it. Only an exact zero is no step.
    norm = jnp.sqrt(total(total(g * g, 0), 1))
    return jnp.where(norm == 0, 0.0, g / norm)


__all__ = [
    "GD",
    "RULES",
    "Adam",
    "MirrorDescent",
    "NormalizedGD",
    "Optimizer",
    "SignDescent",
    "SpectralDescent",
    "as_optimizer",
    "svm_of",
]
