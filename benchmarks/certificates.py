"""Certificates on random instances: does every answer come with a proof that holds?

    python benchmarks/certificates.py [--instances 1000] [--oracle] [--jobs 2]

Each instance is a seed. Sizes are drawn from n in 1..15, T in 2..15, d_k and d_q in 1..40; tokens and queries are
scaled by powers of ten from 1e-6 to 1e6, and may be correlated, repeated, chosen as sets or causal. Both norms are
solved. With `--oracle` the values are compared with Clarabel on the plain formulation, at the unit scale.

Exit status 1 where a requirement fails: gap and violation at most 1e-8, `unknown` at most 1 %, every "infeasible" with
a Farkas vector that holds, no crash.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

import attsvm
from attsvm import Selection, Status, TokenData

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import oracles  # pyright: ignore[reportMissingImports]

TOLERANCE = 1e-8
ORACLE_SECONDS = 20.0
NORMS = ("fro", "nuc")


@dataclass(frozen=True)
class Instance:
    """One random problem: tokens and queries of order one, and the scales the solver sees them at."""

    tokens: np.ndarray
    queries: np.ndarray
    mask: np.ndarray
    sets: np.ndarray
    scale_k: float
    scale_q: float
    traits: tuple[str, ...]

    def data(self, *, unit: bool = False) -> TokenData:
        """The examples as the solver gets them, or at the unit scale."""
        a, b = (1.0, 1.0) if unit else (self.scale_k, self.scale_q)
        return TokenData(a * self.tokens, b * self.queries, mask=self.mask)


@dataclass
class Record:
    """What one instance and norm gave."""

    seed: int
    norm: str
    traits: tuple[str, ...]
    shape: tuple[int, ...]
    status: str = "crash"
    gap: float = 0.0
    violation: float = 0.0
    farkas: float = 0.0
    seconds: float = 0.0
    note: str = ""
    oracle: dict[str, Any] = field(default_factory=dict)


def draw(seed: int) -> Instance:
    """The instance of this seed."""
    rng = np.random.default_rng(seed)
    n, T = int(rng.integers(1, 16)), int(rng.integers(2, 16))
    d_k = int(rng.integers(1, 41))
    d_q = d_k if rng.random() < 0.6 else int(rng.integers(1, 41))
    causal, sets, planted = rng.random() < 0.15, rng.random() < 0.25, rng.random() < 0.5
    if causal:  # every token asks: keep the number of rows in the range of the other instances
        n, d_q = max(1, min(n, 30 // T)), d_k
    tokens, how = _rows(rng, n * T, d_k)
    tokens = tokens.reshape(n, T, d_k)
    queries = tokens if causal else _rows(rng, n, d_q)[0].reshape(n, 1, d_q)
    mask = np.ones((n, queries.shape[1], T), dtype=bool)
    mask &= np.tri(T, dtype=bool) if causal else True
    traits = [how, *(name for name, on in (("causal", causal), ("sets", sets), ("planted", planted)) if on)]
    chosen = _choose(rng, tokens, queries, mask, planted, sets)
    if not causal:
        traits += _repeat(rng, tokens, queries, chosen)
    scale_k, scale_q = 10.0 ** rng.uniform(-6, 6, 2)
    return Instance(tokens, queries, mask, chosen, scale_k, scale_q, tuple(traits))


def _rows(rng: np.random.Generator, count: int, d: int) -> tuple[np.ndarray, str]:
    """Independent, around a common vector, or near a subspace; the nearness from 1e-3 to 1."""
    noise, near = rng.standard_normal((count, d)), 10.0 ** rng.uniform(-3, 0)
    how = rng.choice(["independent", "common", "subspace"], p=[0.5, 0.25, 0.25])
    if how == "common":
        return rng.standard_normal(d) + near * noise, "correlated"
    if how == "subspace":
        width = int(rng.integers(1, d + 1))
        return rng.standard_normal((count, width)) @ rng.standard_normal((width, d)) + near * noise, "correlated"
    return noise, "independent"


def _choose(
    rng: np.random.Generator, x: np.ndarray, z: np.ndarray, mask: np.ndarray, planted: bool, sets: bool
) -> np.ndarray:
    """Chosen sets `(n, m, T)`: by a planted weight (always separable where single) or at random."""
    logits = rng.standard_normal(mask.shape)
    if planted:
        logits = np.einsum("ntk,kq,nmq->nmt", x, rng.standard_normal((x.shape[2], z.shape[2])), z)
    order = np.argsort(np.where(mask, -logits, np.inf), axis=-1).argsort(-1)
    most = np.maximum(mask.sum(-1) - 1, 1)
    size = np.minimum(rng.integers(1, 4, mask.shape[:2]) if sets else 1, most)
    return (order < size[:, :, None]) & mask


def _repeat(rng: np.random.Generator, x: np.ndarray, z: np.ndarray, chosen: np.ndarray) -> list[str]:
    """Now and then repeat an unchosen token, or an example, in place."""
    traits = []
    if rng.random() < 0.2:
        for i in range(len(x)):
            rest = np.flatnonzero(~chosen[i, 0])
            x[i, rest[-1]] = x[i, rest[0]]
        traits.append("repeated tokens")
    if rng.random() < 0.1 and len(x) > 1:
        x[1], z[1], chosen[1] = x[0], z[0], chosen[0]
        traits.append("repeated example")
    return traits


def examine(seed: int, oracle: bool) -> list[Record]:
    """Solve one instance in both norms and check what comes back."""
    instance = draw(seed)
    shape = (*instance.tokens.shape, instance.queries.shape[2])
    records = [Record(seed, norm, instance.traits, shape) for norm in NORMS]
    with threadpool_limits(1):
        for record in records:
            _examine(record, instance, oracle)
    return records


def _examine(record: Record, instance: Instance, oracle: bool) -> None:
    solve = attsvm.solve  # imported here, outside the time
    start = time.perf_counter()
    try:
        solution = solve(instance.data(), Selection(instance.sets), norm=record.norm, throw=False)
    except Exception:  # noqa: BLE001 - a crash is what this benchmark counts
        record.note = traceback.format_exc(limit=-2)
        return
    record.seconds = time.perf_counter() - start
    record.status, record.note = str(solution.status), solution.message
    rows = oracles.rows_of(instance.data(), instance.sets)
    if solution.farkas is not None:
        record.farkas = oracles.farkas_residual(rows, solution.farkas.u)
    elif solution.W is not None:
        check = oracles.kkt(rows, solution.W, solution.dual, record.norm)
        record.gap, record.violation = check.gap, check.violation
    if oracle:
        _compare(record, instance, solution)


def _compare(record: Record, instance: Instance, solution: attsvm.Solution) -> None:
    rows = oracles.rows_of(instance.data(unit=True), instance.sets)
    answer = oracles.clarabel(rows, record.norm, time_limit=ORACLE_SECONDS)
    record.oracle = {"status": answer.status, "difference": None}
    if answer.W is not None and answer.value is not None and solution.value is not None:
        ours = solution.value * instance.scale_k * instance.scale_q
        record.oracle["difference"] = (ours - answer.value) / answer.value
        record.oracle["violation"] = oracles.violation(rows, answer.W)


def table(records: Iterable[Record]) -> Table:
    """Counts and worst figures, a column for each norm."""
    view = Table("", *NORMS, title="Certificates")
    columns = [[r for r in records if r.norm == norm] for norm in NORMS]
    for status in (*Status, "crash"):
        view.add_row(str(status), *(str(sum(r.status == status for r in column)) for column in columns))
    for name, attribute, status in (
        ("worst |gap|, optimal", "gap", Status.OPTIMAL),
        ("worst violation, optimal", "violation", Status.OPTIMAL),
        ("worst Farkas residual", "farkas", Status.INFEASIBLE),
    ):
        worst = (max((abs(getattr(r, attribute)) for r in c if r.status == status), default=0.0) for c in columns)
        view.add_row(name, *(f"{w:.1e}" for w in worst))
    view.add_row("median seconds", *(f"{np.median([r.seconds for r in c]):.4f}" for c in columns))
    view.add_row("longest seconds", *(f"{max(r.seconds for r in c):.3f}" for c in columns))
    return view


def oracle_table(records: Iterable[Record]) -> Table:
    """Agreement with Clarabel, a column for each norm."""
    view = Table("", *NORMS, title="Beside Clarabel (cvxpy, tight tolerances)")
    columns = [[r for r in records if r.norm == norm] for norm in NORMS]
    for word in sorted({r.oracle["status"] for r in records if r.oracle}):
        view.add_row(f"Clarabel: {word}", *(str(sum(r.oracle.get("status") == word for r in c)) for c in columns))
    differences = [
        [
            r.oracle["difference"]
            for r in c
            if r.oracle.get("status") == "optimal" and r.oracle["difference"] is not None
        ]
        for c in columns
    ]
    view.add_row("values compared", *(str(len(d)) for d in differences))
    for label, level in (("median", 50), ("99 %", 99), ("worst", 100)):
        cells = (f"{np.percentile(np.abs(d), level):.1e}" if d else "-" for d in differences)
        view.add_row(f"relative difference, {label}", *cells)
    view.add_row("our value the larger by > 1e-8", *(str(sum(x > 1e-8 for x in d)) for d in differences))
    apart = [[r for r in c if r.oracle.get("status") == "optimal" and _apart(r)] for c in columns]
    view.add_row("values apart by > 1e-8", *(str(len(a)) for a in apart))
    view.add_row(
        "... beyond our certified gap: Clarabel's error",
        *(
            str(sum(abs(r.oracle["difference"]) > r.gap + r.violation for r in a if r.status == "optimal"))
            for a in apart
        ),
    )
    view.add_row("... violation of Clarabel's W, median", *(_median([r.oracle["violation"] for r in a]) for a in apart))
    return view


def _apart(record: Record) -> bool:
    return abs(record.oracle["difference"] or 0.0) > TOLERANCE


def _median(values: list[float]) -> str:
    return f"{np.median(values):.1e}" if values else "-"


def complaints(records: list[Record], oracle: bool) -> list[str]:
    """Every record that needs a word, one line each."""
    lines = []
    for r in records:
        bad = r.status in ("crash", "unknown") or max(abs(r.gap), r.violation) > TOLERANCE or r.farkas > 1e-10
        ours = "optimal" if r.status == Status.OPTIMAL else "infeasible"
        if oracle and r.oracle:
            theirs = r.oracle["status"].removesuffix("_inaccurate")
            bad |= theirs in ("optimal", "infeasible") and theirs != ours
            bad |= abs(r.oracle["difference"] or 0.0) > 1e-6
        if bad:
            lines.append(
                f"seed {r.seed} {r.norm} n,T,d_k,d_q={r.shape} {','.join(r.traits)}: {r.status}, gap {r.gap:.1e}, "
                f"violation {r.violation:.1e}, farkas {r.farkas:.1e}, oracle {r.oracle or '-'}: {r.note}"
            )
    return lines


def passes(records: list[Record]) -> bool:
    """Whether the requirements hold."""
    optimal = [r for r in records if r.status == Status.OPTIMAL]
    count = Counter(r.status for r in records)
    return (
        all(max(abs(r.gap), r.violation) <= TOLERANCE for r in optimal)
        and all(r.farkas <= 1e-10 for r in records)
        and count["crash"] == 0
        and count["unknown"] <= 0.01 * len(records)
    )


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--oracle", action="store_true", help="compare with Clarabel (an hour for 1,000)")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    start = time.perf_counter()
    seeds = range(options.first, options.first + options.instances)
    parts = Parallel(n_jobs=options.jobs)(delayed(examine)(seed, options.oracle) for seed in seeds)
    records = [record for part in parts for record in part or ()]
    console = Console(width=120)
    console.print(table(records))
    traits = Counter(t for r in records for t in set(r.traits) if r.norm == "fro")
    console.print("instances by trait: " + ", ".join(f"{name} {count}" for name, count in sorted(traits.items())))
    if options.oracle:
        console.print(oracle_table(records))
    for line in complaints(records, options.oracle):
        console.print(line, markup=False, highlight=False)
    verdict = "requirements hold" if passes(records) else "REQUIREMENTS FAIL"
    console.print(f"{len(seeds)} instances, both norms, {time.perf_counter() - start:.0f} s: {verdict}")
    return 0 if passes(records) else 1


if __name__ == "__main__":
    sys.exit(main())
