"""Attention-SVM solvers: one file per algorithm, `dispatch` in front of them."""

from attsvm.solvers.dispatch import Separability, is_separable, solve, solve_many

__all__ = ["Separability", "is_separable", "solve", "solve_many"]
