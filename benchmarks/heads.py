"""Heads that choose several tokens: sparsemax selection in closed form, and W_fin + R W_mm on the ReLU experiment.

    python benchmarks/heads.py [sparsemax] [relu] [--accepted 100]

sparsemax: one example of ten orthonormal tokens, h(a) = vᵀa - λ‖a‖², 100 seeds for every λ. The best attention is
sparsemax(Xv / 2λ). Instances whose sparsemax has a weight in (0, 1e-3) are left out. Three step rules from the same
start: the weight is within 1e-4, and the tokens above 5e-4 are those of the sparsemax, in so many instances.

relu: the experiment of arXiv 2308.16898 with h(a) = 1ᵀrelu(Va), V (d, d) Gaussian with ‖V‖_F = 1, n = 3, T = 4. Seeds
are tried until enough runs are accepted, then trained on with the two-scale rule.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from rich.console import Console
from rich.table import Table

import attsvm
from attsvm import TokenData, Trajectory, datasets
from attsvm.decompose import VARIANTS, decompose, flat_queries
from attsvm.prediction import MLPHead, QuadraticHead
from attsvm.selection import Selection, attended, by_threshold
from attsvm.two_scale import train_two_scale

STEPS, MORE = 2_000, 20_000
CHOSEN, CLEAR = 1e-3, 1e-6
PENALTIES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0)
PUBLISHED = {4: (0.034, 0.071, 0.156), 6: (0.0165, 0.043, 0.144), 8: (0.011, 0.015, 0.135), 10: (0.0056, 0.0087, 0.12)}
OTHER_SEEDS = 1_000_000  # of the initial weights, apart from those of the data
CONSOLE = Console(width=120)


def sparsemax(z: np.ndarray) -> np.ndarray:
    """Euclidean projection of every row on the probability simplex."""
    ranked = -np.sort(-z, axis=-1)
    excess = np.cumsum(ranked, axis=-1) - 1
    count = (ranked * np.arange(1, z.shape[-1] + 1) > excess).sum(-1, keepdims=True)
    return np.maximum(z - np.take_along_axis(excess, count - 1, axis=-1) / count, 0.0)


def selection_by_sparsemax() -> None:
    """The first table."""
    drawn = datasets.make_many("orthonormal", range(100), n=1, T=10, d=10)
    scores = np.stack([one.tokens[0] @ one.value for one in drawn])
    everything = Selection(np.ones((1, 1, 10), dtype=bool))
    names = (f"normalised GD, {STEPS:,}", f"then plain GD, {MORE:,}", f"or natural, {MORE:,}")
    table = Table("λ", "instances", "mean size", *(f"{name}: exact / within 1e-4 / worst" for name in names), box=None)
    total = np.zeros((4, 2), dtype=int)
    for penalty in PENALTIES:
        best = sparsemax(scores / (2 * penalty))
        clear = ~((best > 0) & (best < 1e-3)).any(1)
        sets = [TokenData(one.tokens, one.queries, head=QuadraticHead(one.value, penalty)) for one in drawn]
        seeds = OTHER_SEEDS + np.arange(100)[:, None]
        start = attsvm.train(sets, seeds=seeds, steps=STEPS, record=2)
        rules = [(kind, {"learning_rate": 1 / penalty, "record": 2, "steps": MORE}) for kind in ("gd", "natural")]
        runs = [start, *(train_two_scale(start, everything, finite=kind, **rest) for kind, rest in rules)]
        cells = []
        for j, run in enumerate(runs):
            maps = run.probabilities[clear, -1, 0, 0]
            error = np.abs(maps - best[clear]).max(1)
            exact = ((maps > 5e-4) == (best[clear] > 0)).all(1)
            total[j] += exact.sum(), (exact & (error < 1e-4)).sum()
            cells.append(f"{exact.sum()} / {(error < 1e-4).sum()} / {error.max():.1e}")
        total[3] += clear.sum()
        table.add_row(f"{penalty:g}", str(clear.sum()), f"{(best > 0).sum(1).mean():.1f}", *cells)
    count = total[3, 0]
    shares = [f"{a / count:.1%}, with the weights {b / count:.1%}" for a, b in total[:3]]
    table.add_row("all", str(count), "", *shares)
    CONSOLE.print(table)


def draw(d: int, seed: int) -> TokenData:
    """One data set of the ReLU experiment."""
    V = np.random.default_rng([seed, 1]).standard_normal((d, d))
    plain = datasets.sphere(3, 4, d, seed=seed)
    return TokenData(plain.tokens, plain.queries, labels=plain.labels, head=MLPHead(V / np.linalg.norm(V)))


def accepted_runs(d: int, wanted: int) -> tuple[list[TokenData], np.ndarray, list[Selection], int]:
    """Data sets, weights after the paper's training and chosen sets of the runs its rule accepts; seeds tried."""
    data, weights, chosen, tried = [], [], [], 0
    for seeds in (range(i, i + 500) for i in range(0, 1_000_000, 500)):
        tried += len(seeds)
        sets = {seed: draw(d, seed) for seed in seeds}
        sets = {seed: one for seed, one in sets.items() if (one.labels < 0).any()}
        run = attsvm.train(
            list(sets.values()), seeds=OTHER_SEEDS + np.array(list(sets))[:, None], steps=STEPS, record=2
        )
        maps = run.probabilities[:, -1]
        between = ((maps > CLEAR) & (maps <= CHOSEN)).any((1, 2, 3))
        for r in np.flatnonzero(~between & (maps <= CLEAR).any((1, 2, 3))):
            data.append(run.data[r])
            weights.append(run.final[r])
            chosen.append(by_threshold(maps[r], CHOSEN))
        if len(data) >= wanted:
            return data, np.stack(weights), chosen, tried
    raise RuntimeError("a million seeds are not enough")


