"""Regularisation paths: the weights of least loss in a ball, and how they near the attention SVM as the ball grows."""

from attsvm.paths.nuclear_set import nearest_nuclear_optimum
from attsvm.paths.regularization import RegularizationPath, regularization_path

__all__ = ["RegularizationPath", "nearest_nuclear_optimum", "regularization_path"]
