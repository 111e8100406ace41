"""The words that go with a status: what happened, why, and what to do."""

from __future__ import annotations

import numpy as np

from attsvm.problem import Problem
from attsvm.solution import Certificate, Farkas

OPEN = "Unknown: rounding leaves open whether the rows can be separated; neither a weight nor a Farkas vector passes."


def solved(certificate: Certificate, tolerance: float) -> str:
    """For a weight with its certificate."""
    reached = f"gap {certificate.gap:.1e}, violation {certificate.violation:.1e}"
    if certificate.holds(tolerance):
        return f"Optimal: {reached}."
    return (
        f"Unknown: the certificate stops at {reached}, short of the tolerance {tolerance:.0e}; the data are badly "
        "conditioned. W and its gap are returned: bring the features to similar sizes or accept a larger tolerance."
    )


def low_rank(certificate: Certificate, max_rank: int) -> str:
    """For a local optimum under a rank constraint."""
    return (
        f"Rank at most {max_rank} is a non-convex constraint: W separates and is a local optimum. Without the "
        f"constraint the least norm is {certificate.bound:.9g}, so {certificate.gap:.3g} (relative) "
        "bounds what is left to gain."
    )


def no_low_rank(max_rank: int) -> str:
    """Where no start found a feasible weight under the rank constraint."""
    return (
        f"Unknown: no W of rank at most {max_rank} that separates was found. The constraint is non-convex, so this "
        "proves nothing; allow a larger max_rank."
    )


def infeasible(problem: Problem, farkas: Farkas) -> str:
    """Why nothing separates, with the cause named where it is simple."""
    return "Infeasible: " + (_identical(problem) or _zero_query(problem) or _conflict(problem, farkas))


def _identical(problem: Problem) -> str | None:
    rows = np.flatnonzero(~problem.equality & ~problem.delta.any(1))
    if not len(rows):
        return None
    example, query, chosen, other = (int(j) for j in problem.rows[rows[0]])
    return (
        f"in example {example}, query {query}, the chosen token {chosen} and token {other} are identical, "
        "so no W can tell them apart. Choose both or remove one."
    )


def _zero_query(problem: Problem) -> str | None:
    rows = np.flatnonzero(~problem.equality & ~problem.queries[problem.pair].any(1))
    if not len(rows):
        return None
    example, query = (int(j) for j in problem.rows[rows[0], :2])
    return f"query {query} of example {example} is zero, so every W gives all of its tokens the same logit."


def _conflict(problem: Problem, farkas: Farkas) -> str:
    data = problem.data
    examples = sorted(set(problem.rows[np.abs(farkas.u) > 1e-9, 0].tolist()))
    named = ", ".join(map(str, examples[:8])) + (", ..." if len(examples) > 8 else "")
    text = f"no W separates the chosen tokens; the rows of example(s) {named} contradict each other."
    needed, width = max(data.T - 1, int(data.active.sum())), min(data.d_k, data.d_q)
    if width < needed:
        text += (
            f" The width {width} is below max(T - 1, number of queries) = {needed}, from where on almost all data are "
            "separable: more dimensions or fewer examples help."
        )
    return text
