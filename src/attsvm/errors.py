"""What attsvm raises: every message says what was given, what was expected and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attsvm.solution import Solution


class AttSVMError(Exception):
    """Base class of every error raised on purpose by attsvm."""


class InputError(AttSVMError, ValueError):
    """The input cannot be used as given."""


class TieError(InputError):
    """Two tokens share the best score, so "the optimal token" does not exist."""


class SolveError(AttSVMError):
    """A solve that did not end `optimal`; the attribute `solution` holds everything that was computed."""

    def __init__(self, solution: Solution) -> None:
        super().__init__(solution.message)
        self.solution = solution


class NotSeparableError(SolveError):
    """No W separates the chosen tokens; `solution.farkas` is the checked proof."""


class NotSolvedError(SolveError):
    """A limit was reached first; `solution` still holds the best value and its gap."""


class SweepError(AttSVMError):
    """Work in several processes could not go on; what was finished is kept."""


class StoreError(AttSVMError, OSError):
    """A result cannot be written."""
