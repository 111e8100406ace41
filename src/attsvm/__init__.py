"""attsvm: transformers as support vector machines (arXiv 2308.16898), certified and exact."""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attsvm import datasets, errors, experiments, plots, theory, verify
    from attsvm.compare import Comparison, compare, correlation
    from attsvm.data import TokenData, load
    from attsvm.errors import AttSVMError, InputError, NotSeparableError, NotSolvedError, SolveError, TieError
    from attsvm.selection import Selection
    from attsvm.solution import Certificate, Farkas, Solution, Status, load_solution
    from attsvm.solvers import Separability, is_separable, solve, solve_many
    from attsvm.theory import LocalOptimality, local_optimality
    from attsvm.training import SaturatedAt, TrainingError, train
    from attsvm.trajectory import Trajectory

__version__ = "0.1.0"

__all__ = [
    "AttSVMError",
    "Certificate",
    "Comparison",
    "Farkas",
    "InputError",
    "LocalOptimality",
    "NotSeparableError",
    "NotSolvedError",
    "SaturatedAt",
    "Selection",
    "Separability",
    "Solution",
    "SolveError",
    "Status",
    "TieError",
    "TokenData",
    "TrainingError",
    "Trajectory",
    "compare",
    "correlation",
    "datasets",
    "errors",
    "experiments",
    "is_separable",
    "load",
    "load_solution",
    "local_optimality",
    "plots",
    "solve",
    "solve_many",
    "theory",
    "train",
    "verify",
]
# Where each name lives: it is imported when first used, so that solving does not wait for JAX or matplotlib.
_HOMES = {
    "compare": "Comparison compare correlation",
    "data": "TokenData load",
    "errors": "AttSVMError InputError NotSeparableError NotSolvedError SolveError TieError",
    "selection": "Selection",
    "solution": "Certificate Farkas Solution Status load_solution",
    "solvers": "Separability is_separable solve solve_many",
    "theory": "LocalOptimality local_optimality",
    "training": "SaturatedAt TrainingError train",
    "trajectory": "Trajectory",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


class _Package(ModuleType):
    """Importing a submodule binds it to its name in the package; `attsvm.compare` must stay the function."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """By name, as any module, so that functions using `attsvm` can be sent to other processes."""
        return import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _HOME:
        return import_module(f"{__name__}.{name}")
    globals()[name] = value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
