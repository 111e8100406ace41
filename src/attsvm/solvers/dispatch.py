"""The front of the solvers: check the input, pick the method, certify, say what came out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float
from joblib import Parallel, delayed
from threadpoolctl import threadpool_limits

from attsvm import problem as rows_of
from attsvm import verify
from attsvm.data import TokenData
from attsvm.errors import InputError, NotSeparableError, NotSolvedError
from attsvm.problem import Problem, Reduced
from attsvm.selection import as_selection
from attsvm.solution import Farkas, Solution, Status
from attsvm.solvers import interior_point, least_distance, low_rank
from attsvm.solvers.least_distance import LeastDistance

Array = np.ndarray


def solve(
    data: TokenData,
    chosen: Any = "optimal",
    *,
    norm: str = "fro",
    max_rank: int | None = None,
    tolerance: float = 1e-8,
    throw: bool = True,
) -> Solution:
    """Solve the attention SVM: the smallest W that separates the chosen tokens from the rest with margin one.

    `"fro"` is (Att-SVM) and `"nuc"` (Att-SVM*) of arXiv 2308.16898, sections 2 and 3; chosen sets give the generalised
    problem of its section 6, with equalities inside each set.

    Args:
        data: the examples.
        chosen: `"optimal"` (by score), indices `(n,)` or `(n, m)`, booleans `(n, T)` or `(n, m, T)`, or a `Selection`.
        norm: `"fro"` (exact active set) or `"nuc"` (interior point).
        max_rank: with `"nuc"`, also demand `rank(W) <= max_rank`. Non-convex beyond the rank of the free optimum: the
            result is then a local optimum, its status `unknown`, and its gap the distance to the convex lower bound.
        tolerance: largest relative gap and violation of an `optimal` certificate, between 1e-12 and 1e-2.
        throw: raise unless `optimal`; with False the status and everything computed are returned. A point found under
            `max_rank` is returned either way.

    Returns:
        `Solution` with `W (d_k, d_q)`, its dual, support tokens, rank and certificate.

    Raises:
        InputError: unusable data, selection or options.
        NotSeparableError: no W separates; the error's `solution.farkas` is the checked proof.
        NotSolvedError: the certificate does not reach the tolerance; the error's `solution` holds value and gap.
    """
    _check_options(norm, max_rank, tolerance)
    start = time.perf_counter()
    problem = rows_of.build(data, as_selection(data, chosen))
    solution = _solve(problem, norm, max_rank, tolerance, start)
    if throw and solution.status is Status.INFEASIBLE:
        raise NotSeparableError(solution)
    if throw and solution.status is Status.UNKNOWN and (max_rank is None or solution.W is None):
        raise NotSolvedError(solution)
    return solution


def solve_many(
    data: Sequence[TokenData],
    chosen: Any = "optimal",
    *,
    norm: str = "fro",
    tolerance: float = 1e-8,
    jobs: int = 1,
) -> list[Solution]:
    """Solve many problems; each solution is the one `solve(..., throw=False)` gives, whatever it is solved beside.

    Args:
        data: the data sets, of any shapes.
        chosen: what `solve` takes, for all of them, or a list with one entry per data set.
        norm: as in `solve`.
        tolerance: as in `solve`.
        jobs: processes to spread the problems over; starting them costs about a second.

    Raises:
        InputError: as in `solve`, naming the data set.
    """
    choices = chosen if isinstance(chosen, list) else [chosen] * len(data)
    if len(choices) != len(data):
        raise InputError(f"chosen lists {len(choices)} entries for {len(data)} data sets; give one for each.")
    blocks = np.array_split(np.arange(len(data)), max(1, min(8 * jobs if jobs > 1 else 1, len(data))))
    work = [[(int(i), data[i], choices[i]) for i in block] for block in blocks]
    parts = Parallel(n_jobs=jobs)(delayed(_solve_block)(block, norm, tolerance) for block in work)
    return [solution for part in parts for solution in part]  # type: ignore[union-attr]


@dataclass(frozen=True, eq=False)
class Separability:
    """Answer of `is_separable`, true or false in a condition, with its proof.

    Attributes:
        separable: whether some W has `δ_kᵀWz_k > 0` on every separation row (and `= 0` on equalities).
        witness: such a W `(d_k, d_q)`, of least Frobenius norm for margin one; None where not separable.
        farkas: the checked proof that none exists; None where separable.
        violation: shortfall of the witness from margin one.
    """

    separable: bool
    witness: Float[Array, "d_k d_q"] | None
    farkas: Farkas | None
    violation: float | None

    def __bool__(self) -> bool:
        return self.separable


def is_separable(data: TokenData, chosen: Any = "optimal") -> Separability:
    """Can the chosen tokens be separated at all? The cheap half of `solve`, with a witness or a checked Farkas vector.

    Raises:
        InputError: unusable data or selection.
        NotSolvedError: rounding leaves the question open: neither the witness nor the Farkas vector passes its check.
    """
    start = time.perf_counter()
    problem = rows_of.build(data, as_selection(data, chosen))
    reduced = rows_of.reduce(problem)
    base = least_distance.solve(reduced)
    if not base.separable:
        farkas = verify.check_farkas(problem, base.u)
        if farkas is not None:
            return Separability(False, None, farkas, None)
    else:
        W = reduced.lift(base.V)
        violation = verify.certify(problem, W, base.u, "fro").violation
        if violation < 0.5:
            return Separability(True, W, None, violation)
    raise NotSolvedError(_open(problem, "fro", base, start))


def _solve_block(block: list[tuple[int, TokenData, Any]], norm: str, tolerance: float) -> list[Solution]:
    solutions = []
    with threadpool_limits(1):  # on matrices this small, threads cost more than they give
        for index, data, chosen in block:
            try:
                solutions.append(solve(data, chosen, norm=norm, tolerance=tolerance, throw=False))
            except InputError as error:
                raise type(error)(f"Data set {index}: {error}") from error
    return solutions


def _check_options(norm: str, max_rank: int | None, tolerance: float) -> None:
    if norm not in verify.NORMS:
        raise InputError(f"norm must be one of {sorted(verify.NORMS)}; got {norm!r}.")
    if not isinstance(tolerance, int | float) or not 1e-12 <= tolerance <= 1e-2:
        raise InputError(f"tolerance must be a number from 1e-12 to 1e-2; got {tolerance!r}.")
    if max_rank is not None:
        if norm != "nuc":
            raise InputError(f'max_rank goes with norm="nuc"; got norm={norm!r}.')
        if not isinstance(max_rank, int | np.integer) or max_rank < 1:
            raise InputError(f"max_rank must be an integer of at least 1; got {max_rank!r}.")


def _solve(problem: Problem, norm: str, max_rank: int | None, tolerance: float, start: float) -> Solution:
    reduced = rows_of.reduce(problem)
    base = least_distance.solve(reduced)
    if not base.separable:
        return _infeasible(problem, norm, base, start)
    if norm == "fro":
        u = base.u * reduced.scale**2
        return _solved(
            problem, norm, "least distance", reduced.lift(base.V), u, base.iterations, tolerance, start
        )
    if min(reduced.delta.shape[1], reduced.queries.shape[1]) == 1:  # rank one: both norms are the same
        V, u, iterations, method = base.V, base.u / np.linalg.norm(base.V), base.iterations, "least distance"
    else:
        keep = least_distance.independent_rows(reduced)
        point = interior_point.solve(reduced, base.V, base.u, keep, target=min(1e-11, 1e-2 * tolerance))
        V, u, iterations, method = point.V, point.u, point.iterations, "interior point"
    u = u * reduced.scale
    solution = _solved(problem, norm, method, reduced.lift(V), u, iterations, tolerance, start)
    if max_rank is None or solution.rank <= max_rank:
        return solution
    return _low_rank(problem, reduced, V, u, max_rank, tolerance, start)


def _low_rank(
    problem: Problem, reduced: Reduced, V: Array, u: Array, max_rank: int, tolerance: float, start: float
) -> Solution:
    point = low_rank.solve(reduced, V, max_rank)
    if point is None:
        return _open(
            problem,
            "nuc",
            None,
            start,
            f"no W of rank at most {max_rank} was found that separates (non-convex)",
        )
    solution = _solved(
        problem, "nuc", "low rank", reduced.lift(point.V), u, point.iterations, tolerance, start
    )
    message = (
        f"Rank at most {max_rank} is a non-convex constraint: W is a local optimum and separates. Without the constraint "
        f"the least norm is {solution.certificate.bound:.9g}, so {solution.certificate.gap:.3g} bounds what is left to gain."
    )
    return replace(solution, message=message)


def _solved(
    problem: Problem,
    norm: str,
    method: str,
    W: Array,
    u: Array,
    iterations: int,
    tolerance: float,
    start: float,
) -> Solution:
    certificate = verify.certify(problem, W, u, norm)
    ok = certificate.holds(tolerance)
    reached = f"gap {certificate.gap:.1e}, violation {certificate.violation:.1e}"
    message = (
        f"Optimal: {reached}."
        if ok
        else f"The certificate stops at {reached}, short of the tolerance {tolerance:.0e}: the data are badly conditioned. "
        "W and its gap are returned; rescale the features to similar sizes or accept a larger tolerance."
    )
    return Solution(
        problem=problem,
        status=Status.OPTIMAL if ok else Status.UNKNOWN,
        message=message,
        norm=norm,
        method=method,
        W=W,
        dual=u,
        value=certificate.primal,
        margin=float(problem.margins(W)[~problem.equality].min()) / certificate.primal,
        support=verify.support_tokens(problem, W),
        rank=verify.rank(W),
        rank_bound=verify.rank_bound(problem, u, norm),
        certificate=certificate,
        farkas=None,
        iterations=iterations,
        seconds=time.perf_counter() - start,
    )


def _infeasible(problem: Problem, norm: str, base: LeastDistance, start: float) -> Solution:
    farkas = verify.check_farkas(problem, base.u)
    if farkas is None:
        return _open(problem, norm, base, start)
    return _without_weight(
        problem, norm, Status.INFEASIBLE, _cause(problem, farkas), farkas, base.iterations, start
    )


def _open(
    problem: Problem, norm: str, base: LeastDistance | None, start: float, why: str | None = None
) -> Solution:
    why = (
        why
        or "rounding leaves open whether the rows can be separated: neither a weight nor a Farkas vector passes its check"
    )
    message = f"Unknown: {why}."
    return _without_weight(
        problem, norm, Status.UNKNOWN, message, None, base.iterations if base else 0, start
    )


def _without_weight(
    problem: Problem,
    norm: str,
    status: Status,
    message: str,
    farkas: Farkas | None,
    iterations: int,
    start: float,
) -> Solution:
    return Solution(
        problem=problem,
        status=status,
        message=message,
        norm=norm,
        method="least distance",
        W=None,
        dual=None,
        value=None,
        margin=None,
        support=None,
        rank=None,
        rank_bound=None,
        certificate=None,
        farkas=farkas,
        iterations=iterations,
        seconds=time.perf_counter() - start,
    )


def _cause(problem: Problem, farkas: Farkas) -> str:
    """Why nothing separates, in words, where the reason is simple."""
    void = np.flatnonzero(~problem.equality & ~problem.delta.any(1))
    if len(void):
        example, query, chosen, other = (int(j) for j in problem.rows[void[0]])
        return (
            f"Infeasible: in example {example}, query {query}, the chosen token {chosen} and the token {other} are identical, "
            "so no W can tell them apart. Choose both or remove one."
        )
    silent = np.flatnonzero(~problem.queries[problem.pair].any(1))
    if len(silent):
        example, query = (int(j) for j in problem.rows[silent[0], :2])
        return f"Infeasible: query {query} of example {example} is zero, so every W gives all its tokens the same logit."
    data, examples = problem.data, sorted(set(problem.rows[farkas.u > 1e-9, 0].tolist()))
    needed = max(data.T - 1, data.n * data.m)
    width = min(data.d_k, data.d_q)
    named = ", ".join(map(str, examples[:8])) + (", ..." if len(examples) > 8 else "")
    dimensions = (
        f" The width {width} is below max(T - 1, number of queries) = {needed}, from where on almost all data are separable: "
        "more dimensions or fewer examples would help."
        if width < needed
        else ""
    )
    return f"Infeasible: the chosen tokens cannot be separated; the rows of example(s) {named} contradict each other.{dimensions}"
