"""Training speed: `attsvm.train` beside the loop one would write in PyTorch, in one run on one machine.

    python benchmarks/training.py [--seeds 100] [--steps 2000] [--all]

The size is the paper's: (n, T, d) = (6, 8, 10), one data set, 100 seeds, 2,000 steps of normalised gradient descent in
float64. The PyTorch loop takes the seeds one after the other; unless `--all` is given it is timed on three of them, and
its time is scaled to the number of seeds. attsvm is timed twice in the same process: the first call compiles. Both must
reach the same weights while no softmax is saturated, which is checked last.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from attsvm.data import TokenData
from attsvm.training import train
from attsvm.trajectory import Trajectory

try:
    import torch
except ImportError:
    raise SystemExit("This benchmark compares with PyTorch: pip install torch") from None

RATE = 0.1
CHECKED_STEPS, TOLERANCE = 60, 1e-9


def sphere(seed: int, n: int = 6, T: int = 8, d: int = 10) -> TokenData:
    """Tokens, queries and value uniform on the unit sphere, fair labels."""
    rng = np.random.default_rng(seed)
    x, z, v = (rng.normal(size=shape) for shape in ((n, T, d), (n, d), (d,)))
    x, z, v = (a / np.linalg.norm(a, axis=-1, keepdims=True) for a in (x, z, v))
    return TokenData(x, z, labels=rng.choice([-1.0, 1.0], n), value=v)


def torch_loop(data: TokenData, initial: tuple[np.ndarray, ...], steps: int) -> list[np.ndarray]:
    """One run of normalised gradient descent from `(W,)` or `(K, Q)`."""
    X, Z = torch.tensor(data.tokens), torch.tensor(data.queries[:, 0])
    y, v = torch.tensor(data.labels[:, 0]), torch.tensor(data.value)
    weights = [torch.tensor(w, requires_grad=True) for w in initial]
    for _ in range(steps):
        W = weights[0] if len(weights) == 1 else weights[0] @ weights[1].T
        softmax = torch.softmax((X @ (Z @ W.T).unsqueeze(-1)).squeeze(-1), dim=-1)
        margin = y * ((softmax.unsqueeze(1) @ X).squeeze(1) @ v)
        torch.nn.functional.softplus(-margin).mean().backward()
        with torch.no_grad():
            for w in weights:
                w -= RATE * w.grad / w.grad.norm()
                w.grad = None
    return [w.detach().numpy() for w in weights]


def start(run: Trajectory, r: int) -> tuple[np.ndarray, ...]:
    """The initial weights of run `r`."""
    return (run.W[r, 0],) if run.K is None else (run.K[r, 0], run.Q[r, 0])


def check(data: TokenData, form: str) -> float:
    """Largest difference of the weights after a few steps, relative to their norm."""
    run = train(data, form=form, seeds=[0, 1], learning_rate=RATE, record=[0, CHECKED_STEPS])
    worst = 0.0
    for r in range(2):
        end = torch_loop(data, start(run, r), CHECKED_STEPS)
        W = end[0] if len(end) == 1 else end[0] @ end[1].T
        worst = max(worst, np.linalg.norm(run.final[r] - W) / run.norms[r, -1])
    if worst > TOLERANCE:
        raise SystemExit(f"{form}: attsvm and PyTorch differ by {worst:.1e} after {CHECKED_STEPS} steps; stopped.")
    return worst


def timed(function: Callable[[], object]) -> float:
    """Wall seconds of one call."""
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def measure(data: TokenData, form: str, seeds: int, steps: int, timed_seeds: int) -> None:
    """One row of the table."""
    options = {"form": form, "learning_rate": RATE, "steps": steps}
    first = timed(lambda: train(data, seeds=np.arange(seeds), **options))
    second = timed(lambda: train(data, seeds=np.arange(seeds), **options))
    starts = train(data, seeds=np.arange(timed_seeds), form=form, record=[0, 1])
    torch_loop(data, start(starts, 0), 20)
    baseline = timed(lambda: [torch_loop(data, start(starts, r), steps) for r in range(timed_seeds)])
    baseline *= seeds / timed_seeds
    ratios = f"{first:12.3f}  {baseline / first:7.0f}x  {second:12.3f}  {baseline / second:7.0f}x"
    print(f"{form:>4}  {baseline:10.2f}  {ratios}")


def main() -> None:
    """Parse, check, time, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--all", action="store_true", help="run the PyTorch loop on every seed instead of scaling")
    options = parser.parse_args()
    timed_seeds = options.seeds if options.all else min(3, options.seeds)
    data = sphere(0)
    scaled = "measured on every seed" if options.all else f"measured on {timed_seeds} seeds and scaled"
    print(
        f"{options.seeds} seeds x {options.steps} steps at (n, T, d) = (6, 8, 10), float64; seconds. PyTorch {scaled}."
    )
    print(f"{'form':>4}  {'PyTorch':>10}  {'with compile':>12}  {'ratio':>8}  {'compiled':>12}  {'ratio':>8}")
    for form in ("W", "KQ"):
        measure(data, form, options.seeds, options.steps, timed_seeds)
    for form in ("W", "KQ"):
        print(
            f"{form}: weights after {CHECKED_STEPS} steps agree to {check(data, form):.1e} (tolerance {TOLERANCE:.0e})."
        )


if __name__ == "__main__":
    main()
