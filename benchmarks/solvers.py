"""How long a user waits: attsvm beside the plain cvxpy formulation, in one run.

    python benchmarks/solvers.py [--quick] [--norm fro|nuc] [--repeats 3]

cvxpy is timed as a user meets it: construction, compilation and solve together, with the solver's own time beside it.
The plain formulation is the paper's, `norm(W, "fro")` or `normNuc(W)`, with one constraint for each row,
`(x_opt - x_t) @ W @ z_i >= 1`; the targets are against it. Beside it stand the forms of an expert: the norm squared, a
quadratic program, and all rows in one vectorised constraint. The programs take turns on the same data: tokens, queries
and head uniform on the sphere, each seed a new data set. What each reached is measured by `attsvm.verify` on its W, the
gap to the same certified bound. Ratios are of wall time and, steadier on a busy machine, of processor time.

Exit status 1 where the ratio of wall times falls short of its target.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any

import cvxpy as cp
import numpy as np
from rich.console import Console
from rich.table import Table

import attsvm
from attsvm import TokenData, verify

SIZES = [(6, 8, 10), (5, 15, 20), (10, 10, 40), (20, 20, 64)]
TARGETS = {
    "fro": dict(zip(SIZES, (25, 40, 200, 500), strict=True)),
    "nuc": dict(zip(SIZES, (4, 5, 10, 25), strict=True)),
    "nuc at 1e-9": dict(zip(SIZES, (15, 40, 300), strict=False)),
}
CLARABEL = {"solver": cp.CLARABEL, "tol_gap_abs": 1e-9, "tol_gap_rel": 1e-9, "tol_feas": 1e-9}
PLAIN = "row by row"
OBJECTIVES: dict[str, Callable[[cp.Variable], cp.Expression]] = {
    "fro": lambda W: cp.norm(W, "fro"),
    "fro²": cp.sum_squares,
    "nuc": cp.normNuc,
}
FORMS = {
    "fro": [("fro", PLAIN), ("fro²", PLAIN), ("fro²", "vectorised")],
    "nuc": [("nuc", PLAIN), ("nuc", "vectorised")],
}
OUR_CALLS = 7  # per seed, each side of every cvxpy solve


@dataclass
class Entry:
    """What one program took and reached, over the seeds."""

    name: str
    total: list[float] = field(default_factory=list)
    inner: list[float] = field(default_factory=list)
    gap: list[float] = field(default_factory=list)
    violation: list[float] = field(default_factory=list)
    ratio: list[float] = field(default_factory=list)
    ratio_cpu: list[float] = field(default_factory=list)


def sphere(seed: int, n: int, T: int, d: int) -> TokenData:
    """Tokens, queries and head uniform on the unit sphere."""
    rng = np.random.default_rng(seed)
    x, z, v = (rng.standard_normal(shape) for shape in ((n, T, d), (n, d), (d,)))
    return TokenData(*(a / np.linalg.norm(a, axis=-1, keepdims=True) for a in (x, z)), value=v / np.linalg.norm(v))


def plain(data: TokenData, chosen: np.ndarray, objective: str, form: str) -> tuple[cp.Problem, cp.Variable]:
    """The attention SVM as a user writes it in cvxpy."""
    x, z = data.tokens, data.queries[:, 0]
    W = cp.Variable((data.d_k, data.d_q))
    constraints: list[Any]
    pairs = [(i, a, t) for i, a in enumerate(chosen) for t in range(data.T) if t != a]
    if form == PLAIN:
        constraints = [(x[i, a] - x[i, t]) @ W @ z[i] >= 1 for i, a, t in pairs]
    else:
        delta = np.array([x[i, a] - x[i, t] for i, a, t in pairs])
        constraints = [cp.sum(cp.multiply(delta @ W, z[[i for i, _, _ in pairs]]), axis=1) >= 1]
    return cp.Problem(cp.Minimize(OBJECTIVES[objective](W)), constraints), W


def timed(call: Callable[[], object]) -> np.ndarray:
    """`[wall seconds, processor seconds]` of a call."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return np.array([time.perf_counter() - wall, time.process_time() - cpu])


def steady(call: Callable[[], object]) -> np.ndarray:
    """Median of `timed` over repeated calls."""
    return np.median([timed(call) for _ in range(OUR_CALLS)], axis=0)


