"""The runner around the experiments: your own file, settings, resuming, Ctrl-C, killed processes, damaged results."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from attsvm import InputError
from attsvm.errors import StoreError, SweepError
from attsvm.experiments import Part, reproduce
from attsvm.store import Store, stack

EXAMPLE = Path(__file__).parents[1] / "docs" / "examples"

SLOW = """
import time
from dataclasses import dataclass
import numpy as np, polars as pl
from attsvm import plots
from attsvm.experiments import Experiment, Part

@dataclass(frozen=True)
class Spec:
    seeds: int = 24
    wait: float = 0.1
    die: str = ""

def blocks(spec, parts):
    # a second wave, whose blocks depend on the first
    if len(parts) == spec.seeds:
        return [{"seed": 1000 + int(parts[0].tables["runs"]["value"][0] * 10)}]
    return [{"seed": seed} for seed in range(spec.seeds)] if not parts else []

def run(spec, block):
    time.sleep(spec.wait)
    if spec.die and block["seed"] == 3:
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
    value = np.random.default_rng(block["seed"]).random()
    return Part({"runs": pl.DataFrame({"seed": [block["seed"]], "value": [value]})}, {"a": np.full((1, 3), value)})

def figures(results):
    figure, (axis,) = plots.grid()
    axis.plot(results.tables["runs"]["value"])
    return {"slow": figure}

