"""The command line: exit statuses, what goes to which stream, and the chain solve, train, compare."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import attsvm
from attsvm.cli import _integers, main
from attsvm.errors import InputError

KEYS = ["status", "norm", "value", "margin", "gap", "violation"]
KEYS += ["rank", "rank_bound", "n_support", "n_rows", "seconds", "message"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data with and without chosen tokens, data nobody can separate, and a file that is none."""
    place = tmp_path_factory.mktemp("cli")
    rng = np.random.default_rng(0)
    data = attsvm.TokenData(
        rng.normal(size=(4, 3, 6)), rng.normal(size=(4, 6)), labels=[1, -1, 1, 1], value=rng.normal(size=6)
    )
    data.save(place / "free.npz")
    data.save(place / "chosen.npz", chosen=np.array([0, 1, 2, 0]))
    data.save(place / "sets.safetensors", chosen=np.eye(3, dtype=bool)[[0, 1, 2, 0]])
    twins = attsvm.TokenData([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]], [[1.0, 0.0]])
    twins.save(place / "twins.npz", chosen=np.array([0]))
    (place / "broken.npz").write_bytes(b"PK\x03\x04 and no more")
    return place


@pytest.fixture(scope="module")
def chain(folder):
    """Files of `solve --out` and `train --out`."""
    place = [str(folder / name) for name in ("free.npz", "sol.npz", "traj.npz")]
    assert main(["solve", place[0], "--chosen", "optimal", "--norm", "fro", "--out", place[1]]) == 0
    train = ["train", place[0], "--steps", "300", "--seeds", "3", "--record", "20", "--out", place[2]]
    assert main(train) == 0
    return place


def run(capsys, *arguments):
    """Exit status, standard output, standard error."""
    status = main([str(word) for word in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def process(*arguments):
    code = "import sys; from attsvm.cli import main; sys.exit(main())"
    environment = os.environ | {"COLUMNS": "100"}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)


def strict(text):
    """The one JSON object in `text`; NaN and Infinity are not JSON."""

    def refuse(word):
        raise ValueError(word)

    assert text.count("\n") == 1
    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("norm", ["fro", "nuc"])
@pytest.mark.parametrize("name", ["chosen.npz", "sets.safetensors"])
def test_solve_json(folder, capsys, name, norm):
    status, out, err = run(capsys, "solve", folder / name, "--norm", norm, "--json")
    answer = strict(out)
    assert (status, err) == (0, "")
    assert all(key in answer for key in KEYS)
    expected = attsvm.solve(*attsvm.load(folder / name), norm=norm)
    assert answer["value"] == expected.value
    assert (answer["status"], answer["norm"], answer["n_rows"]) == ("optimal", norm, 8)


def test_solve_by_score_is_not_solve_by_file(folder, capsys):
    _, out, _ = run(capsys, "solve", folder / "chosen.npz", "--chosen", "optimal", "--json")
    data, _ = attsvm.load(folder / "chosen.npz")
    assert strict(out)["value"] == attsvm.solve(data, "optimal").value


def test_solve_in_words(folder, capsys):
    status, out, err = run(capsys, "solve", folder / "chosen.npz", "--norm", "nuc")
    assert (status, err) == (0, "")
    for word in ("optimal", "margin", "gap", "violation", "rank", "support tokens", "interior point"):
        assert word in out


def test_infeasible_is_status_one_in_both_styles(folder, capsys):
    status, out, err = run(capsys, "solve", folder / "twins.npz", "--json")
    answer = strict(out)
    assert (status, err, answer["status"]) == (1, "", "infeasible")
    assert answer["value"] is answer["gap"] is answer["rank"] is None
    assert "identical" in answer["message"]
    status, out, err = run(capsys, "solve", folder / "twins.npz")
    assert (status, err) == (1, "")
    assert "infeasible" in out
    assert "farkas residual" in out


def test_a_rank_nobody_can_prove_optimal_is_status_one(folder, capsys):
    status, out, _ = run(capsys, "solve", folder / "chosen.npz", "--norm", "nuc", "--max-rank", "1", "--json")
    answer = strict(out)
    assert (status, answer["status"]) == (1, "unknown")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["solve", "free.npz"], "does not say which tokens are chosen.*key 'chosen'.*--chosen optimal"),
        (["solve", "none.npz"], "There is no file"),
        (["solve", "broken.npz"], "broken.npz cannot be read"),
        (["solve", "twins.npz", "--chosen", "optimal"], "value vector v"),
        (["solve", "chosen.npz", "--norm", "two"], "Invalid value for --norm"),
        (["solve", "chosen.npz", "--tolerance", "2"], "tolerance must be a number from"),
        (["solve", "chosen.npz", "--tolerance", "small"], "small"),
        (["solve", "chosen.npz", "--max-rank", "1"], 'max_rank goes with norm="nuc"'),
        (["solve", "chosen.npz", "--out", "sol.txt"], "must end in .npz"),
        (["solve", "chosen.npz", "--out", "nowhere/sol.npz"], "no folder"),
        (["solve", "chosen.npz", "--fast"], "Unknown option"),
        (["solve"], "requires an argument"),
        (["slove", "chosen.npz"], "Unknown command"),
        (["train", "free.npz", "--seeds", "0"], "means no run"),
        (["train", "free.npz", "--seeds", "a,b"], "--seeds: got 'a,b', expected a number"),
        (["train", "free.npz", "--optimizer", "adamw"], "optimizer: got 'adamw'"),
        (["train", "free.npz", "--regularization", "1e-3", "--log-regularization", "-3"], "give λ or its logarithm"),
        (["train", "free.npz", "--out", "traj"], "must end in .npz"),
        (["train", "twins.npz"], "head"),
        (["compare", "free.npz"], "not a trajectory"),
        (["compare", "none.npz", "--plot", "nowhere/a.svg"], "no folder"),
        (["compare", "none.npz", "sol.npz", "--norm", "fro"], "Both solutions and --norm"),
        (["reproduce", "fig-99"], "'fig-99'"),
        (["reproduce", "--preset", "huge"], 'Invalid value "huge"'),
    ],
)
def test_bad_input_is_status_two_on_standard_error(folder, capsys, monkeypatch, words, message):
    monkeypatch.chdir(folder)
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert err.startswith("attsvm: ")
    assert "Traceback" not in err
    assert re.search(message, err), err


