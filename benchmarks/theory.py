"""Statements about the attention SVM that can be checked against its solver, or against a closed form.

    python benchmarks/theory.py [--instances 500] [--draws 400]

1. "All tokens are support vectors", decided by one linear system, against the solved problem on random instances of
   n in 1..6, T in 2..6, d in 1..60, separable or not, random tokens chosen.
2. How often it happens at (n, T) = (5, 4), law `sphere`, α = opt, by dimension.
3. One row: `W_mm = δzᵀ/(‖δ‖²‖z‖²)`. Orthonormal tokens, n = 1: `W_mm = (T e_α - 1) zᵀ / (T ‖z‖²)`, all rows tight.

Exit status 1 where an instance disagrees or a closed form is missed by more than 1e-12.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
from rich.console import Console
from rich.table import Table

from attsvm import Status, TokenData, datasets, solve, theory

DIMENSIONS = (2, 3, 4, 5, 10, 20, 40, 80, 160)
EXPECTED = (0, 0, 0, 0, 2, 26, 78, 99, 100)  # %
EXACT = 1e-12


def agreement(instances: int, table: Table) -> bool:
    """All tokens tight: the linear system against the solver."""
    wrong = yes = separable = singular = 0
    for seed in range(instances):
        rng = np.random.default_rng(seed)
        n, T, d = (int(rng.integers(*limits)) for limits in ((1, 7), (2, 7), (1, 61)))
        data, chosen = datasets.make("sphere", n=n, T=T, d=d, seed=seed), rng.integers(0, T, n)
        found, solved = theory.all_support_vectors(data, chosen), solve(data, chosen, throw=False)
        truth = solved.support is not None and len(solved.support) == solved.problem.n_rows
        wrong += bool(found) != truth
        yes, separable = yes + truth, separable + (solved.status is Status.OPTIMAL)
        singular += found.singular
    text = f"{instances - wrong} agree ({yes} yes; {separable} separable; M singular in {singular})"
    table.add_row("all-support test against the solver", f"{instances} agree", text)
    return wrong == 0


def frequencies(draws: int, table: Table) -> None:
    """How often all tokens are support vectors of opt."""
    shares, start, checking = [], time.perf_counter(), 0.0
    for d in DIMENSIONS:
        sets = datasets.make_many("sphere", range(draws), n=5, T=4, d=d)
        begin = time.perf_counter()
        shares.append(np.mean([bool(one) for one in theory.all_support_vectors_many(sets)]))
        checking += time.perf_counter() - begin
    for d, expected, share in zip(DIMENSIONS, EXPECTED, shares, strict=True):
        error = np.sqrt(share * (1 - share) / draws)
        table.add_row(f"all support, n, T = 5, 4, d = {d}", f"about {expected} %", f"{share:.1%} ± {error:.1%}")
    seconds = f"{checking:.2f} s of {time.perf_counter() - start:.2f} s with drawing"
    table.add_row(f"time of the {draws} x {len(DIMENSIONS)} tests", "", seconds)


def closed_forms(table: Table) -> bool:
    """One row, and orthonormal tokens."""
    rng = np.random.default_rng(0)
    single, orthogonal = [], []
    for _ in range(50):
        d_k, d_q, T = (int(rng.integers(2, 20)) for _ in range(3))
        x, z = rng.standard_normal((1, 2, d_k)), rng.standard_normal((1, d_q))
        delta = x[0, 0] - x[0, 1]
        W = np.outer(delta, z[0]) / ((delta @ delta) * (z[0] @ z[0]))
        single.append(_error(TokenData(x, z), 0, W))
        alpha = int(rng.integers(T))
        W = np.outer(T * np.eye(T)[alpha] - 1.0, z[0]) / (T * (z[0] @ z[0]))
        orthogonal.append(_error(TokenData(np.eye(T)[None], z), alpha, W))
    for name, errors in (("one row", single), ("orthonormal tokens", orthogonal)):
        table.add_row(f"closed form, {name}, 50 draws", "exact", f"largest relative error {max(errors):.1e}")
    return max(single + orthogonal) <= EXACT


def _error(data: TokenData, alpha: int, W: np.ndarray) -> float:
    return float(np.linalg.norm(solve(data, [alpha]).W - W) / np.linalg.norm(W))


def main() -> int:
    """Run all checks and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=500)
    parser.add_argument("--draws", type=int, default=400)
    given = parser.parse_args()
    table = Table("check", "expected", "found")
    agree = agreement(given.instances, table)
    frequencies(given.draws, table)
    exact = closed_forms(table)
    Console(width=120).print(table)
    return 0 if agree and exact else 1


if __name__ == "__main__":
    sys.exit(main())
