"""Search for finite stationary points of the training loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from attsvm._static import join
from attsvm.data import TokenData
from attsvm.errors import InputError
from attsvm.prediction import as_loss, gather_heads
from attsvm.problem import build, reduce
from attsvm.selection import Selection, as_selection

Array = np.ndarray

WIDEST_LOGIT = 50.0  # default radius: no two logits of a query further apart than this
STATIONARY = 1e-9  # relative gradient norm that counts as zero
ON_SPHERE = 0.99  # ‖W‖ over the radius from where a point counts as pushed against it


@dataclass(frozen=True, eq=False)
class StationaryPoints:
    """Result of `stationary_points`: how close to zero the gradient came, from every start.

    The relative norm is `ρ(W) = ‖∇L(W)‖_F / Σ |c_t| ‖x_t - x̄‖ ‖z‖`, the gradient over the sizes of the terms
    `c_t (x_t - x̄) zᵀ` it sums (c: derivatives with respect to the logits, x̄: mean token of the example). It is zero
    where the gradient is, and unlike the norm itself does not fade where the softmax saturates. Terms of a
    head that is not linear count at least as much as with its slope at `x̄`: ρ is zero too where the slope vanishes.

    Attributes:
        relative: `(S,)`, ρ at the end of each start.
        points: `(S, d_k, d_q)`, the weights there.
        norms: `(S,)`, `‖∇L‖_F` there over `‖∇L(0)‖_F`; inf or NaN where W = 0 is itself stationary.
        hessian: `(p·q,)`, eigenvalues of the Hessian of L in the spans of the data, at the smallest ρ, rising, over the
            largest in size. Signs of a true stationary point: all positive, a minimum; mixed, a saddle.
        radius: of the ball the search was confined to.
        seed: of the starts.
    """

    relative: Float[Array, " S"]
    points: Float[Array, "S d_k d_q"]
    norms: Float[Array, " S"]
    hessian: Float[Array, " h"]
    radius: float
    seed: int

    @property
    def smallest(self) -> float:
        """The smallest ρ found."""
        return float(self.relative.min())

    @property
    def W(self) -> Float[Array, "d_k d_q"]:
        """Where it was found."""
        return self.points[int(self.relative.argmin())]

    @property
    def at_boundary(self) -> bool:
        """Whether that point is pushed against the radius: a larger one may bring ρ further down."""
        return float(np.linalg.norm(self.W)) > ON_SPHERE * self.radius

    @property
    def count(self) -> int:
        """How many starts ended at a stationary point, ρ up to 1e-9."""
        return int((self.relative <= STATIONARY).sum())

    def __repr__(self) -> str:
        edge = ", at the boundary" if self.at_boundary else ""
        verdict = f"{self.count} ended at a stationary point" if self else "none found, which is evidence and no proof"
        return (
            f"StationaryPoints({len(self.relative)} starts within ‖W‖ <= {self.radius:.3g}, seed {self.seed}: "
            f"smallest relative gradient {self.smallest:.2e}{edge}; {verdict})"
        )

    def __bool__(self) -> bool:
        return self.count > 0


def stationary_points(
    data: TokenData,
    *,
    radius: float | None = None,
    starts: int = 32,
    seed: int = 0,
    steps: int = 100,
    loss: str | Callable[[Any], Any] = "logistic",
    head: Callable[[Any], Any] | None = None,
) -> StationaryPoints:
    """Search for finite stationary points of the training loss: true where one was found.

    arXiv 2308.16898: where all tokens are support vectors of α = opt (`all_support_vectors`) the loss has no finite
    stationary point, since `<-∇L(W), W_mm> > 0` for every W. A search that finds none is evidence within its radius and
    over its starts, not a proof; one that ends at a relative norm of 1e-9 or less has found one, to rounding.

    Levenberg-Marquardt descent on the squared relative norm `ρ²` (see `StationaryPoints`) from many starts at once, in
    the spans of the data. The gradient is exact, its Jacobian by automatic differentiation.

    Args:
        data: the examples, with a prediction head.
        radius: the search stays within `‖W‖_F < radius`, as the gradient vanishes at infinity. Default: no two logits
            of a query can be further apart than 50.
        starts: number of starts: W = 0, then random directions with norms uniform below the radius.
        seed: of NumPy's default generator.
        steps: of each start.
        loss: as in `attsvm.train`.
        head: as in `attsvm.train`; default: that of the data.

    Raises:
        InputError: no head, options out of range, every query sees a single token.
    """
    for name, value, least in (("starts", starts, 1), ("steps", steps, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise InputError(f"{name} must be an integer of at least {least}; got {value!r}.")
    first = Selection((np.arange(data.T) == data.mask.argmax(-1)[:, :, None]) & data.active[:, :, None])
    spans = reduce(build(data, as_selection(data, first)))
    basis_k, basis_q = spans.basis_k, spans.basis_q
    radius = _radius(data, first) if radius is None else float(radius)
    if not 0 < radius < np.inf:
        raise InputError(f"radius must be positive and finite; got {radius!r}.")
    with jax.enable_x64(True):
        heads, rule = gather_heads([data], head, np.zeros(1, dtype=int)), as_loss(loss)
        inputs = _pack(data, basis_k, basis_q)
        begin = _starts((basis_k.shape[1], basis_q.shape[1]), int(starts), radius, int(seed))
        options = {"static": heads.static, "log_slope": rule.log_slope}
        V, relative, norms = _search(begin, inputs, heads.numbers, radius, int(steps), **options)
        best = V[int(np.argmin(relative))]
        hessian = np.linalg.eigvalsh(np.asarray(_hessian(best, inputs, heads.numbers, **options)))
        V = np.asarray(V)
    return StationaryPoints(
        relative=np.asarray(relative),
        points=basis_k @ V @ basis_q.T,
        norms=np.asarray(norms),
        hessian=hessian / max(np.abs(hessian).max(), np.finfo(float).tiny),
        radius=radius,
        seed=int(seed),
    )


def _radius(data: TokenData, first: Selection) -> float:
    """No two logits of a query are further apart than `WIDEST_LOGIT` in the ball."""
    problem = build(data, first)
    return WIDEST_LOGIT / (2.0 * max(float(problem.row_norms.max()), np.finfo(float).tiny))


class _Inputs(NamedTuple):
    """Data in the spans: `V (p, q)` stands for the weight `basis_k V basis_qᵀ`."""

    tokens: Any  # (n, T, d_k), as the head pools them
    centre: Any  # (n, d_k), the example's mean token
    keys: Any  # (n, T, p), relative to `centre`
    queries: Any  # (n, m, q)
    visible: Any  # (n, m, T)
    labels: Any  # (n, m)
    weight: Any  # (n, m), 1/n, zero for padding


def _pack(data: TokenData, basis_k: Array, basis_q: Array) -> _Inputs:
    seen = np.any(data.mask, axis=1)[:, :, None]
    centre = np.where(seen, data.tokens, 0.0).sum(1, keepdims=True) / np.maximum(seen.sum(1, keepdims=True), 1)
    return _Inputs(
        tokens=data.tokens,
        centre=centre[:, 0],
        keys=np.where(seen, data.tokens - centre, 0.0) @ basis_k,
        queries=data.queries @ basis_q,
        visible=data.mask | ~data.active[:, :, None],
        labels=data.labels,
        weight=data.active / data.n,
    )


def _starts(shape: tuple[int, int], count: int, radius: float, seed: int) -> Float[Array, "S p q"]:
    rng = np.random.default_rng(seed)
    direction = rng.standard_normal((count, *shape))
    length = radius * rng.uniform(0.0, ON_SPHERE, count)
    length[0] = 0.0
    return direction * (length / np.linalg.norm(direction, axis=(1, 2)))[:, None, None]


def _gradient(V: Any, inputs: _Inputs, head: Any, log_slope: Any) -> tuple[Any, Any]:
    """`∇L` in the spans, `(p, q)`, and the sum of the sizes of its terms.

    With `ĝ_t = g_t - g_p`, p the most attended token, `c_t = s_t (ĝ_t - Σ_τ s_τ ĝ_τ)` is precise however saturated.
    """
    logits = jnp.einsum("ntp,pq,nmq->nmt", inputs.keys, V, inputs.queries)
    logits = jnp.where(inputs.visible, logits, -jnp.inf)
    softmax = jax.nn.softmax(logits)
    h, slope = jax.vmap(jax.vmap(jax.value_and_grad(head)))(jnp.einsum("nmt,ntk->nmk", softmax, inputs.tokens))
    sign, log_loss = log_slope(inputs.labels * h)
    force = softmax * (inputs.labels * inputs.weight * sign * jnp.exp(log_loss))[:, :, None]
    top = jax.nn.one_hot(logits.argmax(-1), logits.shape[-1])

    def derivative(slope: Any) -> Any:
        g = jnp.einsum("ntk,nmk->nmt", inputs.tokens, jnp.broadcast_to(slope, (*logits.shape[:2], slope.shape[-1])))
        g = g - (g * top).sum(-1, keepdims=True)
        return force * (g - (softmax * g).sum(-1, keepdims=True))

    c, usual = derivative(slope), derivative(jax.vmap(jax.grad(head))(inputs.centre)[:, None])
    length = jnp.linalg.norm(inputs.keys, axis=-1)[:, None] * jnp.linalg.norm(inputs.queries, axis=-1)[:, :, None]
    size = (jnp.maximum(jnp.abs(c), jnp.abs(usual)) * length).sum()
    return jnp.einsum("nmt,ntp,nmq->pq", c, inputs.keys, inputs.queries), size


@partial(jax.jit, static_argnames=("static", "log_slope"))
def _search(V: Any, inputs: _Inputs, numbers: Any, radius: Any, steps: Any, *, static: Any, log_slope: Any) -> Any:
    """Levenberg-Marquardt on `∇L` over the sum of its terms, in `U` with `V = radius U / √(1 + ‖U‖²)`."""
    head, shape = join(numbers, static), V.shape[1:]

    def weight(u: Any) -> Any:
        return radius * (u / jnp.sqrt(1.0 + (u**2).sum())).reshape(shape)

    def residual(u: Any) -> Any:
        G, size = _gradient(weight(u), inputs, head, log_slope)
        r = (G / jnp.where(size > 0, size, 1.0)).ravel()
        return r, (r, jnp.linalg.norm(G))

    def step(_: Any, state: Any) -> Any:
        u, r, norm, J, damping = state
        normal = J.T @ J
        shift = damping * jnp.trace(normal) / len(u) + jnp.finfo(r.dtype).tiny
        new = u - jnp.linalg.solve(normal + shift * jnp.eye(len(u)), J.T @ r)
        J_new, (r_new, norm_new) = jax.jacfwd(residual, has_aux=True)(new)
        better = (r_new**2).sum() < (r**2).sum()  # False for NaN
        damping = jnp.clip(damping * jnp.where(better, 0.2, 5.0), 1e-15, 1e6)
        return (*jax.tree.map(partial(jnp.where, better), (new, r_new, norm_new, J_new), (u, r, norm, J)), damping)

    def descend(v: Any) -> Any:
        u = v.ravel() / jnp.sqrt(radius**2 - (v**2).sum())
        # The first step of this state goes nowhere, and is accepted: it measures the start.
        begin = u, jnp.full(u.shape, 1e200), jnp.inf, jnp.zeros((len(u), len(u))), 5e-2
        u, r, norm, _, _ = jax.lax.fori_loop(0, steps + 1, step, begin)
        return weight(u), jnp.linalg.norm(r), norm

    at_zero = jnp.linalg.norm(_gradient(jnp.zeros(shape), inputs, head, log_slope)[0])
    V, relative, norms = jax.vmap(descend)(V)
    return V, relative, norms / at_zero


@partial(jax.jit, static_argnames=("static", "log_slope"))
def _hessian(V: Any, inputs: _Inputs, numbers: Any, *, static: Any, log_slope: Any) -> Any:
    head = join(numbers, static)
    H = jax.jacfwd(lambda v: _gradient(v.reshape(V.shape), inputs, head, log_slope)[0].ravel())(V.ravel())
    return 0.5 * (H + H.T)
