"""Optimality of a choice of tokens, reported as measured margins and never as bare booleans."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from attsvm.compare import correlation, margin
from attsvm.data import TokenData
from attsvm.errors import InputError
from attsvm.selection import attended, scores
from attsvm.solution import Solution, Status
from attsvm.solvers import solve
from attsvm.verify import norm_named

Array = np.ndarray

BLOCK = 1024  # choices drawn at a time


@dataclass(frozen=True, eq=False)
class LocalOptimality:
    """Local optimality of the chosen tokens (arXiv 2308.16898), with the inequalities it rests on.

    Attributes:
        solution: the attention SVM of the chosen tokens, `W_mm(α)` or `W_mm*(α)`, with its certificate.
        tokens: `(s, 3)`, the support tokens of the solution, as (example, query, token).
        margins: `(s,)`, `γ_{iα_i} - γ_it`: how much better the chosen token scores than each support token.
        globally_optimal: the chosen tokens are `opt`: they score best of all visible tokens.
    """

    solution: Solution
    tokens: Int[Array, "s 3"]
    margins: Float[Array, " s"]
    globally_optimal: bool

    @property
    def alpha(self) -> Int[Array, "n m"]:
        """The chosen token of every query, -1 for padding."""
        return self.solution.problem.selection.indices

    @property
    def smallest(self) -> float:
        """The smallest margin, inf where nothing is tight."""
        return float(self.margins.min(initial=np.inf))

    @property
    def violated(self) -> Int[Array, "v 3"]:
        """The support tokens that score at least as well as the chosen one."""
        return self.tokens[self.margins <= 0]

    def __bool__(self) -> bool:
        return bool((self.margins > 0).all())


def local_optimality(data: TokenData, chosen: Any = "optimal", *, norm: str | float | int = "fro") -> LocalOptimality:
    """Are these tokens locally optimal (arXiv 2308.16898)?

    Gradient descent on W converges in direction only to `W_mm(α)` of locally optimal α (the paper's results on local
    convergence): the chosen token must score higher than each of its support tokens, `γ_{iα_i} > γ_it`. Tokens that
    are not support tokens do not matter, however well they score. For gradient descent on (K, Q) the support tokens
    are those of `W_mm*(α)`.

    Args:
        data: the examples, with a linear head.
        chosen: the tokens α, one per query, as `attsvm.solve` takes them; or its solution in the norm that the
            training prefers, where it is already there.
        norm: of the attention SVM, as in `attsvm.solve`, where tokens are given; a solution brings its own.

    Raises:
        InputError: no weight (not separable), several chosen tokens per query, no linear head, a solution of other
            data or with a soft margin.
        NotSeparableError: no W separates the tokens given.
    """
    solution = chosen if isinstance(chosen, Solution) else solve(data, chosen, norm=norm)
    _check_solution(data, solution)
    assert solution.support is not None
    alpha = solution.problem.selection.indices
    gamma = scores(data)
    own = np.take_along_axis(gamma, np.maximum(alpha, 0)[:, :, None], axis=-1)
    example, query, token = solution.support.T
    best = gamma.max(-1) <= own[:, :, 0]
    return LocalOptimality(
        solution=solution,
        tokens=solution.support,
        margins=own[example, query, 0] - gamma[example, query, token],
        globally_optimal=bool(best[data.active].all()),
    )


@dataclass(frozen=True, eq=False)
class LocalChoices:
    """Result of `locally_optimal_choices`: what was found, and what was looked at.

    Attributes:
        found: the locally optimal choices with their solutions; `opt` first, then by falling margin `1/‖W_mm(α)‖`.
        norm: the norm of the attention SVMs.
        total: how many choices there are, the product of the visible tokens of all queries.
        tried: how many different choices were solved.
        separable: how many of those can be separated.
        unsettled: how many ended without an answer within the solver's tolerance; counted in `tried` alone.
        seed: of the sample; None where every choice was tried.
    """

    found: tuple[LocalOptimality, ...]
    norm: str
    total: int
    tried: int
    separable: int
    unsettled: int
    seed: int | None

    @property
    def exhaustive(self) -> bool:
        """Whether every choice was tried, so that there are no other locally optimal ones."""
        return self.tried == self.total

    @property
    def coverage(self) -> float:
        """Share of all choices that was tried."""
        return self.tried / self.total

    def __repr__(self) -> str:
        how = "all" if self.exhaustive else f"{self.coverage:.2g} of all, sampled with seed {self.seed}"
        open_ = f", {self.unsettled} unsettled" if self.unsettled else ""
        return (
            f"LocalChoices({len(self.found)} locally optimal of {self.separable} separable of {self.tried} tried "
            f"({how}; {self.total} in total){open_}; {self.norm} norm)"
        )

    def __bool__(self) -> bool:
        return bool(self.found)


def locally_optimal_choices(
    data: TokenData, *, norm: str | float | int = "fro", limit: int = 4096, samples: int = 1000, seed: int = 0
) -> LocalChoices:
    """All locally optimal choices of one token per query, or those in a seeded sample.

    These are the directions that gradient descent can converge to (locally-optimal directions of arXiv 2308.16898,
    local convergence). There are `T^n` choices, one attention SVM each: 1 to 3 ms in the Frobenius norm and 10 to 20 ms
    in the nuclear norm at n, T, d = 6, 8, 10.

    Args:
        data: the examples, with a linear head.
        norm: `"fro"` for training in W, `"nuc"` for training in (K, Q), or another of `attsvm.solve`.
        limit: every choice is tried where there are no more than this (or than `samples`).
        samples: how many different choices are drawn, uniformly, where there are more; the first is `opt`.
        seed: of NumPy's default generator.

    Raises:
        InputError: no linear head, or counts below 1.
    """
    for name, size in (("limit", limit), ("samples", samples)):
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise InputError(f"{name} must be an integer of at least 1; got {size!r}.")
    gamma = scores(data)
    visible = [np.flatnonzero(data.mask[i, k]).tolist() for i, k in np.argwhere(data.active)]
    total = math.prod(len(tokens) for tokens in visible)
    exhaustive = total <= max(limit, samples)
    choices = product(*visible) if exhaustive else _sample(visible, gamma[data.active], samples, seed)
    found, counts = [], dict.fromkeys(Status, 0)
    for choice in choices:
        solution = solve(data, _spread(data, choice), norm=norm, throw=False)
        counts[solution.status] += 1
        if solution.status is Status.OPTIMAL:
            found.append(local_optimality(data, solution))
    found = [one for one in found if one]
    return LocalChoices(
        found=tuple(sorted(found, key=lambda one: (not one.globally_optimal, one.solution.value))),
        norm=norm_named(norm).name,
        total=total,
        tried=sum(counts.values()),
        separable=counts[Status.OPTIMAL],
        unsettled=counts[Status.UNKNOWN],
        seed=None if exhaustive else int(seed),
    )


@dataclass(frozen=True, eq=False)
class Direction:
    """Result of `nearest_direction`: where a weight went.

    Attributes:
        optimality: the attended tokens α with their solution, and whether they are locally optimal.
        correlation: `corr(W, W_mm(α))`.
        efficiency: margin of `W` over the best there is, `1/‖W_mm(α)‖`, in the norm of the solution.
        correlations: with the solutions given as `among`, in their order; empty without.
        order: indices into `among`, nearest first.
    """

    optimality: LocalOptimality
    correlation: float
    efficiency: float
    correlations: Float[Array, " c"]
    order: Int[Array, " c"]

    @property
    def alpha(self) -> Int[Array, "n m"]:
        """The token every query attends to most, -1 for padding."""
        return self.optimality.alpha

    @property
    def solution(self) -> Solution:
        """The attention SVM of the attended tokens."""
        return self.optimality.solution

    def __bool__(self) -> bool:
        return bool(self.optimality)


def nearest_direction(
    data: TokenData,
    W: Float[Array, "d_k d_q"],
    *,
    norm: str | float | int = "fro",
    among: LocalChoices | Sequence[Solution] = (),
) -> Direction:
    """Which attention SVM a trained weight belongs to: that of the tokens it attends to most.

    The attended tokens of a W without ties can always be separated, a multiple of W being the witness. True where
    they are locally optimal (arXiv 2308.16898); look at `correlation` for whether W has arrived.

    Args:
        data: the examples, with a linear head.
        W: `(d_k, d_q)`; for training in (K, Q) the product `K Qᵀ`.
        norm: `"fro"` for training in W, `"nuc"` for training in (K, Q). A nuclear optimum need not be unique: the
            correlation is then with one of several, the efficiency is not affected.
        among: other directions to rank by their correlation with W, such as what `locally_optimal_choices` found.

    Raises:
        InputError: wrong shape, not finite, no linear head, a solution without a weight.
        TieError: two tokens share the largest logit; at W = 0 all do.
    """
    optimality = local_optimality(data, attended(data, W), norm=norm)
    solution = optimality.solution
    assert solution.W is not None
    others = _weights(among, (data.d_k, data.d_q))
    correlations = np.asarray(correlation(np.asarray(W)[None], others))
    return Direction(
        optimality=optimality,
        correlation=float(correlation(W, solution.W)),
        efficiency=float(margin(W, solution.problem, solution.norm)) * norm_named(solution.norm).value(solution.W),
        correlations=correlations,
        order=np.argsort(-correlations, kind="stable"),
    )


def _check_solution(data: TokenData, solution: Solution) -> None:
    if solution.support is None:
        raise InputError(
            f"Local optimality is a matter of the support tokens of α, and this α has none: {solution.message} "
            "Give the solution of attsvm.solve for tokens that can be separated."
        )
    if solution.slack is not None:
        raise InputError("Local optimality belongs to the hard margin; solve without slack.")
    other = solution.problem.data
    if other is not data and any(
        not np.array_equal(getattr(data, name), getattr(other, name)) for name in ("tokens", "queries", "mask")
    ):
        raise InputError("The solution was solved on other data; give attsvm.solve's solution of these.")


def _spread(data: TokenData, choice: Iterable[int]) -> Int[Array, "n m"]:
    """Indices `(n, m)` from those of the active queries."""
    alpha = np.full((data.n, data.m), -1)
    alpha[data.active] = np.array(tuple(choice))
    return alpha


def _sample(visible: list[list[int]], gamma: Float[Array, "q T"], count: int, seed: int) -> Iterable[tuple[int, ...]]:
    """Different choices, uniformly drawn, the optimal one first."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"seed must be a non-negative integer, so that the draw can be repeated; got {seed!r}.")
    rng = np.random.default_rng(int(seed))
    drawn = {tuple(int(t) for t in gamma.argmax(-1)): None}
    while len(drawn) < count:
        block = np.stack([rng.choice(tokens, BLOCK) for tokens in visible], axis=1)
        drawn |= dict.fromkeys(tuple(int(t) for t in row) for row in block)
    return list(drawn)[:count]


def _weights(among: LocalChoices | Sequence[Solution], shape: tuple[int, int]) -> Float[Array, "c d_k d_q"]:
    solutions = [one.solution for one in among.found] if isinstance(among, LocalChoices) else list(among)
    for j, one in enumerate(solutions):
        if one.W is None or one.W.shape != shape:
            raise InputError(f"among[{j}] has no weight of shape {shape}: {one.message}")
    return np.stack([np.asarray(one.W) for one in solutions]) if solutions else np.zeros((0, *shape))