EXPERIMENT = Experiment("slow", "slow", "slow", {"quick": Spec()}, {"x": "y"}, blocks, run, lambda results: [], figures)
"""


@pytest.fixture
def slow(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    return _toml(tmp_path, "")


def _toml(folder: Path, settings: str) -> Path:
    file = folder / "slow.toml"
    file.write_text(f'experiment = "slow.py"\n[spec]\n{settings}\n')
    return file


def _data(out: Path) -> dict[str, bytes]:
    files = [*out.rglob("*.parquet"), *out.rglob("*.npz"), *out.glob("*/*.svg")]
    return {str(file.relative_to(out)): file.read_bytes() for file in files}


def test_an_experiment_of_your_own_runs_from_its_file(tmp_path):
    made = reproduce(spec=EXAMPLE / "separable.toml", out=tmp_path, progress=False)
    runs = made.results["separable"].tables["runs"]
    assert runs.group_by("d").len().sort("d").rows() == [(2, 100), (4, 100)]
    assert runs.filter(pl.col("d") == 4)["separable"].all()
    assert not runs.filter(pl.col("d") == 2)["separable"].all()
    assert [claim.verdict for claim in made.claims] == ["holds"]
    assert (tmp_path / "separable" / "separable.svg").is_file()
    fewer = reproduce(spec=EXAMPLE / "separable.toml", seeds=5, out=tmp_path, progress=False, jobs=1)
    assert len(fewer.results["separable"].tables["runs"]) == 10


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('experiment = "local"\n[spec]\nwidth = 3', "no setting 'width'; it has seeds, steps"),
        ('experiment = "local"\n[spec]\nseeds = "many"', "got 'many', expected something like 20"),
        ('experiment = "lokal"', "'lokal'; give a Python file, or one of paths-1"),
        ('experiment = "none.py"', "There is no file"),
        ("experiment = 3", "expected experiment = '...'"),
        ("experiment =", "Invalid value"),
        ('preset = "paper"', "preset = 'paper'"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path, text, message):
    (tmp_path / "wrong.toml").write_text(text)
    with pytest.raises(InputError, match=message):
        reproduce(spec=tmp_path / "wrong.toml", out=tmp_path / "out")
    with pytest.raises(InputError, match=r"no\.toml"):
        reproduce(spec=tmp_path / "no.toml", out=tmp_path / "out")


def test_a_second_call_computes_nothing_and_force_everything(slow, tmp_path):
    def times() -> list[int]:
        return sorted(file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("about.json"))

    reproduce(spec=slow, out=tmp_path / "out", jobs=1, progress=False)
    first = times()
    assert len(first) == 25
    again = reproduce(spec=slow, out=tmp_path / "out", progress=False)
    assert times() == first
    assert len(again.results["slow"].tables["runs"]) == 25
    reproduce(spec=slow, out=tmp_path / "out", force=True, progress=False)
    assert not set(times()) & set(first)


def test_other_code_or_settings_are_other_blocks(slow, tmp_path):
    reproduce(spec=slow, out=tmp_path / "out", seeds=2, progress=False)
    program = slow.with_suffix(".py")
    other = tmp_path / "other"
    other.mkdir()
    (other / "slow.py").write_text(program.read_text().replace(".random()", ".normal()"))
    _toml(other, "")
    changed = reproduce(spec=other / "slow.toml", out=tmp_path / "out", seeds=2, jobs=1, progress=False)
    assert len(list((tmp_path / "out" / "slow" / "blocks").iterdir())) == 6
    assert changed.results["slow"].arrays["a"].shape == (3, 3)


def _start(spec: Path, out: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "attsvm.cli", "reproduce", "--spec", str(spec), "--jobs", "2", "--out", str(out)]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, start_new_session=True, **quiet)


def _wait_for(out: Path, blocks: int) -> None:
    end = time.monotonic() + 60
    while len(list(out.rglob("about.json"))) < blocks:
        assert time.monotonic() < end, "no block was finished in a minute"
        time.sleep(0.02)


def test_killed_five_times_and_resumed_the_files_are_the_same(slow, tmp_path):
    reproduce(spec=slow, out=tmp_path / "whole", progress=False)
    whole, out = _data(tmp_path / "whole"), tmp_path / "out"
    generator, done = random.Random(0), 0
    for _ in range(5):
        process = _start(slow, out)
        _wait_for(out, done + generator.randint(1, 3))
        time.sleep(generator.random() * 0.2)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        done = len(list(out.rglob("about.json")))
        assert done < 25
    last = reproduce(spec=slow, out=out, progress=False)
    assert last.unfinished == []
    assert {name: body for name, body in _data(out).items() if "/." not in name} == whole


def test_ctrl_c_leaves_a_report_and_the_same_command_goes_on(slow, tmp_path):
    out = tmp_path / "out"
    process = _start(slow, out)
    _wait_for(out, 2)
    os.killpg(process.pid, signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130, printed
    assert "Unfinished: slow. The same command goes on from there." in printed
    assert "Traceback" not in printed
    record = json.loads((out / "claims.json").read_text())
    assert record["unfinished"] == ["slow"]
    assert "Unfinished: slow" in (out / "report.html").read_text()
    kept = {file: file.stat().st_mtime_ns for file in out.rglob("about.json")}
    assert 2 <= len(kept) < 25
    reproduce(spec=slow, out=out, progress=False)
    assert {file: file.stat().st_mtime_ns for file in kept} == kept


def test_a_killed_worker_is_a_clear_error_and_nothing_is_lost(slow, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(SweepError, match="the same command goes on from there"):
        reproduce(spec=_toml(tmp_path, 'die = "now"\nseeds = 6'), out=out, jobs=2, progress=False)
    assert json.loads((out / "claims.json").read_text())["unfinished"] == ["slow"]


def test_a_damaged_result_is_found_and_made_again(slow, tmp_path):
    first = reproduce(spec=slow, out=tmp_path / "out", seeds=4, progress=False)
    whole = _data(first.out)
    blocks = sorted((first.out / "slow" / "blocks").iterdir())
    (blocks[0] / "runs.parquet").write_bytes(b"not parquet")
    (blocks[1] / "about.json").write_text("{")
    (blocks[2] / "arrays.npz").unlink()
    again = reproduce(spec=slow, out=tmp_path / "out", seeds=4, jobs=1, progress=False)
    assert again.results["slow"].tables["runs"].equals(first.results["slow"].tables["runs"])
    assert _data(again.out) == whole


def test_a_full_disk_is_a_clear_error(slow, tmp_path, monkeypatch):
    store = Store(tmp_path / "blocks")
    store.write("a", Part({"t": pl.DataFrame({"x": [1]})}), 0.1, {})

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    with pytest.raises(StoreError, match=r"No space left on device\. What was finished before is kept"):
        store.write("b", Part({"t": pl.DataFrame({"x": [2]})}), 0.1, {})
    assert [place.name for place in (tmp_path / "blocks").iterdir()] == ["a"]
    read = store.read("a")
    assert read is not None
    assert read[0].tables["t"]["x"].to_list() == [1]


def test_parts_stack_in_order_and_may_lack_a_table():
    whole = stack(
        [Part({"a": pl.DataFrame({"x": [1]})}), Part({"a": pl.DataFrame({"x": [2.5]}), "b": pl.DataFrame({"y": [1]})})]
    )
    assert whole.tables["a"]["x"].to_list() == [1.0, 2.5]
    assert whole.tables["b"]["y"].to_list() == [1]
