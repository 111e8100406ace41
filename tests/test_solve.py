"""The front of the solvers: options, status words, exceptions, messages, batches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import oracles
import pytest

import attsvm
from attsvm import InputError, NotSeparableError, NotSolvedError, SolveError, Status, TieError, TokenData

NORMS = ("fro", "nuc")


def random_data(seed=0, n=4, T=5, d=7, **rest):
    rng = np.random.default_rng(seed)
    return TokenData(rng.standard_normal((n, T, d)), rng.standard_normal((n, d)), **rest)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"norm": "l2"}, ["norm", "fro", "nuc", "'l2'"]),
        ({"norm": None}, ["norm", "None"]),
        ({"tolerance": 0.0}, ["tolerance", "1e-12", "0.0"]),
        ({"tolerance": -1e-8}, ["tolerance", "-1e-08"]),
        ({"tolerance": 0.5}, ["tolerance", "1e-2", "0.5"]),
        ({"tolerance": float("nan")}, ["tolerance", "nan"]),
        ({"tolerance": "tight"}, ["tolerance", "'tight'"]),
        ({"max_rank": 2}, ["max_rank", "nuc"]),
        ({"norm": "nuc", "max_rank": 0}, ["max_rank", "at least 1", "0"]),
        ({"norm": "nuc", "max_rank": 1.5}, ["max_rank", "1.5"]),
        ({"norm": "nuc", "max_rank": True}, ["max_rank", "True"]),
    ],
)
@pytest.mark.usefixtures("untyped")
def test_options_are_validated(options, words):
    with pytest.raises(InputError) as raised:
        attsvm.solve(random_data(), [0] * 4, **options)
    assert all(word in str(raised.value) for word in words), str(raised.value)


def test_chosen_defaults_to_the_optimal_tokens():
    data = random_data(value=np.ones(7))
    best = (data.tokens @ data.value).argmax(-1)
    np.testing.assert_array_equal(attsvm.solve(data).W, attsvm.solve(data, best).W)
    with pytest.raises(InputError, match="value"):
        attsvm.solve(random_data())
    tied = np.array(data.tokens)
    tied[0, 1] = tied[0, 3]
    with pytest.raises(TieError, match=r"example 0.*\[1, 3\]"):
        attsvm.solve(TokenData(tied, data.queries, value=tied[0, 1]))


@pytest.mark.parametrize("norm", NORMS)
def test_a_solution_is_consistent_and_plain(norm, tmp_path):
    data = random_data()
    solution = attsvm.solve(data, [1, 0, 4, 2], norm=norm)
    assert solution.norm == norm
    assert solution.W.dtype == solution.dual.dtype == np.float64
    assert type(solution.W) is np.ndarray
    assert solution.value == pytest.approx(oracles.primal_norm(solution.W, norm))
    assert solution.margin == pytest.approx(1.0 / solution.value, rel=1e-7)
    assert solution.certificate.holds(1e-8)
    assert solution.farkas is None
    assert solution.seconds > 0
    summary = json.loads(json.dumps(solution.summary()))
    assert summary["status"] == "optimal"
    expected = {"norm", "value", "margin", "gap", "violation", "rank", "rank_bound", "n_support", "n_rows", "seconds"}
    assert expected | {"message"} <= summary.keys()
    with np.load(solution.save(tmp_path / "solution.npz"), allow_pickle=False) as file:
        np.testing.assert_array_equal(file["W"], solution.W)
        np.testing.assert_array_equal(file["dual"], solution.dual)
        assert json.loads(str(file["summary"]))["value"] == solution.value


def identical_tokens():
    x = np.random.default_rng(0).standard_normal((3, 4, 9))
    x[1, 3] = x[1, 2]
    return TokenData(x, np.eye(3, 9)), [0, 2, 1], ["example 1", "token 2", "token 3", "identical"]


def zero_query():
    x = np.random.default_rng(0).standard_normal((3, 4, 9))
    return TokenData(x, np.eye(3, 9) * [[1], [1], [0]]), [0, 2, 1], ["query 0 of example 2", "zero"]


def too_narrow():
    rng = np.random.default_rng(0)
    data = TokenData(rng.standard_normal((12, 6, 2)), rng.standard_normal((12, 2)))
    return data, [0] * 12, ["contradict", "width 2", "12"]


def contradiction():
    x = np.random.default_rng(0).standard_normal((1, 3, 9))
    return TokenData(np.repeat(x, 2, 0), np.ones((2, 9))), [0, 1], ["0, 1", "contradict"]


def equality_against_inequality():
    x = np.random.default_rng(0).standard_normal((1, 3, 9))
    sets = np.array([[True, True, False], [True, False, False]])
    return TokenData(np.repeat(x, 2, 0), np.ones((2, 9))), sets, ["0, 1", "contradict"]


def inside_the_hull():
    x = np.array([[[1.0, 0], [0, 1], [-1, -1], [0, 0]]])
    return TokenData(x, np.ones((1, 2))), [3], ["contradict"]


INFEASIBLE = [
    identical_tokens,
    zero_query,
    too_narrow,
    contradiction,
    equality_against_inequality,
    inside_the_hull,
]


@pytest.mark.parametrize("case", INFEASIBLE, ids=lambda f: f.__name__)
@pytest.mark.parametrize("norm", NORMS)
def test_infeasible_names_the_cause_and_carries_a_proof(case, norm):
    data, chosen, words = case()
    solution = attsvm.solve(data, chosen, norm=norm, throw=False)
    assert solution.status is Status.INFEASIBLE
    assert solution.message.startswith("Infeasible: ")
    assert all(word in solution.message for word in words), solution.message
    rows = oracles.rows_of(data, solution.problem.selection.sets)
    assert oracles.farkas_residual(rows, solution.farkas.u) <= 1e-14
    for field in ("W", "dual", "value", "margin", "support", "rank", "rank_bound", "certificate"):
        assert getattr(solution, field) is None, field
    assert solution.summary()["rank"] is None
    json.dumps(solution.summary())


@pytest.mark.parametrize("case", INFEASIBLE, ids=lambda f: f.__name__)
def test_infeasible_raises_with_the_solution(case):
    data, chosen, _ = case()
    with pytest.raises(NotSeparableError) as raised:
        attsvm.solve(data, chosen)
    assert isinstance(raised.value, SolveError)
    assert raised.value.solution.farkas is not None
    assert str(raised.value) == raised.value.solution.message
    answer = attsvm.is_separable(data, chosen)
    assert not answer
    assert answer.witness is None
    assert answer.farkas is not None


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("distance", [1e-3, 1e-5])
def test_just_inside_and_just_outside_the_hull(distance, norm):
    x = np.array([[[distance, 0], [0, 1], [-1, -1], [0, 0]]])
    inside = attsvm.solve(TokenData(x, np.ones((1, 2))), [3], norm=norm, throw=False)
    assert inside.status is Status.INFEASIBLE
    x[0, 0, 0] = -distance
    outside = attsvm.solve(TokenData(x, np.ones((1, 2))), [3], norm=norm)
    assert outside.value > 0.1 / distance


def test_is_separable_gives_a_witness():
    data = random_data()
    answer = attsvm.is_separable(data, [0, 0, 1, 2])
    assert answer
    assert answer.farkas is None
    sets = np.arange(5) == np.array([0, 0, 1, 2])[:, None, None]
    assert oracles.rows_of(data, sets).margins(answer.witness).min() > 0.5


def test_unknown_keeps_value_and_gap(monkeypatch):
    """A limit reached: the value, its gap and the weight survive, in the result and in the exception."""
    monkeypatch.setattr("attsvm.solvers.interior_point.MAX_ITERATIONS", 6)
    data, chosen = random_data(n=6, T=8, d=10), [0] * 6
    solution = attsvm.solve(data, chosen, norm="nuc", throw=False)
    assert solution.status is Status.UNKNOWN
    assert 1e-8 < solution.certificate.gap < 1.0
    assert solution.certificate.violation <= 1e-8
    assert solution.certificate.bound <= solution.value
    assert solution.message.startswith("Unknown: ")
    assert "tolerance 1e-08" in solution.message
    with pytest.raises(NotSolvedError) as raised:
        attsvm.solve(data, chosen, norm="nuc")
    assert raised.value.solution.value == solution.value
    monkeypatch.undo()
    exact = attsvm.solve(data, chosen, norm="nuc")
    assert solution.certificate.bound <= exact.value <= solution.value


@pytest.mark.parametrize("norm", NORMS)
def test_solve_many_is_solve(norm):
    shapes = [(1, 2, 1), (4, 5, 7), (12, 6, 2), (3, 9, 4), (4, 5, 7)]
    data = [random_data(seed, *shape) for seed, shape in enumerate(shapes)]
    choices = [np.zeros(shape[0], dtype=int) for shape in shapes]
    together = attsvm.solve_many(data, choices, norm=norm)
    assert {s.status for s in together} == {Status.OPTIMAL, Status.INFEASIBLE}
    for one, x, chosen in zip(together, data, choices, strict=True):
        alone = attsvm.solve(x, chosen, norm=norm, throw=False)
        assert one.status is alone.status
        assert one.message == alone.message
        if alone.W is not None:
            np.testing.assert_array_equal(one.W, alone.W)
            np.testing.assert_array_equal(one.dual, alone.dual)


def test_solve_many_shares_one_choice_and_uses_processes():
    data = [random_data(seed) for seed in range(6)]
    one = attsvm.solve_many(data, np.array([0, 1, 2, 3]))
    two = attsvm.solve_many(data, np.array([0, 1, 2, 3]), jobs=2)
    assert [s.value for s in one] == [s.value for s in two]
    assert attsvm.solve_many([]) == []


def test_solve_many_names_the_data_set():
    data = [random_data(0), random_data(1)]
    with pytest.raises(InputError, match="Data set 1"):
        attsvm.solve_many(data, [[0, 0, 0, 0], [0, 0, 0, 9]])
    with pytest.raises(InputError, match="1 entries for 2 data sets"):
        attsvm.solve_many(data, [[0, 0, 0, 0]])


BENCHMARK = Path(__file__).resolve().parents[1] / "benchmarks" / "certificates.py"


@pytest.mark.parametrize("seed", [7, 33, 156, 422, 753, 789, 792, 843, 1225])
def test_instances_that_were_once_beyond_reach(seed, monkeypatch):
    """Ill-conditioned interior-point steps: repeated and correlated tokens, equalities, causal data."""
    monkeypatch.syspath_prepend(str(BENCHMARK.parent))
    import certificates

    for record in certificates.examine(seed, False):
        assert record.status == "optimal", record
        assert max(abs(record.gap), record.violation) <= 1e-8


@pytest.mark.slow
def test_certificates_on_random_instances():
    command = [sys.executable, str(BENCHMARK), "--instances", "60", "--oracle"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "requirements hold" in done.stdout
