"""A causal self-attention problem end to end: rows, time, peak memory; the solution against the flattened problem.

    python benchmarks/causal.py [--n 50] [--T 64] [--d 32]

Every position of n sequences asks for one of the tokens up to it: the one a random W attends to, so that the problem is
separable. Peak memory is the process's own, Python and libraries included.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

import attsvm
from attsvm.selection import Selection, attended


def causal(n: int, T: int, d: int, seed: int = 0) -> tuple[attsvm.TokenData, Selection]:
    """Unit tokens, every token a query over its past, chosen by a random W."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, T, d))
    data = attsvm.TokenData.self_attention(X / np.linalg.norm(X, axis=-1, keepdims=True), query="all", causal=True)
    return data, attended(data, rng.standard_normal((d, d)))


def flattened(data: attsvm.TokenData, selection: Selection) -> tuple[attsvm.TokenData, np.ndarray]:
    """The same problem with one example per query that has something to separate, its tokens copied."""
    i, k = np.nonzero((data.mask & ~selection.sets).any(-1))
    return attsvm.TokenData(data.tokens[i], data.queries[i, k], mask=data.mask[i, k]), selection.indices[i, k]


def main() -> None:
    """Print the comparison on a small size, then the size asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("n", 50), ("T", 64), ("d", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()

    data, selection = causal(4, 8, 6)
    for norm in ("fro", "nuc"):
        shared, copied = attsvm.solve(data, selection, norm=norm), attsvm.solve(*flattened(data, selection), norm=norm)
        far = np.abs(shared.W - copied.W).max() / np.abs(shared.W).max()
        print(
            f"n=4 T=8 d=6, {norm}: shared and flattened values differ by {abs(shared.value / copied.value - 1):.1e}",
            end="",
        )
        print(f", W by {far:.1e}" if norm == "fro" else " (W need not be unique)")

    data, selection = causal(given.n, given.T, given.d)
    start = time.perf_counter()
    solution = attsvm.solve(data, selection)
    print(f"n={given.n} T=m={given.T} d={given.d}: {solution}")
    print(f"method {solution.method}, {time.perf_counter() - start:.1f} s, ", end="")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
