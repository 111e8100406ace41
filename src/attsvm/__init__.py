"""attsvm: transformers as support vector machines (arXiv 2308.16898), certified and exact."""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attsvm import datasets, errors, experiments, plots, theory, verify
    from attsvm.compare import Comparison, compare, correlation
    from attsvm.data import TokenData, load
    from attsvm.decompose import Decomposition, decompose, flat_queries
    from attsvm.errors import AttSVMError, InputError, NotSeparableError, NotSolvedError, SolveError, TieError
    from attsvm.paths import RegularizationPath, regularization_path
    from attsvm.selection import Selection
    from attsvm.solution import Certificate, Farkas, Solution, Status, load_solution
    from attsvm.solvers import Separability, is_separable, solve, solve_many
    from attsvm.theory import (
        AllSupport,
        Cone,
        ConeGradient,
        Direction,
        FavourableStart,
        Feasibility,
        LargestCone,
        LocalChoices,
        LocalOptimality,
        RankBounds,
        ScoreSpread,
        StationaryPoints,
        all_support_vectors,
        all_support_vectors_many,
        cone,
        favourable_start,
        feasible_by_dimension,
        gradient_in_cone,
        largest_cone,
        local_optimality,
        locally_optimal_choices,
        nearest_direction,
        rank_bounds,
        score_spread,
        stationary_points,
    )
    from attsvm.training import SaturatedAt, TrainingError, train
    from attsvm.trajectory import Trajectory
    from attsvm.two_scale import train_two_scale

__version__ = "0.1.0"

__all__ = [
    "AllSupport",
    "AttSVMError",
    "Certificate",
    "Comparison",
    "Cone",
    "ConeGradient",
    "Decomposition",
    "Direction",
    "Farkas",
    "FavourableStart",
    "Feasibility",
    "InputError",
    "LargestCone",
    "LocalChoices",
    "LocalOptimality",
    "NotSeparableError",
    "NotSolvedError",
    "RankBounds",
    "RegularizationPath",
    "SaturatedAt",
    "ScoreSpread",
    "Selection",
    "Separability",
    "Solution",
    "SolveError",
    "StationaryPoints",
    "Status",
    "TieError",
    "TokenData",
    "TrainingError",
    "Trajectory",
    "all_support_vectors",
    "all_support_vectors_many",
    "compare",
    "cone",
    "correlation",
    "datasets",
    "decompose",
    "errors",
    "experiments",
    "favourable_start",
    "feasible_by_dimension",
    "flat_queries",
    "gradient_in_cone",
    "is_separable",
    "largest_cone",
    "load",
    "load_solution",
    "local_optimality",
    "locally_optimal_choices",
    "nearest_direction",
    "plots",
    "rank_bounds",
    "regularization_path",
    "score_spread",
    "solve",
    "solve_many",
    "stationary_points",
    "theory",
    "train",
    "train_two_scale",
    "verify",
]
# Where each name lives: it is imported when first used, so that solving does not wait for JAX or matplotlib.
_HOMES = {
    "compare": "Comparison compare correlation",
    "data": "TokenData load",
    "decompose": "Decomposition decompose flat_queries",
    "errors": "AttSVMError InputError NotSeparableError NotSolvedError SolveError TieError",
    "paths": "RegularizationPath regularization_path",
    "selection": "Selection",
    "solution": "Certificate Farkas Solution Status load_solution",
    "solvers": "Separability is_separable solve solve_many",
    "theory": (
        "AllSupport Cone ConeGradient Direction FavourableStart Feasibility LargestCone "
        "LocalChoices LocalOptimality RankBounds ScoreSpread StationaryPoints "
        "all_support_vectors all_support_vectors_many cone favourable_start feasible_by_dimension gradient_in_cone "
        "largest_cone local_optimality locally_optimal_choices nearest_direction rank_bounds score_spread "
        "stationary_points"
    ),
    "training": "SaturatedAt TrainingError train",
    "trajectory": "Trajectory",
    "two_scale": "train_two_scale",
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