def measure(
    size: tuple[int, int, int], norm: str, seeds: range, forms: list[tuple[str, str]], **options: object
) -> list[Entry]:
    """Ours and every cvxpy form in turn, on each seed; `options` go to cvxpy's solve."""
    ours, theirs = Entry("attsvm"), {}
    for seed in seeds:
        data = sphere(seed, *size)
        solution = attsvm.solve(data, norm=norm, throw=False)
        if solution.certificate is None:
            continue
        chosen = solution.problem.selection.indices[:, 0]
        before = steady(partial(attsvm.solve, data, chosen, norm=norm))
        for objective, form in forms:
            found = []
            time_taken = timed(lambda: found.extend(_solve_plain(data, chosen, objective, form, options)))  # noqa: B023
            W, stats = found
            after = steady(partial(attsvm.solve, data, chosen, norm=norm))
            name = f"cvxpy {objective}, {form}, {stats.solver_name}"
            entry = theirs.setdefault((objective, form), Entry(name))
            _note(entry, solution, W, time_taken[0], stats.solve_time or np.nan)
            ratio = time_taken / (0.5 * (before + after))
            entry.ratio.append(ratio[0])
            entry.ratio_cpu.append(ratio[1])
            _note(ours, solution, solution.W, after[0], after[0])
            before = after
    return [ours, *theirs.values()]


def _solve_plain(data: TokenData, chosen: np.ndarray, objective: str, form: str, options: dict) -> tuple:
    problem, W = plain(data, chosen, objective, form)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem.solve(**options)
    return W.value, problem.solver_stats


def _note(entry: Entry, solution: attsvm.Solution, W: np.ndarray | None, total: float, inner: float) -> None:
    if W is None or solution.dual is None:
        raise RuntimeError(f"{entry.name} found no weight for {solution.problem.data!r}.")
    certificate = verify.certify(solution.problem, W, solution.dual, solution.norm)
    entry.total.append(total)
    entry.inner.append(inner)
    entry.gap.append(abs(certificate.gap))
    entry.violation.append(certificate.violation)


def report(console: Console, title: str, sizes: list, results: dict, targets: dict) -> bool:
    """Print one table; whether every ratio reaches its target."""
    columns = ("n, T, d", "program", "seconds", "solver's own", "gap", "violation", "ratio", "of CPU time", "target")
    view = Table(*columns, title=title)
    met = True
    for size in sizes:
        ours, *theirs = results[size]
        view.add_row(str(size), ours.name, f"{np.median(ours.total):.4f}", "", *_reached(ours))
        for entry in theirs:
            ratio, goal = float(np.median(entry.ratio)), ""
            if entry is theirs[0]:
                goal = f"{targets[size]}x {'met' if ratio >= targets[size] else 'MISSED'}"
                met &= ratio >= targets[size]
            seconds = [f"{np.median(entry.total):.4f}", f"{np.median(entry.inner):.4f}"]
            view.add_row(
                "", entry.name, *seconds, *_reached(entry), f"{ratio:.1f}x", f"{np.median(entry.ratio_cpu):.1f}x", goal
            )
        view.add_section()
    console.print(view)
    return met


def _reached(entry: Entry) -> list[str]:
    return [f"{max(entry.gap):.0e}", f"{max(entry.violation):.0e}"]


def first_call() -> float:
    """Milliseconds of the first solve in this process, imports included."""
    data = sphere(0, *SIZES[0])
    start = time.perf_counter()
    attsvm.solve(data, norm="nuc")
    return 1e3 * (time.perf_counter() - start)


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the two small sizes, one seed")
    parser.add_argument("--norm", choices=("fro", "nuc"), action="append", help="only this norm")
    parser.add_argument("--repeats", type=int, default=3, help="seeds for each size")
    options = parser.parse_args()
    console = Console(width=140)
    console.print(f"first call of attsvm.solve in this process, with its imports: {first_call():.0f} ms")
    measure((2, 3, 3), "nuc", range(1), FORMS["nuc"])  # cvxpy's own first call
    seeds, sizes = range(1 if options.quick else options.repeats), SIZES[:2] if options.quick else SIZES
    met = True
    for norm in options.norm or ("fro", "nuc"):
        results = {size: measure(size, norm, seeds, FORMS[norm]) for size in sizes}
        met &= report(console, f"{norm}: default solver of cvxpy {version('cvxpy')}", sizes, results, TARGETS[norm])
    if "nuc" in (options.norm or ("fro", "nuc")):
        results = {size: measure(size, "nuc", seeds, FORMS["nuc"], **CLARABEL) for size in sizes[:2]}
        if not options.quick:  # minutes for one solve
            results[SIZES[2]] = measure(SIZES[2], "nuc", range(1), FORMS["nuc"][:1], **CLARABEL)
        met &= report(console, "nuc: Clarabel at 1e-9", list(results), results, TARGETS["nuc at 1e-9"])
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
