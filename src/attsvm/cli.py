"""The command line: parses, calls the library, prints. Exit status 0 done, 1 not solved, 2 bad input, 130 Ctrl-C."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, CycloptsError, Parameter

import attsvm
from attsvm import _tables as tables
from attsvm.errors import AttSVMError, InputError

if TYPE_CHECKING:
    from attsvm import Solution, Trajectory

Norm = Literal["fro", "nuc", "spec", "max"] | float
Json = Annotated[
    bool, Parameter(name="--json", negative="", show_default=False, help="Print one JSON object instead of a table.")
]

CITATION = """\
D. A. Tarzanagh, Y. Li, C. Thrampoulidis, S. Oymak.
Transformers as Support Vector Machines. arXiv:2308.16898, 2023."""

app = App(
    name="attsvm",
    help="Transformers as support vector machines: certified attention-SVM solvers and exact attention training.",
    help_epilogue="A chain: attsvm solve DATA.npz --out SOL.npz; attsvm train DATA.npz --out TRAJ.npz; "
    "attsvm compare TRAJ.npz SOL.npz --plot curves.svg",
    version=attsvm.__version__,
    suppress_keyboard_interrupt=False,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (default: the process's own arguments) and return the exit status."""
    os.environ.setdefault("JAX_ENABLE_X64", "1")  # read when JAX is first imported, by the commands that need it
    try:
        status = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except CycloptsError as error:
        return _fail(f"{error} See attsvm --help.", 2)
    except (InputError, OSError) as error:
        return _fail(str(error), 2)
    except AttSVMError as error:
        return _fail(str(error), 1)
    return status if isinstance(status, int) else 0


@app.command
def solve(
    file: Path,
    /,
    *,
    norm: Norm = "fro",
    chosen: Literal["optimal"] | None = None,
    slack: float | None = None,
    max_rank: int | None = None,
    tolerance: float = 1e-8,
    out: Path | None = None,
    as_json: Json = False,
) -> int:
    """Solve the attention SVM of the chosen tokens, with a certificate. Exit status 1 where it is not solved.

    Parameters
    ----------
    file
        .npz or .safetensors with tokens X (n, T, d) and queries z (n, d) or (n, m, d); optional labels y, value
        vector v, visibility mask, and chosen: indices (n,) or (n, m), or booleans (n, T) or (n, m, T).
    norm
        fro (Frobenius), nuc (nuclear), spec (spectral), max (entrywise), or the exponent of an entrywise p-norm.
    slack
        The price of a unit of slack; makes the margin soft.
    chosen
        Choose the tokens with the best scores y vᵀx, instead of those stored in the file.
    max_rank
        With --norm nuc: also demand this rank (non-convex below the rank of the free optimum).
    tolerance
        Largest relative gap and violation of a certificate that counts as optimal.
    out
        Write the solution, with its data, to this .npz.
    """
    _check_out(out, ".npz")
    data, stored = attsvm.load(file)
    if chosen is None and stored is None:
        raise InputError(
            f"{file.name} does not say which tokens are chosen. Store them in it under the key 'chosen', indices "
            "(n,) or booleans (n, T); or let the scores choose: --chosen optimal (needs v, and y unless all labels "
            "are +1)."
        )
    options = {"slack": slack, "max_rank": max_rank, "tolerance": tolerance}
    solution = attsvm.solve(data, chosen or stored, norm=norm, throw=False, **options)
    if out is not None:
        solution.save(out)
    tables.show(solution.summary() if as_json else tables.solution_table(solution, out))
    return 0 if solution.status == "optimal" else 1


@app.command
def train(
    file: Path,
    /,
    *,
    form: Literal["W", "KQ"] = "W",
    steps: int | None = None,
    learning_rate: float = 0.1,
    optimizer: str = "normalized_gd",
    loss: str = "logistic",
    regularization: float | None = None,
    log_regularization: float | None = None,
    seeds: str = "1",
    record: str = "log",
    out: Path | None = None,
    as_json: Json = False,
) -> int:
    """Train the attention weights by gradient descent and show which tokens they choose.

    Parameters
    ----------
    file
        .npz or .safetensors with X, z, v and optional y, mask, as for attsvm solve.
    form
        Train W, or K and Q with W = K Qᵀ.
    steps
        Default: 2000, or the last step to record.
    optimizer
        normalized_gd or gd.
    loss
        logistic, exponential or correlation.
    regularization
        λ of the penalty λ(‖K‖² + ‖Q‖²), or λ‖W‖² in W form.
    log_regularization
        The natural logarithm of λ instead, e.g. -230 for λ = 1e-100.
    seeds
        Number N of runs, with seeds 0 to N-1; or the seeds themselves: 0,1,2 or 7, for seed 7 alone.
    record
        Steps to record: log (50 of them, log-spaced), another number, or the steps themselves: 0,100,2000.
    out
        Write the trajectory to this .npz.
    """
    _check_out(out, ".npz")
    data, _ = attsvm.load(file)
    trajectory = attsvm.train(
        data,
        form=form,
        steps=steps,
        learning_rate=learning_rate,
        optimizer=optimizer,
        loss=loss,
        regularization=regularization,
        log_regularization=log_regularization,
        seeds=_seeds(seeds),
        record=record if record == "log" else _integers("--record", record),
    )
    if out is not None:
        trajectory.save(out)
    correlation = _own_correlation(trajectory)
    tables.show(
        tables.training(trajectory, correlation) if as_json else tables.training_table(trajectory, correlation, out)
    )
    return 0