def test_the_chain_compares_what_was_written(chain, capsys, tmp_path):
    _, solution, trajectory = chain
    plot = tmp_path / "curves.svg"
    status, out, err = run(capsys, "compare", trajectory, solution, "--plot", plot, "--json")
    answer = strict(out)
    assert (status, err, answer["svm"], answer["runs"], answer["step"]) == (0, "", "fro", 3, 300)
    expected = attsvm.compare(attsvm.Trajectory.load(trajectory), attsvm.load_solution(solution))
    assert answer == json.loads(json.dumps(expected.summary()))
    assert [file.name for file in tmp_path.iterdir()] == ["curves.svg"]
    status, out, err = run(capsys, "compare", trajectory, solution)
    assert (status, err) == (0, "")
    assert "W against the fro attention SVM: 3 run(s) at step 300" in out


@pytest.mark.parametrize(("words", "svm"), [([], "fro"), (["--norm", "nuc"], "nuc")])
def test_compare_without_solutions_takes_the_tokens_each_run_chose(chain, capsys, words, svm):
    status, out, _ = run(capsys, "compare", chain[2], *words, "--json")
    answer = strict(out)
    assert (status, answer["svm"]) == (0, svm)
    assert answer["agreement"]["min"] == 1.0


def test_one_solution_per_run(chain, capsys):
    status, out, _ = run(capsys, "compare", chain[2], *[chain[1]] * 3, "--json")
    assert (status, strict(out)["runs"]) == (0, 3)
    status, _, err = run(capsys, "compare", chain[2], chain[1], chain[1])
    assert status == 2
    assert "2 solution(s) for a trajectory of 3 runs" in err


