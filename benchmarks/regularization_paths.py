"""Does the distance of the regularisation path to the attention SVM fall with the radius, on every data set?

    python benchmarks/regularization_paths.py [--sets 20] [--sizes 6 8 10] [--starts 16] [--jobs 2]

Data: `datasets.sphere`, seeds from 0, the first ones whose optimal tokens are separable. Radii are multiples of the
norm of the SVM of the optimal tokens: at R = ‖W_svm‖ its smallest margin is 1. The distance is that of `W̄_R / R` in
the Frobenius norm: in W form to `W_mm / ‖W_mm‖_F`, in (K, Q) form to the set `{W_mm*} / ‖W_mm*‖_*`.

The theory speaks of large R alone. Up to about three times the norm of the SVM the best weights often attend to other
tokens than the optimal ones (column `optimal tokens`), and move from one set of tokens to another as R grows: there
the distance may rise between neighbouring radii, and too few starts miss the best set. Exit status 1 where a distance
rises from one radius of this grid to the next.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import count, islice

import numpy as np
from joblib import Parallel, delayed
from rich.console import Console
from rich.table import Table

import attsvm
from attsvm.paths import RegularizationPath, regularization_path

MULTIPLES = np.array([1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0])
SVM = {"W": "fro", "KQ": "nuc"}


def main() -> int:
    """Follow every path, print the distances."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=20)
    parser.add_argument("--sizes", type=int, nargs=3, default=(6, 8, 10), metavar=("N", "T", "D"))
    parser.add_argument("--form", nargs="+", default=["W", "KQ"], choices=["W", "KQ"])
    parser.add_argument("--starts", type=int, default=16)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    sizes, falls, console = tuple(options.sizes), True, Console(width=150)
    drawn = (seed for seed in count() if attsvm.is_separable(attsvm.datasets.sphere(*sizes, seed=seed), "optimal"))
    seeds = list(islice(drawn, options.sets))
    for form in options.form:
        start = time.perf_counter()
        tasks = (delayed(_path)(form, sizes, seed, options.starts) for seed in seeds)
        tables = [table for table in Parallel(n_jobs=options.jobs)(tasks) if table is not None]
        seconds = time.perf_counter() - start
        distance = np.array([table["distance"] for table in tables])
        falling = (np.diff(distance, axis=1) < 0).all(1)
        falls &= bool(falling.all())
        console.print(
            f"\n{form} form, (n, T, d) = {sizes}, seeds {seeds}, {options.starts} starts: {seconds:.0f} s",
            highlight=False,
        )
        console.print(_summary(tables, distance, options.starts))
        last = " ".join(f"{value:.2e}" for value in distance[:, -1])
        console.print(f"Falls at every step on {falling.sum()} of {len(seeds)} data sets. Last values: {last}")
    return int(not falls)


def _path(form: str, sizes: tuple[int, int, int], seed: int, starts: int) -> dict[str, np.ndarray]:
    data = attsvm.datasets.sphere(*sizes, seed=seed)
    svm = attsvm.solve(data, "optimal", norm=SVM[form])
    assert svm.value is not None
    path = regularization_path(data, svm.value * MULTIPLES, form=form, starts=starts)
    table = path.table(svm)
    chosen = [np.array_equal(svm.problem.selection.indices, _chosen(path, W)) for W in path.W]
    return {name: table[name].to_numpy() for name in table.columns} | {"optimal": np.array(chosen)}


def _chosen(path: RegularizationPath, W: np.ndarray) -> np.ndarray:
    return np.argmax(np.einsum("ntk,kq,nmq->nmt", path.data.tokens, W, path.data.queries), axis=-1)


def _summary(tables: list[dict[str, np.ndarray]], distance: np.ndarray, starts: int) -> Table:
    table = Table(box=None, padding=(0, 2))
    heads = "R/‖W_svm‖", "distance: mean", "min", "max", "mean x R/‖W‖", "optimal tokens", "residual: max", "agree"
    for name in heads:
        table.add_column(name, justify="right")
    stack = {name: np.array([one[name] for one in tables]) for name in ("optimal", "residual", "agreeing")}
    for j, multiple in enumerate(MULTIPLES):
        at = distance[:, j]
        table.add_row(
            f"{multiple:g}",
            *(f"{value:.3e}" for value in (at.mean(), at.min(), at.max())),
            f"{at.mean() * multiple:.2f}",
            f"{stack['optimal'][:, j].sum()}/{len(tables)}",
            f"{stack['residual'][:, j].max():.0e}",
            f"{stack['agreeing'][:, j].mean():.1f}/{starts}",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
