"""attsvm: transformers as support vector machines (arXiv 2308.16898), certified and exact."""

from attsvm.data import TokenData, load
from attsvm.errors import AttSVMError, InputError, NotSeparableError, NotSolvedError, SolveError, TieError
from attsvm.selection import Selection
from attsvm.solution import Certificate, Farkas, Solution, Status
from attsvm.solvers import Separability, is_separable, solve, solve_many

__version__ = "0.1.0"
