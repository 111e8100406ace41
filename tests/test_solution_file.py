"""A solution survives its file, with its problem, certificate or Farkas vector; damaged files say what they are."""

from __future__ import annotations

import json

import numpy as np
import pytest

import attsvm
from attsvm import verify
from attsvm.errors import InputError


def example(source=None):
    rng = np.random.default_rng(0)
    mask = np.ones((3, 2, 4), dtype=bool)
    mask[0, 0, 3] = False
    tokens, queries = rng.normal(size=(3, 4, 9)), rng.normal(size=(3, 2, 5))
    return attsvm.TokenData(tokens, queries, mask=mask, value=rng.normal(size=9), source=source)


@pytest.mark.parametrize("norm", ["fro", "nuc"])
def test_round_trip(tmp_path, norm):
    solution = attsvm.solve(example("by hand"), norm=norm)
    again = attsvm.load_solution(solution.save(tmp_path / "s.npz"))
    assert again.summary() == solution.summary()
    assert again.certificate == solution.certificate
    assert again.status is solution.status
    for name in ("W", "dual", "support"):
        np.testing.assert_array_equal(getattr(again, name), getattr(solution, name))
    np.testing.assert_array_equal(again.problem.selection.sets, solution.problem.selection.sets)
    assert again.problem.data.source == "by hand"
    assert verify.certify(again.problem, again.W, again.dual, norm) == solution.certificate


def test_the_file_is_a_data_file_too(tmp_path):
    solution = attsvm.solve(example())
    data, chosen = attsvm.load(solution.save(tmp_path / "s.npz"))
    np.testing.assert_array_equal(attsvm.solve(data, chosen).W, solution.W)


def test_infeasible_round_trip(tmp_path):
    data = attsvm.TokenData([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]], [[1.0, 0.0]])
    solution = attsvm.solve(data, [0], throw=False)
    again = attsvm.load_solution(solution.save(tmp_path / "s.npz"))
    assert (again.status, again.W, again.message) == ("infeasible", None, solution.message)
    assert verify.check_farkas(again.problem, again.farkas.u) is not None
    assert again.farkas.norm_bound == solution.farkas.norm_bound


def test_a_callable_head_is_left_out(tmp_path):
    data = example()
    headed = attsvm.TokenData(data.tokens, data.queries, mask=data.mask, head=lambda a: a.sum())
    solution = attsvm.solve(headed, np.zeros((3, 2), dtype=int))
    assert attsvm.load_solution(solution.save(tmp_path / "s.npz")).problem.data.head is None


def test_where_it_cannot_be_saved(tmp_path):
    solution = attsvm.solve(example())
    for name in ("s.txt", "nowhere/s.npz"):
        with pytest.raises(InputError, match=r"saved as \.npz in a folder that exists"):
            solution.save(tmp_path / name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("summary"), "it has no 'summary'"),
        (lambda a: a.pop("rows"), "it has no 'rows'"),
        (lambda a: a.update(X=a["X"][:, ::-1], chosen=np.roll(a["chosen"], 1, axis=-1)), "rows are not those"),
        (lambda a: a.update(W=a["W"][:2]), r"its W has shape \(2, 5\)"),
        (lambda a: a.update(summary=np.array("{")), "Expecting property name"),
        (lambda a: a.update(summary=np.array(json.dumps({"status": "fine"}))), "'fine' is not a valid Status"),
        (lambda a: a.pop("X"), r"lacks the key\(s\) \['X'\]"),
    ],
)
def test_damaged_files(tmp_path, change, message):
    path = attsvm.solve(example()).save(tmp_path / "s.npz")
    with np.load(path) as file:
        arrays = {key: file[key] for key in file.files}
    change(arrays)
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=message):
        attsvm.load_solution(path)


def test_not_a_solution_file(tmp_path):
    with pytest.raises(InputError, match="There is no file"):
        attsvm.load_solution(tmp_path / "none.npz")
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04")
    with pytest.raises(InputError, match=r"cut\.npz cannot be read"):
        attsvm.load_solution(tmp_path / "cut.npz")
