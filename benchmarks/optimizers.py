"""Which attention SVM does an update rule turn to? Every rule against the SVM of every norm, on the same data.

    python benchmarks/optimizers.py [--sets 20] [--steps 20000]

Data: `datasets.sphere(6, 8, 10)`, seeds 0 to 19; those whose optimal tokens are not separable would be left out and
counted. W form from W0 = 0, exact log-domain gradient, logistic loss. The SVMs are those of the tokens each run chose.

Correlation is that of the trained W with an SVM; efficiency the margin of the trained W in a norm over the best margin
there is in that norm. SVMs in the max and spectral norms may have several solutions, of which the solver returns one:
judge by efficiency first. Exit status 1 where a run is more efficient in another norm than its own, except for Adam,
whose norm is the question here and depends on its memory β2.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
from rich.console import Console
from rich.table import Table

import attsvm
from attsvm import Solution, TokenData, Trajectory
from attsvm.compare import correlation, margin
from attsvm.optimizers import Adam, MirrorDescent, NormalizedGD, Optimizer, SignDescent, SpectralDescent, svm_of

NORMS = ("fro", "max", "spec", 1.75, 3.0)
RULES: dict[str, Optimizer] = {
    "normalised GD": NormalizedGD(0.1),
    "sign descent": SignDescent(0.1, decay=200.0),
    "spectral descent": SpectralDescent(0.1, decay=200.0),
    "mirror descent, p = 1.75": MirrorDescent(1.75, 0.1),
    "mirror descent, p = 2": MirrorDescent(2.0, 0.1),
    "mirror descent, p = 3": MirrorDescent(3.0, 1.0),
    "Adam, η = 0.01, β2 = 0.95": Adam(0.01, decay=np.inf, beta2=0.95),
    "Adam, β2 = 0.95": Adam(0.1, decay=200.0, beta2=0.95),
    "Adam, β2 = 0.999": Adam(0.1, decay=200.0, beta2=0.999),
}


def main() -> int:
    """Train, solve, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=20)
    parser.add_argument("--steps", type=int, default=20_000)
    options = parser.parse_args()
    start = time.perf_counter()
    drawn = [attsvm.datasets.sphere(6, 8, 10, seed=seed) for seed in range(options.sets)]
    sets = [data for data in drawn if attsvm.is_separable(data, "optimal")]
    svms, table, wrong = Svms(sets), _table(), []
    for name, rule in RULES.items():
        run = attsvm.train(sets, optimizer=rule, steps=options.steps, initial="zeros", record=2, progress=False)
        own = NORMS.index(svm_of(rule))
        correlations, efficiencies = svms.measure(run)
        best = efficiencies.argmax(1) == own
        wrong += [name] if "Adam" not in name and not best.all() else []
        cells = [f"{c:.4f} {e:.4f}" for c, e in zip(correlations.mean(0), efficiencies.mean(0), strict=True)]
        cells[own] = f"[bold]{cells[own]}[/bold] *"
        least = f"{efficiencies[:, own].min():.4f}"
        table.add_row(name, *cells, f"{best.sum()}/{len(sets)}", least, f"{run.norms[:, -1].mean():.0f}")
    console = Console(width=160)
    console.print(table)
    console.print(
        f"Means over {len(sets)} runs of {options.steps:,} steps ({len(drawn) - len(sets)} not separable, left out). "
        "Columns: correlation with the SVM of that norm, margin efficiency in it; * the rule's own norm.\n"
        "Own best: runs most efficient in their own norm; least: their least efficiency there. "
        f"{time.perf_counter() - start:.0f} s in all.\n"
        + "\n".join(f"  {name}: {rule}" for name, rule in RULES.items()),
        highlight=False,
    )
    if wrong:
        console.print(f"Runs more efficient in another norm than their own: {', '.join(wrong)}.")
    return int(bool(wrong))


class Svms:
    """The SVMs of the tokens that runs chose, solved once for each data set, choice and norm."""

    def __init__(self, sets: list[TokenData]) -> None:
        self.sets = sets
        self.known: dict[tuple[int, bytes, str | float], Solution] = {}

    def measure(self, run: Trajectory) -> tuple[np.ndarray, np.ndarray]:
        """Correlation with the SVM of every norm and efficiency in it, each `(R, norms)`."""
        found = np.empty((2, run.runs, len(NORMS)))
        for r, W in enumerate(run.final):
            for j, norm in enumerate(NORMS):
                svm = self._solve(int(run.run_data[r]), run.chosen[r, -1], norm)
                assert svm.W is not None
                assert svm.value is not None
                found[:, r, j] = correlation(W, svm.W), margin(W, svm.problem, svm.norm) * svm.value
        return found[0], found[1]

    def _solve(self, index: int, chosen: np.ndarray, norm: str | float) -> Solution:
        key = index, chosen.tobytes(), norm
        if key not in self.known:
            self.known[key] = attsvm.solve(self.sets[index], chosen, norm=norm)
        return self.known[key]


def _table() -> Table:
    table = Table(box=None, padding=(0, 2))
    table.add_column("rule")
    for norm in NORMS:
        table.add_column(norm if isinstance(norm, str) else f"p={norm:g}")
    for name in ("own best", "least", "‖W‖_F"):
        table.add_column(name, justify="right")
    return table


if __name__ == "__main__":
    sys.exit(main())
