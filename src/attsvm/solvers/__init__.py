"""Attention-SVM solvers: one file per algorithm, `dispatch` in front of them."""

from attsvm.solvers.dispatch import solve, solve_many
from attsvm.solvers.separability import Separability, is_separable

__all__ = ["Separability", "is_separable", "solve", "solve_many"]