def losses(run: Trajectory, chosen: list[Selection]) -> np.ndarray:
    """`1 - corr(W, W_SVMeq)` of every run in the three variants, `(R, 3)`."""
    out = np.empty((run.runs, len(VARIANTS)))
    for r, (data, W) in enumerate(zip(run.data, run.final, strict=True)):
        flat = flat_queries(data, W)
        for j, variant in enumerate(VARIANTS):
            out[r, j] = 1 - decompose(W, data, chosen[r], flat=flat, variant=variant).least_squares.correlation
    return out


def sets_now(run: Trajectory) -> list[Selection]:
    """Chosen sets by the paper's threshold at the end of a run."""
    return [by_threshold(maps, CHOSEN) for maps in run.probabilities[:, -1]]


def unchanged(run: Trajectory, chosen: list[Selection]) -> np.ndarray:
    """Which runs end with the sets they had, `(R,)`."""
    return np.array([np.array_equal(a.sets, b.sets) for a, b in zip(sets_now(run), chosen, strict=True)])


def freed(data: TokenData, W: np.ndarray, sets: Selection) -> Selection:
    """The sets of flat queries cut down to their most attended token, so that nothing holds their other tokens."""
    return Selection(np.where(flat_queries(data, W)[..., None], attended(data, W).sets, sets.sets))


def decompose_relu(wanted: int) -> None:
    """The other tables."""
    first = Table(
        "d",
        "accepted of tried",
        "no set full",
        "W_SVMeq",
        "W_mm",
        "one token",
        "published: W_SVMeq, W_mm, one",
        box=None,
    )
    second = Table("d", "runs", "sets kept", "paper: mean / median", "dropped", "flat", "worst", box=None)
    second.add_column("flat, sets kept: below 1e-4")
    third = Table("d", "runs with flat sets", "sets kept", "median", "below 1e-4", "sets left: median", box=None)
    for d, published in PUBLISHED.items():
        start = time.perf_counter()
        data, W, chosen, tried = accepted_runs(d, wanted)
        parts = [decompose(w, one, sets).correlations for w, one, sets in zip(W, data, chosen, strict=True)]
        early = (f"{np.mean([1 - corr[name] for corr in parts]):.4f}" for name in ("W_SVMeq", "W_mm", "single"))
        share = f"{len(data)} of {tried:,} ({len(data) / tried:.1%})"
        part = sum(bool((sets.sizes < 4).all()) for sets in chosen)
        first.add_row(str(d), share, f"{part / tried:.1%}", *early, ", ".join(map(str, published)))

        run = train_two_scale((data, W), chosen, steps=MORE, record=2)
        kept, lost = unchanged(run, chosen), losses(run, chosen)
        cells = (f"{a:.1e} / {b:.1e}" for a, b in zip(lost.mean(0), np.median(lost, axis=0), strict=True))
        good = f"{(lost[kept, 2] < 1e-4).sum()} of {kept.sum()} ({(lost[kept, 2] < 1e-4).mean():.1%})"
        second.add_row(str(d), str(len(data)), str(kept.sum()), *cells, f"{lost[:, 2].max():.1e}", good)
        for r in np.flatnonzero(~kept | ~(lost[:, 2] < 1e-4)):
            CONSOLE.print(f"d={d} run {r}: sets kept {kept[r]}, 1 - corr {lost[r]}, sizes {chosen[r].sizes.ravel()}")
        third.add_row(str(d), *control(data, W, chosen))
        CONSOLE.print(f"d={d}: {time.perf_counter() - start:.0f} s, mean ‖W‖ {run.norms[:, -1].mean():.0f}")
    CONSOLE.print(f"\n1 - correlation after {STEPS:,} steps of normalised GD, means", first)
    CONSOLE.print(f"\n1 - correlation of W_SVMeq after {MORE:,} two-scale steps, mean / median", second)
    CONSOLE.print("\nControl: the same training, but nothing holds the pairs inside the set of a flat query", third)


def control(data: list[TokenData], W: np.ndarray, chosen: list[Selection]) -> list[str]:
    """Train on with the flat sets freed; compare with W_SVMeq of the sets found in the end."""
    several = [bool((flat_queries(d, w) & (c.sizes > 1)).any()) for d, w, c in zip(data, W, chosen, strict=True)]
    picked = np.flatnonzero(several)
    data, W, chosen = [data[r] for r in picked], W[picked], [chosen[r] for r in picked]
    run = train_two_scale((data, W), [freed(*each) for each in zip(data, W, chosen, strict=True)], record=2)
    kept, lost = unchanged(run, chosen), losses(run, sets_now(run))[:, 2]
    good = f"{(lost[kept] < 1e-4).sum()} of {kept.sum()}"
    return [str(len(data)), str(kept.sum()), f"{np.median(lost[kept]):.1e}", good, f"{np.median(lost[~kept]):.1e}"]


def main() -> None:
    """Print the tables asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", default=["sparsemax", "relu"], help="sparsemax, relu")
    parser.add_argument("--accepted", type=int, default=100, help="runs wanted for every d")
    given = parser.parse_args()
    for name, work in (("sparsemax", selection_by_sparsemax), ("relu", lambda: decompose_relu(given.accepted))):
        if name in given.tables:
            start = time.perf_counter()
            work()
            CONSOLE.print(f"{name}: {time.perf_counter() - start:.0f} s in all\n")


if __name__ == "__main__":
    main()
