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
from attsvm.solvers import (
    entrywise,
    explain,
    interior_point,
    least_distance,
    low_rank,
    soft_margin,
    spectral,
    working_set,
)
from attsvm.solvers.least_distance import LeastDistance

Array = np.ndarray

SINGLE_THREAD_ROWS = (80, 1000)
_BLAS = ThreadpoolController()


def solve(
    data: TokenData,
    chosen: Any = "optimal",
    *,
    norm: str | float | int = "fro",
    slack: float | int | None = None,
    flat: Any = None,
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
        norm: `"fro"` (exact active set), `"nuc"` or `"spec"` (interior point), `"max"` (linear program), or the
            exponent p of an entrywise p-norm, from 1.1 to 4 (projected Newton).
        slack: C > 0 makes the margin soft: minimise `½‖W‖_F² + CΣξ`, `‖W‖_p^p/p + CΣξ`, or `‖W‖ + CΣξ` in the other
            norms, with `δ_kᵀWz_k >= 1 - ξ_k`. Every problem without equalities is then feasible.
        flat: `(n, m)` or `(n,)` booleans: queries whose head has no gradient at the pooled token. Their rows are `>= 0`
            instead of `>= 1`: they exert no force, yet come alive where their unchosen tokens gain weight.
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
    rule = verify.norm_named(norm)
    _check_options(rule, slack, max_rank, tolerance)
    start = time.perf_counter()
    problem = build(data, as_selection(data, chosen), None if flat is None else _flat(data, flat))
    task = _Task(problem, rule, slack, max_rank, tolerance, start)
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
    norm: str | float | int = "fro",
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
    norm: verify.Norm
    slack: float | int | None
    max_rank: int | None
    tolerance: float
    start: float


def _solve_block(block: list[tuple[int, TokenData, Any]], norm: str | float | int, tolerance: float) -> list[Solution]:
    solutions = []
    for index, data, chosen in block:
        try:
            solutions.append(solve(data, chosen, norm=norm, tolerance=tolerance, throw=False))
        except InputError as error:
            raise type(error)(f"Data set {index}: {error}") from error
    return solutions


def _threads(problem: Problem) -> AbstractContextManager[Any]:
    """One BLAS thread for small problems: more cost time there, and much of it where other work shares the machine.

    Changing the number itself takes most of a millisecond, longer than the smallest problems would gain.
    """
    few, many = SINGLE_THREAD_ROWS
    return _BLAS.limit(limits=1) if few <= problem.n_rows <= many else nullcontext()


def _flat(data: TokenData, flat: Any) -> Array:
    given = np.asarray(flat)
    if given.dtype != bool or given.shape not in ((data.n, data.m), (data.n,)):
        raise InputError(
            f"flat must be booleans of shape {(data.n, data.m)} or ({data.n},); got {given.dtype} of {given.shape}."
        )
    return np.broadcast_to(given.reshape(data.n, -1), (data.n, data.m))


def _check_options(rule: verify.Norm, slack: float | int | None, max_rank: int | None, tolerance: float) -> None:
    if not isinstance(tolerance, int | float) or not 1e-12 <= tolerance <= 1e-2:
        raise InputError(f"tolerance must be a number from 1e-12 to 1e-2; got {tolerance!r}.")
    if slack is not None and not (isinstance(slack, int | float | np.number) and 0 < slack < np.inf):
        raise InputError(f"slack is the price C > 0 of a unit of slack, or None for a hard margin; got {slack!r}.")
    if max_rank is None:
        return
    if rule.name != "nuc" or slack is not None:
        raise InputError(f'max_rank goes with norm="nuc" and a hard margin; got norm={rule.name!r}, slack={slack!r}.')
    if isinstance(max_rank, bool) or not isinstance(max_rank, int | np.integer) or max_rank < 1:
        raise InputError(f"max_rank must be an integer of at least 1; got {max_rank!r}.")


def _solve(task: _Task) -> Solution:
    reduced = reduce(task.problem)
    price = None if task.slack is None else float(task.slack / reduced.scale**task.norm.power)
    target = min(1e-11, 1e-2 * task.tolerance)
    if price is None:
        solver = least_distance if task.problem.n_rows < working_set.WORTHWHILE else working_set
        base, method = solver.solve(reduced), solver.METHOD
        if base.V is None:
            return _not_separable(task, base)
    else:
        keep = least_distance.independent_rows(reduced)
        if int((keep & reduced.equality).sum()) == reduced.spans[0] * reduced.spans[1]:
            return _pinned(task, reduced, price)
        base, method = soft_margin.solve(reduced, price, keep, target=target), soft_margin.METHOD
    if task.norm.name != "fro":
        return _other_norm(task, reduced, base, price, target)
    return _solved(task, reduced, method, _weight(base), base.u, base.iterations)


def _pinned(task: _Task, reduced: Reduced, price: float) -> Solution:
    """Equalities that leave W = 0 only: every separation row pays its slack, the equalities' multipliers balance."""
    u, features = np.where(reduced.equality, 0.0, price), reduced.features()
    rest = features[reduced.equality].T
    u[reduced.equality] = -np.linalg.lstsq(rest, features.T @ u, rcond=None)[0]
    return _solved(task, reduced, "equalities alone", np.zeros(reduced.spans), u, 0)


def _other_norm(task: _Task, reduced: Reduced, base: LeastDistance, price: float | None, target: float) -> Solution:
    rows = reduced if task.norm.invariant else reduce(task.problem, spans=False)
    try:
        method, V, u, iterations = _optimum(task, rows, base, price, target)
    except np.linalg.LinAlgError as error:
        return _without_weight(task, Status.UNKNOWN, f"Unknown: {error}.", "none", 0)
    solution = _solved(task, rows, method, V, u, iterations)
    if task.max_rank is None or solution.rank is None or solution.rank <= task.max_rank:
        return solution
    return _low_rank(task, rows, V, u)


def _optimum(
    task: _Task, rows: Reduced, base: LeastDistance, price: float | None, target: float
) -> tuple[str, Array, Array, int]:
    """`(method, V, u, iterations)` in the coordinates of `rows`."""
    keep, V = least_distance.independent_rows(rows), _weight(base)
    if task.norm.invariant and min(rows.spans) == 1 and price is None:  # of rank one, where these norms agree
        return least_distance.METHOD, V, base.u / np.linalg.norm(V), base.iterations
    if task.norm.name == "nuc":
        point = interior_point.solve(rows, V, base.u, keep, target=target, slack=price)
        return interior_point.METHOD, point.V, point.u, point.iterations
    if task.norm.name == "spec":
        point = spectral.solve(rows, V, base.u, target=target, slack=price)
        return spectral.METHOD, point.V, point.u, point.iterations
    if task.norm.name == "max":
        point = entrywise.largest(rows, slack=price)
        return entrywise.LINEAR_PROGRAM, point.V, point.u, point.iterations
    point = entrywise.power(rows, task.norm.power, base.u, keep, target=target, slack=price)
    return entrywise.NEWTON, point.V, point.u, point.iterations


def _weight(base: LeastDistance) -> Array:
    assert base.V is not None
    return base.V


def _low_rank(task: _Task, rows: Reduced, V: Array, u: Array) -> Solution:
    rank = int(task.max_rank or 0)
    point = low_rank.solve(rows, V, rank)
    if point is None:
        return _without_weight(task, Status.UNKNOWN, explain.no_low_rank(rank), low_rank.METHOD, 0)
    solution = _solved(task, rows, low_rank.METHOD, point.V, u, point.iterations)
    if solution.certificate is None or solution.status is Status.OPTIMAL:
        return solution
    return replace(solution, message=explain.low_rank(solution.certificate, rank))


def _solved(task: _Task, rows: Reduced, method: str, V: Array, u: Array, iterations: int) -> Solution:
    """Back to the coordinates of the data, certified there."""
    problem, norm = task.problem, task.norm.name
    W, dual = rows.lift(V), u * rows.scale**task.norm.power
    certificate = verify.certify(problem, W, dual, norm, task.slack)
    value = task.norm.value(W)
    return Solution(
        problem=problem,
        status=Status.OPTIMAL if certificate.holds(task.tolerance) else Status.UNKNOWN,
        message=explain.solved(certificate, task.tolerance),
        norm=norm,
        method=method,
        W=W,
        dual=dual,
        value=value,
        margin=float(problem.margins(W)[problem.separates].min()) / value if value > 0 else None,
        support=verify.support_tokens(problem, W),
        rank=verify.rank(V),  # W in other bases
        rank_bound=verify.dual_rank_bound(problem, dual) if norm == "nuc" else min(rows.spans),
        certificate=certificate,
        farkas=None,
        slack=task.slack,
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
    return Solution.without_weight(task.problem, status, message, task.norm.name, method, iterations, seconds)
