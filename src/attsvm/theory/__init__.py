"""The theory of arXiv 2308.16898 as checks: every verdict comes with the quantities it rests on.

- `optimality`: local optimality, all locally optimal choices, the direction a weight went to.
- `cones`: cones around a direction, and the gradient inside them.
- `geometry`: feasibility by dimension, all tokens as support vectors, bounds on the rank.
- `convergence`: the conditions of the results on global convergence.
- `stationary`: a search for stationary points.
"""

from attsvm.theory.cones import Cone, ConeGradient, LargestCone, cone, gradient_in_cone, largest_cone
from attsvm.theory.convergence import FavourableStart, ScoreSpread, favourable_start, score_spread
from attsvm.theory.geometry import (
    AllSupport,
    Feasibility,
    RankBounds,
    all_support_vectors,
    all_support_vectors_many,
    feasible_by_dimension,
    rank_bounds,
)
from attsvm.theory.optimality import (
    Direction,
    LocalChoices,
    LocalOptimality,
    local_optimality,
    locally_optimal_choices,
    nearest_direction,
)
from attsvm.theory.stationary import StationaryPoints, stationary_points

__all__ = [
    "AllSupport",
    "Cone",
    "ConeGradient",
    "Direction",
    "FavourableStart",
    "Feasibility",
    "LargestCone",
    "LocalChoices",
    "LocalOptimality",
    "RankBounds",
    "ScoreSpread",
    "StationaryPoints",
    "all_support_vectors",
    "all_support_vectors_many",
    "cone",
    "favourable_start",
    "feasible_by_dimension",
    "gradient_in_cone",
    "largest_cone",
    "local_optimality",
    "locally_optimal_choices",
    "nearest_direction",
    "rank_bounds",
    "score_spread",
    "stationary_points",
]
