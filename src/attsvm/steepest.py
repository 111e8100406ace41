"""Update rules of other geometries: the norm a rule measures its step in decides which attention SVM it turns to.

What is known of that, rule by rule, for training W:

- *Theorem.* Gradient descent: locally to the Frobenius SVM (arXiv 2308.16898). Mirror descent with the potential
  `‖W‖_p^p / p`: locally to the SVM of the entrywise p-norm (arXiv 2410.14581). Both under their own assumptions and
  for small steps along the plain gradient; the normalised steps taken here are measured only.
- *Theorem for linear classification only.* Steepest descent in any norm goes to the maximum margin in that norm (arXiv
  1802.08246); with normalised steps in entrywise and Schatten norms, and Adam without its stability constant to the
  max norm, for several classes (arXiv 2502.04664). There the constraints are rows of a linear model, as they are here
  once the softmax has nearly chosen its tokens.
- *Conjecture, measured here* (`benchmarks/optimizers.py`). The same for sign descent, spectral descent and Adam on
  attention, where the loss is not convex: to the SVM in their norm of the tokens each run has chosen.

In `(K, Q)` form each factor is treated by itself; which SVM that reaches in these geometries is open.

Every rule takes `η_k = η / √(1 + k/decay)` as its k-th step, counted from 0; `decay = inf` keeps it constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attsvm._lanes import total
from attsvm.errors import InputError

Matrices = tuple[Any, ...]
_RANGES = {
    "decay": (lambda x: x > 0, "a positive number of steps, inf for constant ones"),
    "p": (lambda x: 1 < x < np.inf, "an exponent above 1"),
    "beta1": (lambda x: 0 <= x < 1, "a number from 0 to below 1"),
    "beta2": (lambda x: 0 <= x < 1, "a number from 0 to below 1"),
}


@partial(jax.tree_util.register_dataclass, data_fields=["learning_rate", "decay"], meta_fields=[])
@dataclass(frozen=True)
class SignDescent:
    """`W ← W - η_k sign(g)`: normalised steepest descent in the entrywise max norm, whose SVM it should reach.

    Known for linear classification, measured here for attention. The sign of a zero is zero.
    """

    learning_rate: Any = 0.1
    decay: Any = 200.0
    svm_norm = "max"

    def init(self, weights: Matrices) -> Any:
        """The number of steps taken."""
        return jnp.zeros(())

    def update(self, weights: Matrices, direction: Matrices, log_scale: Any, state: Any) -> tuple[Matrices, Any]:
        """One step: every entry moves by `η_k`."""
        return _descend(self, weights, tuple(jnp.sign(g) for g in direction), state), state + 1


@partial(jax.tree_util.register_dataclass, data_fields=["learning_rate", "decay"], meta_fields=[])
@dataclass(frozen=True)
class SpectralDescent:
    """`W ← W - η_k U Vᵀ`, `g = U Σ Vᵀ`: normalised steepest descent in the spectral norm, the idea behind Muon.

    Its SVM should be that of the spectral norm: known for linear classification, measured here for attention. The polar
    factor comes from a singular value decomposition, not from a few Newton-Schulz steps; directions in which the
    gradient vanishes (to `max(rows, columns) ε σ_1`) are left alone, as its rank is at most the number of queries.
    """

    learning_rate: Any = 0.1
    decay: Any = 200.0
    svm_norm = "spec"

    def init(self, weights: Matrices) -> Any:
        """The number of steps taken."""
        return jnp.zeros(())

    def update(self, weights: Matrices, direction: Matrices, log_scale: Any, state: Any) -> tuple[Matrices, Any]:
        """One step of spectral norm `η_k`."""
        return _descend(self, weights, tuple(polar_factor(g) for g in direction), state), state + 1


@partial(jax.tree_util.register_dataclass, data_fields=["p", "learning_rate", "decay"], meta_fields=[])
@dataclass(frozen=True)
class MirrorDescent:
    """`∇φ(W) ← ∇φ(W) - η_k g/‖g‖_q` with the potential `φ(W) = ‖W‖_p^p / p`, `1/p + 1/q = 1`, entry by entry.

    `∇φ(W) = sign(W)|W|^{p-1}`. Its SVM is that of the entrywise p-norm, by theorem locally and without the
    normalisation (arXiv 2410.14581). p = 2 is normalised gradient descent. `‖W‖` grows as the 1/(p-1)-th power of the
    path in the dual: a large p needs a larger `learning_rate`, and constant steps (the default) serve it best.
    """

    p: Any
    learning_rate: Any = 0.1
    decay: Any = np.inf

    @property
    def svm_norm(self) -> str | float:
        """The exponent, or `"fro"` for p = 2."""
        return "fro" if self.p == 2 else float(self.p)

    def init(self, weights: Matrices) -> Any:
        """The number of steps taken."""
        return jnp.zeros(())

    def update(self, weights: Matrices, direction: Matrices, log_scale: Any, state: Any) -> tuple[Matrices, Any]:
        """One step, taken in the dual."""
        mirrored = tuple(_power(w, self.p - 1) for w in weights)
        unit = tuple(_unit_entrywise(g, self.p / (self.p - 1)) for g in direction)
        return tuple(_power(z, 1 / (self.p - 1)) for z in _descend(self, mirrored, unit, state)), state + 1


@partial(jax.tree_util.register_dataclass, data_fields=["learning_rate", "decay", "beta1", "beta2"], meta_fields=[])
@dataclass(frozen=True)
class Adam:
    """`W ← W - η_k m̂/√v̂` with Adam's bias-corrected moments of the gradient, and no stability constant.

    The moments survive saturation: `m` and `√v`, rather than v, are kept as multiples of `exp(a)`, with a logarithm `a`
    per run that follows the larger of the last moments and the new gradient. `√v` is updated as the hypotenuse of
    `√β2 √v` and `√(1-β2) g`, so that nothing is squared: entries down to 1e-300 of the largest keep their digits, at
    any scale of the gradient. The usual ε = 1e-8 would swallow gradients below it and end the adaptation; here ε = 0,
    with 0/0 = 0.

    Without ε, Adam's SVM is that of the max norm for linear classification; measured here for attention. `√v` falls at
    most by `√β2` a step, and where the gradient falls faster the steps shrink until it has caught up: in k steps the
    gradient goes down by about `β2^(k/2)`, a factor e^10 in 20,000 steps at 0.999. What Adam reaches by then is nearer
    to the max-norm SVM the shorter its memory.
    """

    learning_rate: Any = 0.1
    decay: Any = 200.0
    beta1: Any = 0.9
    beta2: Any = 0.999
    svm_norm = "max"

    def init(self, weights: Matrices) -> Any:
        """Step count, moments `m` and `√v` of every matrix, and their log scale."""
        nothing = tuple(jnp.zeros_like(w) for w in weights)
        return jnp.zeros(()), nothing, nothing, jnp.full(weights[0].shape[-1], -jnp.inf)

    def update(self, weights: Matrices, direction: Matrices, log_scale: Any, state: Any) -> tuple[Matrices, Any]:
        """One step."""
        count, m, s, scale = state
        top = jnp.maximum(scale, log_scale)
        finite = jnp.where(top == -jnp.inf, 0.0, top)
        old, new = jnp.exp(scale - finite), jnp.exp(log_scale - finite)
        m = tuple(self.beta1 * old * a + (1 - self.beta1) * new * g for a, g in zip(m, direction, strict=True))
        forget, learn = jnp.sqrt(self.beta2) * old, jnp.sqrt(1 - self.beta2) * new
        s = tuple(jnp.hypot(forget * a, learn * g) for a, g in zip(s, direction, strict=True))
        size = jnp.stack([jnp.abs(a).max((0, 1)) for a in (*m, *s)]).max(0)
        size = jnp.where(size == 0, 1.0, size)  # NaN passes: the training loop reports it
        m, s = (tuple(a / size for a in part) for part in (m, s))
        correction = jnp.sqrt(1 - self.beta2 ** (count + 1)) / (1 - self.beta1 ** (count + 1))
        step = tuple(
            correction * jnp.where(b == 0, 0.0, a / jnp.where(b == 0, 1.0, b)) for a, b in zip(m, s, strict=True)
        )
        return _descend(self, weights, step, count), (count + 1, m, s, top + jnp.log(size))


def polar_factor(g: Any) -> Any:
    """`U Vᵀ` over the nonzero singular values of every matrix of `g`, `(a, b, R)`.

    Of all D with `‖D‖_op <= 1` that make `<g, D>` largest, it is the one of least Frobenius norm.
    """
    u, sigma, vt = (jnp.moveaxis(part, 0, -1) for part in jnp.linalg.svd(jnp.moveaxis(g, -1, 0), full_matrices=False))
    keep = sigma > max(g.shape[:2]) * jnp.finfo(g.dtype).eps * sigma[:1]
    return total(jnp.where(keep, u, 0.0)[:, :, None] * vt, 1)[:, 0]


def check(rule: Any) -> None:
    """Raise InputError where a number of one of these rules is out of its range."""
    for name, (holds, wanted) in _RANGES.items():
        value = getattr(rule, name, None)
        if value is not None and not (isinstance(value, int | float | np.number) and holds(value)):
            raise InputError(f"{name}: got {value!r}, expected {wanted}.")


def _descend(rule: Any, weights: Matrices, step: Matrices, count: Any) -> Matrices:
    rate = rule.learning_rate / jnp.sqrt(1 + count / rule.decay)
    return tuple(w - rate * g for w, g in zip(weights, step, strict=True))


def _power(w: Any, exponent: Any) -> Any:
    return jnp.sign(w) * jnp.abs(w) ** exponent


def _unit_entrywise(g: Any, q: Any) -> Any:
    # A NaN norm must stay NaN: the training loop reports it. Only an exact zero is no step.
    largest = jnp.abs(g).max((0, 1), keepdims=True)
    scaled = g / jnp.where(largest == 0, 1.0, largest)
    norm = total(total(jnp.abs(scaled) ** q, 0), 1) ** (1 / q)
    return jnp.where(largest == 0, 0.0, scaled / norm)


__all__ = ["Adam", "MirrorDescent", "SignDescent", "SpectralDescent", "check", "polar_factor"]