def test_train_json_and_words(folder, capsys):
    words = ["train", folder / "free.npz", "--steps", "300", "--record", "0,300", "--seeds", "7,"]
    status, out, err = run(capsys, *words, "--json")
    answer = strict(out)
    assert (status, err) == (0, "")
    assert (answer["seeds"], answer["step"], answer["correlation_with"]) == ([7], 300, "fro")
    data, _ = attsvm.load(folder / "free.npz")
    trajectory = attsvm.train(data, steps=300, record=[0, 300], seeds=[7])
    assert answer["chosen"] == trajectory.chosen[:, -1, :, 0].tolist()
    assert answer["loss"] == trajectory.loss[:, -1].tolist()
    status, out, _ = run(capsys, *words)
    assert status == 0
    assert "corr to W_mm" in out


def test_train_factors_with_a_penalty_below_every_number(folder, capsys):
    words = ["train", folder / "free.npz", "--form", "KQ", "--log-regularization", "-1000", "--steps", "300"]
    status, out, err = run(capsys, *words, "--json")
    answer = strict(out)
    assert (status, err, answer["form"], answer["correlation_with"]) == (0, "", "KQ", "nuc")
    assert answer["correlation"][0] > 0.5


def test_numbers_and_lists():
    assert _integers("--record", "3") == 3
    assert _integers("--record", "3,") == [3]
    assert _integers("--record", "0, 10,20") == [0, 10, 20]
    assert _integers("--record", "-4") == -4
    with pytest.raises(InputError, match="--record: got 'x'"):
        _integers("--record", "x")


def test_reproduce_passes_its_options_and_judges(capsys, monkeypatch, tmp_path):
    import attsvm.experiments as experiments

    seen = {}
    for failed, unfinished, status in (([], ["rank"], 130), ([], [], 0), (["claim"], [], 1)):

        def fake(ids, *, failed=failed, unfinished=unfinished, **rest):
            seen.update(ids=ids, **rest)
            return SimpleNamespace(failed=failed, unfinished=unfinished)

        monkeypatch.setattr(experiments, "reproduce", fake)
        assert main(["reproduce", "rank", "local", "--preset", "paper", "--out", str(tmp_path)]) == status
        assert seen["ids"] == ("rank", "local")
        assert (seen["preset"], seen["out"]) == ("paper", tmp_path)
    assert main(["reproduce"]) == 1
    assert (seen["ids"], seen["spec"], seen["preset"], seen["force"]) == (None, None, "quick", False)
    assert main(["reproduce", "--spec", "a.toml", "--spec", "b.toml", "--seeds", "3", "--jobs", "1", "--force"]) == 1
    assert (seen["ids"], seen["spec"], seen["seeds"]) == (None, (Path("a.toml"), Path("b.toml")), 3)
    assert (seen["jobs"], seen["force"]) == (1, True)


def test_interrupts_and_failures_have_their_own_status(folder, capsys, monkeypatch):
    for error, status in ((KeyboardInterrupt(), 130), (attsvm.TrainingError("not finite"), 1), (OSError("full"), 2)):

        def fail(*_, error=error, **__):
            raise error

        monkeypatch.setattr(attsvm, "solve", fail)
        code, out, err = run(capsys, "solve", folder / "chosen.npz")
        assert (code, out, err.count("\n")) == (status, "", 1)


def test_info_version_and_help(capsys):
    status, out, _ = run(capsys, "info")
    assert status == 0
    for word in ("attsvm", "python", "numpy", "scipy", "jax", "backend", "BLAS", "package data", "arXiv:2308.16898"):
        assert word in out
    assert run(capsys, "--version") == (0, f"{attsvm.__version__}\n", "")
    status, out, _ = run(capsys, "--help")
    assert status == 0
    assert all(command in out for command in ("solve", "train", "compare", "reproduce", "info"))
    status, out, _ = run(capsys, "train", "--help")
    assert status == 0
    assert "--log-regularization" in out


def test_a_process_keeps_its_streams_apart(folder):
    done = process("solve", folder / "twins.npz", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    assert strict(done.stdout)["status"] == "infeasible"
    done = process("solve", folder / "chosen.npz", "--wrong")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("attsvm: ")


def test_solve_waits_for_no_heavy_import(folder):
    code = (
        "import sys; from attsvm.cli import main; main(['--help']); "
        "assert not {'numpy', 'scipy', 'jax', 'polars', 'matplotlib'} & set(sys.modules); "
        "main(sys.argv[1:]); assert not {'jax', 'polars', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, "solve", str(folder / "chosen.npz")], check=True, timeout=120)
