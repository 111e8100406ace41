"""The front of the solvers: check the input, pick the method, certify, say what came out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from attsvm import verify
from attsvm.data import TokenData
from attsvm.errors import InputError, NotSeparableError, NotSolvedError
from attsvm.problem import Problem, Reduced, build, reduce
from attsvm.selection import as_selection
from attsvm.solution import Solution, Status
from attsvm.solvers import explain, interior_point, least_distance, low_rank
from attsvm.solvers.least_distance import LeastDistance

Array = np.ndarray

SINGLE_THREAD_ROWS = 1000
_BLAS = ThreadpoolController()


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

    `"fro"` is (Att-SVM) and `"nuc"` (Att-SVM*) of arXiv 2308.16898, section 2; chosen sets give its generalised
    problem, with equalities inside each set.

    Args:
        data: the examples.
        chosen: `"optimal"` (by score), indices `(n,)` or `(n, m)`, booleans `(n, T)` or `(n, m, T)`, or a `Selection`.
        norm: `"fro"` (exact active set) or `"nuc"` (interior point).
        max_rank: with `"nuc"`, also demand `rank(W) <= max_rank`. Non-convex below the rank of the free optimum: the
            result is then a local optimum, its status `unknown`, its gap the distance to the convex lower bound.
        tolerance: largest relative gap and violation of an `optimal` certificate, from 1e-12 to 1e-2.
        throw: raise unless `optimal`; with False the status and everything computed are returned. A weight found under
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
    task = _Task(build(data, as_selection(data, chosen)), norm, max_rank, tolerance, start)
    with _threads(task.problem):
        solution = _solve(task)
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
    """Solve many problems; each solution is what `solve(..., throw=False)` gives, whatever it is solved beside.

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
    work = list(zip(range(len(data)), data, choices, strict=True))
    size = max(1, -(-len(work) // (4 * jobs)))
    blocks = [work[i : i + size] for i in range(0, len(work), size)]
    from joblib import Parallel, delayed  # here, so that one solve need not wait for the import

    parts = Parallel(n_jobs=jobs)(delayed(_solve_block)(block, norm, tolerance) for block in blocks)
    return [solution for part in parts for solution in part or ()]


@dataclass(frozen=True, eq=False)
class _Task:
    problem: Problem
    norm: str
    max_rank: int | None
    tolerance: float
    start: float


def _solve_block(block: list[tuple[int, TokenData, Any]], norm: str, tolerance: float) -> list[Solution]:
    solutions = []
    for index, data, chosen in block:
        try:
            solutions.append(solve(data, chosen, norm=norm, tolerance=tolerance, throw=False))
        except InputError as error:
            raise type(error)(f"Data set {index}: {error}") from error
    return solutions


def _threads(problem: Problem) -> AbstractContextManager[Any]:
    """One BLAS thread for small problems: more cost time there, and much of it where other work shares the machine."""
    return _BLAS.limit(limits=1) if problem.n_rows <= SINGLE_THREAD_ROWS else nullcontext()


def _check_options(norm: str, max_rank: int | None, tolerance: float) -> None:
    if norm not in verify.NORMS:
        raise InputError(f"norm must be one of {sorted(verify.NORMS)}; got {norm!r}.")
    if not isinstance(tolerance, int | float) or not 1e-12 <= tolerance <= 1e-2:
        raise InputError(f"tolerance must be a number from 1e-12 to 1e-2; got {tolerance!r}.")
    if max_rank is None:
        return
    if norm != "nuc":
        raise InputError(f'max_rank goes with norm="nuc"; got norm={norm!r}.')
    if isinstance(max_rank, bool) or not isinstance(max_rank, int | np.integer) or max_rank < 1:
        raise InputError(f"max_rank must be an integer of at least 1; got {max_rank!r}.")


def _solve(task: _Task) -> Solution:
    reduced = reduce(task.problem)
    base = least_distance.solve(reduced)
    if base.V is None:
        return _not_separable(task, base)
    if task.norm == "fro":
        dual = base.u * reduced.scale**2
        return _solved(task, least_distance.METHOD, reduced.lift(base.V), dual, base.iterations)
    return _nuclear(task, reduced, base, base.V)


def _nuclear(task: _Task, reduced: Reduced, base: LeastDistance, V: Array) -> Solution:
    if min(V.shape) == 1:  # of rank one, where both norms agree
        method, u, iterations = least_distance.METHOD, base.u / np.linalg.norm(V), base.iterations
    else:
        target = min(1e-11, 1e-2 * task.tolerance)
        point = interior_point.solve(reduced, V, base.u, least_distance.independent_rows(reduced), target=target)
        method, V, u, iterations = interior_point.METHOD, point.V, point.u, point.iterations
    dual = u * reduced.scale
    solution = _solved(task, method, reduced.lift(V), dual, iterations)
    if task.max_rank is None or solution.rank is None or solution.rank <= task.max_rank:
        return solution
    return _low_rank(task, reduced, V, dual)


def _low_rank(task: _Task, reduced: Reduced, V: Array, dual: Array) -> Solution:
    rank = int(task.max_rank or 0)
    point = low_rank.solve(reduced, V, rank)
    if point is None:
        return _without_weight(task, Status.UNKNOWN, explain.no_low_rank(rank), low_rank.METHOD, 0)
    solution = _solved(task, low_rank.METHOD, reduced.lift(point.V), dual, point.iterations)
    if solution.certificate is None or solution.status is Status.OPTIMAL:
        return solution
    return replace(solution, message=explain.low_rank(solution.certificate, rank))


def _solved(task: _Task, method: str, W: Array, dual: Array, iterations: int) -> Solution:
    problem, certificate = task.problem, verify.certify(task.problem, W, dual, task.norm)
    return Solution(
        problem=problem,
        status=Status.OPTIMAL if certificate.holds(task.tolerance) else Status.UNKNOWN,
        message=explain.solved(certificate, task.tolerance),
        norm=task.norm,
        method=method,
        W=W,
        dual=dual,
        value=certificate.primal,
        margin=float(problem.margins(W)[~problem.equality].min()) / certificate.primal,
        support=verify.support_tokens(problem, W),
        rank=verify.rank(W),
        rank_bound=verify.rank_bound(problem, dual, task.norm),
        certificate=certificate,
        farkas=None,
        iterations=iterations,
        seconds=time.perf_counter() - task.start,
    )


def _not_separable(task: _Task, base: LeastDistance) -> Solution:
    farkas = verify.check_farkas(task.problem, base.u)
    if farkas is None:
        return _without_weight(task, Status.UNKNOWN, explain.OPEN, least_distance.METHOD, base.iterations)
    message = explain.infeasible(task.problem, farkas)
    solution = _without_weight(task, Status.INFEASIBLE, message, least_distance.METHOD, base.iterations)
    return replace(solution, farkas=farkas)


def _without_weight(task: _Task, status: Status, message: str, method: str, iterations: int) -> Solution:
    seconds = time.perf_counter() - task.start
    return Solution.without_weight(task.problem, status, message, task.norm, method, iterations, seconds)