@app.command
def compare(
    trajectory: Path, /, *solutions: Path, norm: Norm | None = None, plot: Path | None = None, as_json: Json = False
) -> int:
    """Compare a training trajectory with attention SVMs: correlation, margin, agreement, distance at the last step.

    Parameters
    ----------
    trajectory
        What attsvm train --out wrote.
    solutions
        What attsvm solve --out wrote: one file, or one per data set or per run. With none, the attention SVM of the
        tokens that each run chose at its end.
    norm
        Norm of the attention SVM where no solution is given. Default: fro for W, nuc for (K, Q).
    plot
        Write the curves over the steps to this .svg or .png, or to both where it has neither ending.
    """
    if plot is not None:
        _check_out(plot, None)
    if solutions and norm is not None:
        raise InputError("Both solutions and --norm were given; a solution has its own norm, so leave --norm out.")
    runs = attsvm.Trajectory.load(trajectory)
    given = [attsvm.load_solution(path) for path in solutions] or _own_solutions(runs, norm or tables.own_norm(runs))
    comparison = attsvm.compare(runs, given)
    if plot is not None:
        comparison.plot(plot)
    tables.show(comparison.summary() if as_json else tables.comparison_table(comparison))
    return 0


@app.command
def reproduce(
    *ids: str,
    spec: Annotated[tuple[Path, ...], Parameter(negative="", show_default=False)] = (),
    preset: Literal["quick", "paper"] = "quick",
    seeds: int | None = None,
    jobs: int | None = None,
    out: Path = Path("attsvm-out"),
    force: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Run the paper's experiments and judge its claims. Exit status 1 where a claim fails, 130 after Ctrl-C.

    What is done is kept: the same command goes on from there.

    Parameters
    ----------
    ids
        paths-1, paths-2, local, rank, percent, multi, lambda, causal, regpath, optimizers, digits. Default: all.
    spec
        A TOML file with other settings of an experiment, or with one of your own.
    preset
        quick: minutes at most. paper: the size of the paper.
    seeds
        How many seeds, in place of the number in the preset.
    jobs
        Processes. Default: one per core.
    out
        Folder for figures, data, claims.json and report.html.
    force
        Do not use what is there; run everything again.
    """
    from rich.console import Console

    made = attsvm.experiments.reproduce(
        ids or None,
        spec=spec or None,
        preset=preset,
        seeds=seeds,
        jobs=jobs,
        out=out,
        force=force,
        progress=Console(),
    )
    return 130 if made.unfinished else int(bool(made.failed))


@app.command
def info() -> int:
    """Versions, devices, threads, package data, and how to cite the paper."""
    import platform
    from importlib.metadata import version
    from importlib.resources import files

    import jax
    from threadpoolctl import threadpool_info

    tables.show(
        tables.grid(
            {
                "attsvm": attsvm.__version__,
                "python": platform.python_version(),
                **{name: version(name) for name in ("numpy", "scipy", "jax")},
                "jax backend": f"{jax.default_backend()}: {', '.join(str(device) for device in jax.devices())}",
                "BLAS": ", ".join(
                    f"{pool['internal_api']} {pool['version']}, {pool['num_threads']} threads"
                    for pool in threadpool_info()
                    if pool["user_api"] == "blas"
                ),
                "package data": str(files("attsvm") / "paper_data"),
                "cite": CITATION,
            }
        )
    )
    return 0


def _own_solutions(trajectory: Trajectory, norm: str | float) -> list[Solution]:
    """For every run the attention SVM of the tokens it chose in the end, each solved once."""
    import numpy as np

    chosen = trajectory.chosen[:, -1]
    ends = np.column_stack([trajectory.run_data, chosen.reshape(trajectory.runs, -1)])
    _, first, which = np.unique(ends, axis=0, return_index=True, return_inverse=True)
    data = [trajectory.data[trajectory.run_data[r]] for r in first]
    solved = attsvm.solve_many(data, [chosen[r] for r in first], norm=norm)
    return [solved[j] for j in which]


def _own_correlation(trajectory: Trajectory) -> list[float | None]:
    """Correlation of every run with the attention SVM of the tokens it chose; None where there is no such SVM."""
    try:
        solutions = _own_solutions(trajectory, tables.own_norm(trajectory))
    except InputError:  # such as an example with nothing to separate: no SVM, but nothing wrong with training
        return [None] * trajectory.runs
    pairs = zip(trajectory.final, solutions, strict=True)
    return [None if one.W is None else float(attsvm.correlation(W, one.W)) for W, one in pairs]


def _check_out(path: Path | None, suffix: str | None) -> None:
    """Fail before the work rather than after it."""
    if path is None:
        return
    if suffix is not None and path.suffix != suffix:
        raise InputError(f"The output file must end in {suffix}; got {path.name!r}.")
    if not path.parent.is_dir():
        raise InputError(f"There is no folder {str(path.parent)!r} to write {path.name!r} to; make it first.")


def _seeds(text: str) -> list[int]:
    given = _integers("--seeds", text)
    if given in (0, []):
        raise InputError(f"--seeds {text} means no run; give the number of runs, or seeds with a comma, such as 0,")
    return list(range(given)) if isinstance(given, int) else given


def _integers(option: str, text: str) -> int | list[int]:
    """`"3"` as 3; `"3,"` and `"1,2"` as lists."""
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InputError(f"{option}: got {text!r}, expected a number or numbers separated by commas.") from None
    return numbers if "," in text or not numbers else numbers[0]


def _fail(message: str, status: int) -> int:
    print(f"attsvm: {message}", file=sys.stderr)  # noqa: T201
    return status


if __name__ == "__main__":
    sys.exit(main())
