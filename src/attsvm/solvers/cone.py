"""What the interior-point methods share: the Nesterov-Todd frame, factorisation, step lengths."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from scipy.linalg import get_lapack_funcs

Array = np.ndarray

STEP_TO_BOUNDARY = 0.9  # closer, the iterates hug the boundary and lose digits

# straight to LAPACK: on matrices of this size the checks of the usual wrappers cost as much as the work
potrf, potrs, syevd, gesdd = get_lapack_funcs(("potrf", "potrs", "syevd", "gesdd"), dtype=np.float64)


def scaling(X: Float[Array, "N N"], S: Float[Array, "N N"]) -> tuple[Float[Array, "N N"], Float[Array, " N"]]:
    """`(P, λ)` with `PᵀSP = P⁻¹XP⁻ᵀ = diag(λ)`; `Ω = PPᵀ` has `ΩSΩ = X`."""
    lower_x, lower_s = _cholesky(X), _cholesky(S)
    _, lam, Vt, _ = gesdd(lower_s.T @ lower_x)
    return lower_x @ (Vt.T / np.sqrt(lam)), lam


def centred(lam: Float[Array, " N"], center: float, second_order: Float[Array, "N N"]) -> Float[Array, "N N"]:
    """The scaled right-hand side R of `dX + dS = R` that leads to `XS = center·I`, less second-order terms."""
    R = center * np.eye(len(lam)) - np.diag(lam**2) - second_order
    return 2.0 * R / (lam[:, None] + lam)


def spectrum(lam: Float[Array, " N"], direction: Float[Array, "N N"]) -> Float[Array, " N"]:
    """Eigenvalues, ascending, of a scaled direction relative to `diag(λ)`."""
    root = np.sqrt(lam)
    return syevd(direction / np.outer(root, root), compute_v=0)[0]


def matrix_step(lowest: float) -> float:
    """Longest step in the cone, from the lowest eigenvalue of `spectrum`."""
    return 1.0 / -lowest if lowest < -1e-12 else 1e12


def row_step(value: Float[Array, " k"], direction: Float[Array, " k"]) -> float:
    """Longest step that keeps every entry non-negative."""
    lowest = float((direction / value).min(initial=0.0))
    return 1.0 / -lowest if lowest < -1e-12 else 1e12


def _cholesky(matrix: Float[Array, "N N"]) -> Float[Array, "N N"]:
    lower, failed = potrf(matrix, lower=1)
    if failed:
        raise np.linalg.LinAlgError("an iterate left the cone by rounding")
    return np.tril(lower)


def factor(matrix: Float[Array, "k k"], diagonal: Float[Array, " k"] | float = 0.0) -> Float[Array, "k k"]:
    """Cholesky factor of `matrix + diag(diagonal)`, with just enough added to exist. Overwrites the diagonal.

    Raises:
        LinAlgError: numerically singular all the same.
    """
    total = matrix.diagonal() + diagonal
    for shift in (0.0, 1e-15, 1e-13, 1e-11):
        np.fill_diagonal(matrix, total * (1.0 + shift))
        lower, failed = potrf(matrix, lower=1)
        if not failed:
            return lower
    raise np.linalg.LinAlgError("the Newton system is numerically singular")


def backsolve(lower: Float[Array, "k k"], right: Float[Array, " k"]) -> Float[Array, " k"]:
    """Solve with a factor of `factor`."""
    return potrs(lower, right, lower=1)[0]
