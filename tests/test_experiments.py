"""The experiments at a size for tests: what is written and claimed, that claims can fail, that a run repeats itself."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from rich.console import Console

import attsvm
from attsvm import InputError, datasets, is_separable
from attsvm.experiments import Claim, Results, Verdict, digits, local, local_claims, paths, rank, reproduce
from attsvm.experiments.base import artefact, at_least, difference, near, unstated
from attsvm.experiments.estimate import judge, mean, share
from attsvm.experiments.loose import first_order
from attsvm.experiments.show import claims_table, measured, published, words

TINY = {
    "paths-1": "steps = 300\nbox = 10",
    "paths-2": "steps = 300",
    "local": "seeds = 3\nlong_steps = 2000\nlonger = 1",
    "rank": "pairs = [[5, 5], [15, 5]]\nwidths = [1, 2, 5, 10]\nseeds = 2\ntries = 3",
    "digits": "n = 8\nseeds = 2\nsteps = 300\nrecords = 8\nshown = 4",
}
FIGURES = {"paths-1": ["paths-1"], "paths-2": ["paths-2"], "local": ["local"], "rank": ["rank"]}
FIGURES["digits"] = ["patches", "training"]


def _run(out: Path, **rest):
    files = []
    for name, settings in TINY.items():
        files.append(out.parent / f"{name}.toml")
        files[-1].write_text(f'experiment = "{name}"\n[spec]\n{settings}\n')
    return reproduce(spec=files, out=out, **rest)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return _run(tmp_path_factory.mktemp("made") / "out", progress=False, jobs=1)


@pytest.fixture(scope="module")
def record(made):
    return json.loads((made.out / "claims.json").read_text())


def test_all_five_experiments_run_and_are_timed(made):
    assert list(made.results) == list(TINY) == list(made.seconds)
    assert all(seconds > 0 for seconds in made.seconds.values())
    assert f"{len(made.claims)} claims" in repr(made)


def test_figures_and_data_are_written_and_can_be_read(made):
    for name, figures in FIGURES.items():
        for figure in figures:
            assert (made.out / name / f"{figure}.svg").read_text().rstrip().endswith("</svg>")
            assert (made.out / name / f"{figure}.png").read_bytes().startswith(b"\x89PNG")
        for table, frame in made.results[name].tables.items():
            assert pl.read_parquet(made.out / name / f"{table}.parquet").equals(frame)
    with np.load(made.out / "paths-1" / "arrays.npz") as arrays:
        np.testing.assert_array_equal(arrays["W"], made.results["paths-1"].arrays["W"])


def test_every_claim_has_the_whole_schema(made, record):
    assert len(record["claims"]) == len(made.claims)
    for claim in record["claims"]:
        assert set(claim) == {
            "experiment", "id", "statement", "published", "measured", "error", "interval", "verdict", "note",
        }  # fmt: skip
        assert claim["verdict"] in set(Verdict)
        assert claim["experiment"] in TINY
        assert claim["measured"] is not None
        if claim["published"] is None:
            assert claim["verdict"] in (Verdict.UNSTATED, Verdict.FAILS)
    names = [(claim["experiment"], claim["id"]) for claim in record["claims"]]
    assert len(set(names)) == len(names)


def test_the_record_says_how_to_remake_it(made, record):
    assert record["command"].startswith("attsvm reproduce --spec ")
    assert record["unfinished"] == []
    assert record["versions"]["attsvm"] == attsvm.__version__
    for name in TINY:
        about = json.loads((made.out / name / "claims.json").read_text())
        assert f"{name}.toml --preset quick" in about["command"]
        assert about["seeds"]
        assert about["claims"] == [claim for claim in record["claims"] if claim["experiment"] == name]
        assert record["experiments"][name]["spec"] == about["spec"]
    assert record["experiments"]["local"]["spec"]["seeds"] == 3


def test_the_same_data_and_claims_twice(made, tmp_path):
    again = _run(tmp_path / "out", progress=False, jobs=2)
    files = [file.relative_to(made.out) for file in made.out.rglob("*") if file.suffix in (".parquet", ".npz")]
    files += [Path(name, "claims.json") for name in FIGURES]
    assert len(files) > 10
    for file in files:
        one, other = ((run.out / file).read_bytes().replace(str(run.out.parent).encode(), b"") for run in (made, again))
        assert one == other, file


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.ids, self.sources, self.links = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for key, value in attrs:
            if key == "id":
                self.ids.append(value)
            if key == "src":
                self.sources.append(value)
            if key in ("href", "xlink:href"):
                self.links.append(value)


def test_the_report_is_one_file_that_refers_to_nothing_elsewhere(made):
    text = (made.out / "report.html").read_text()
    page = _Page()
    page.feed(text)
    assert page.tags.count("svg") == sum(map(len, FIGURES.values()))
    assert not page.sources
    assert not {"link", "iframe", "img"} & set(page.tags)
    for link in (link for link in page.links if not link.startswith("data:")):
        assert link[1:] in page.ids if link.startswith("#") else (made.out / link).is_file(), link
    assert not re.search(r"url\((?!#)", re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL))
    assert len(set(page.ids)) == len(page.ids)


def test_the_report_shows_claims_settings_and_command(made, record):
    text = re.sub(r"<script.*?</script>", "", (made.out / "report.html").read_text(), flags=re.DOTALL)
    assert text.index("paths-1/turns-W") < text.index("<svg")
    assert record["command"] in text
    assert "log_regularization" in text


def test_unknown_ids_are_refused_with_the_known_ones(tmp_path):
    with pytest.raises(InputError, match=r"'rnak'; known are paths-1, paths-2, local, rank, digits"):
        reproduce(["paths-1", "rnak"], out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_other_bad_requests_are_refused_before_anything_runs(tmp_path):
    with pytest.raises(InputError, match="quick, paper"):
        reproduce("rank", preset="huge", out=tmp_path)
    with pytest.raises(InputError, match="paths-1 has no random runs"):
        reproduce("paths-1", seeds=3, out=tmp_path)
    for wrong in ({"seeds": 0}, {"jobs": 0}):
        with pytest.raises(InputError, match="at least 1"):
            reproduce("rank", out=tmp_path, **wrong)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        reproduce("rank", out=tmp_path / "file")
    with pytest.raises(InputError, match="none"):
        reproduce([], out=tmp_path)


def test_progress_names_what_is_running_and_prints_claims(tmp_path):
    console = Console(record=True, width=110, file=StringIO())
    reproduce("paths-2", out=tmp_path, progress=console)
    text = console.export_text()
    assert "paths-2/turns-W" in text
    assert "4 claims" in text
    assert "report.html" in text


# Verdicts


def test_verdicts_can_fail():
    assert near([0.5, 0.6], [0.51, 0.59], 0.02) is Verdict.HOLDS
    assert near([0.5, 0.6], [0.51, 0.65], 0.02) is Verdict.FAILS
    assert near(0.5, float("nan"), 0.02) is Verdict.FAILS
    assert at_least(0.5, 0.6, 0.02) is Verdict.STRONGER
    assert at_least(0.5, 0.49, 0.02) is Verdict.HOLDS
    assert at_least(0.5, 0.4, 0.02) is Verdict.FAILS
    assert unstated(True) is Verdict.UNSTATED
    assert unstated(False) is Verdict.FAILS
    assert artefact(True) is Verdict.ARTEFACT
    assert artefact(False) is Verdict.FAILS
    assert difference([1.0, 2.0], [1.5, 2.0]) == 0.5


def test_intervals_over_seeds():
    values = np.random.default_rng(0).normal(3.0, 1.0, (2000, 20))
    assert 0.93 < np.mean([mean(row).low <= 3.0 <= mean(row).high for row in values]) < 0.97
    yes = np.random.default_rng(1).random((2000, 40)) < 0.1
    assert 0.92 < np.mean([share(row).low <= 0.1 <= share(row).high for row in yes]) < 0.99
    assert (share([True] * 20).high, share([False] * 20).low) == pytest.approx((1.0, 0.0))
    assert judge([3.1], [mean([2.0, 3.0, 4.0])], 0.0) is Verdict.HOLDS
    assert judge([9.1], [mean([2.0, 3.0, 4.0])], 0.1) is Verdict.FAILS
    assert judge([1.0], [mean([])], 0.1) is Verdict.FAILS


def test_a_wrong_curve_fails_its_claim(made):
    results = made.results["local"]
    before = {claim.id: claim.verdict for claim in local_claims.claims(results)}
    spoiled = results.tables["curves"].with_columns(pl.col("corr_nuc") - 0.3)
    after = {claim.id: claim.verdict for claim in local_claims.claims(_with(results, "curves", spoiled))}
    assert before["corr-KQ-to-fro"] is after["corr-KQ-to-fro"]
    for name in ("corr-KQ-to-nuc-late", "corr-W-to-nuc", "vanishing-mean"):
        assert after[name] is Verdict.FAILS


def test_a_run_that_is_not_locally_optimal_fails_its_claim_and_is_named(made):
    results = made.results["local"]
    at = (pl.col("training") == "W") & (pl.col("data") == 1) & (pl.col("source") == "authors")
    spoiled = results.tables["runs"].with_columns(
        pl.when(at).then(False).otherwise("locally_optimal").alias("locally_optimal"),
        pl.when(at).then(-0.25).otherwise("smallest_score_margin").alias("smallest_score_margin"),
    )
    claims = {claim.id: claim for claim in local_claims.claims(_with(results, "runs", spoiled))}
    assert claims["locally-optimal-W"].verdict is Verdict.FAILS
    assert "authors 1: a support token scores higher by 0.2500; still the same α" in claims["locally-optimal-W"].note
    assert claims["locally-optimal-KQ"].verdict is Verdict.HOLDS


def test_the_artefact_needs_its_evidence(made):
    results = made.results["rank"]
    claims = {claim.id: claim for claim in rank.claims(results)}
    assert claims["nuclear-n15"].verdict is Verdict.ARTEFACT
    assert claims["small-d"].verdict is Verdict.ARTEFACT
    unexplained = results.tables["summary"].with_columns(emulated_nuc=pl.col("nuc_rank"))
    after = {claim.id: claim for claim in rank.claims(_with(results, "summary", unexplained))}
    assert after["nuclear-n15"].verdict is Verdict.FAILS
    confirmed = results.tables["summary"].with_columns(nuc_rank=pl.col("emulated_nuc"))
    after = {claim.id: claim for claim in rank.claims(_with(results, "summary", confirmed))}
    assert after["nuclear-n15"].verdict is Verdict.FAILS


def _with(results: Results, name: str, table: pl.DataFrame) -> Results:
    return replace(results, tables={**results.tables, name: table})


# The experiments themselves


def test_infeasible_data_are_counted_apart_and_have_no_rank(made):
    tables = made.results["rank"].tables
    rows = tables["instances"]
    assert set(rows["state"]) == {"feasible", "infeasible", "tied"}
    ranks = ["fro_rank", "nuc_rank", "nuc_bound", "loose_rank"]
    assert rows.filter(pl.col("state") != "feasible").select(pl.col(ranks).is_null().all()).row(0) == (True,) * 4
    assert rows.filter(pl.col("state") == "feasible").select(pl.col(ranks).is_not_null().all()).row(0) == (True,) * 4
    none = tables["summary"].filter(pl.col("n") == 15, pl.col("d") == 1).row(0, named=True)
    assert (none["tried"], none["feasible"], none["tied"], none["nuc_rank"]) == (6, 0, 6, None)
    assert none["emulated_nuc"] == 1.0
    wide = tables["summary"].filter(pl.col("d") == 10)
    assert wide["feasible"].to_list() == [2, 2]


def test_a_row_of_the_rank_table_can_be_remade_from_its_seed(made):
    row = made.results["rank"].tables["instances"].filter(pl.col("state") == "feasible").row(-1, named=True)
    data = datasets.make("sphere", seed=row["seed"], n=row["n"], T=row["T"], d=row["d"])
    assert is_separable(data)
    assert attsvm.solve(data, norm="nuc").rank == row["nuc_rank"]


def test_the_loose_solution_is_close_in_value_but_of_full_rank():
    data = datasets.make("sphere", seed=0, n=6, T=5, d=12)
    W, exact = first_order(data), attsvm.solve(data, norm="nuc")
    sigma = np.linalg.svd(W, compute_uv=False)
    assert sigma.sum() == pytest.approx(exact.value, rel=1e-3)
    assert np.sum(sigma > rank.CUT) > exact.rank


def test_exits_of_the_paths_lie_on_the_box_and_on_the_path(made):
    results = made.results["paths-2"]
    data = datasets.paper("paths-2")
    for row in results.tables["exits"].iter_rows(named=True):
        assert abs(row["line_y"]) == pytest.approx(5.0)
        if np.isnan(row["exit_step"]):
            continue
        assert abs(row["path_y"]) == pytest.approx(5.0)
        path = results.arrays[row["path"]] @ data.queries[row["query"] - 1, 0]
        steps = results.arrays["steps"]
        between = [np.interp(row["exit_step"], steps, path[:, axis]) for axis in (0, 1)]
        np.testing.assert_allclose(between, [row["path_x"], row["path_y"]], atol=1e-9)


def test_a_path_that_stays_inside_the_box_fails_its_claim(made):
    short = replace(paths.PATHS_2.presets["quick"], steps=300, box=1e6)
    results = paths.PATHS_2.gather(short, [paths.PATHS_2.run(short, {})])
    exits = [claim for claim in paths.PATHS_2.claims(results) if claim.id.startswith("exit")]
    assert [claim.verdict for claim in exits] == [Verdict.FAILS] * 2
    assert "stays inside" in exits[0].note


def test_curves_of_local_hold_every_run_at_every_step(made):
    curves = made.results["local"].tables["curves"]
    counts = curves.group_by("training", "source", "step").len()
    assert set(counts.filter(pl.col("source") == "authors")["len"]) == {3}
    assert set(counts.filter(pl.col("source") == "sphere")["len"]) == {3}
    assert curves["corr_fro"].is_between(-1, 1).all()
    last = curves.filter(pl.col("step") == 2000)
    assert last.filter(pl.col("training") == "W")["corr_fro"].min() > 0.9
    assert last.filter(pl.col("training") == "KQ")["corr_nuc"].min() > 0.9


def test_a_straggler_is_continued_and_arrives(made):
    left = made.results["local"].tables["stragglers"]
    assert len(left) > 0  # 2,000 steps are too few for a penalty of 1e-100
    assert (left["before"] < local.ARRIVED).all()
    assert (left["finer"] > left["before"]).all()


def test_digit_images_come_back_from_their_patches():
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pair = bunch.images[np.isin(bunch.target, (1, 7))] / 16
    images = digits._images(datasets.digits(n=24))
    distance = np.abs(images[:, None] - pair[None]).max((2, 3)).min(1)
    assert distance.max() < 1e-9


def test_values_for_readers_keep_what_matters():
    assert words(None) == "-"
    assert words(0.99996) == "0.99996"
    assert words([0.74, 0.967]) == "0.74, 0.967"
    assert words("rank 1") == "rank 1"
    claim = Claim("a", "b", "c", 1.5, [1.0], Verdict.FAILS, "why", error=0.02, interval=[[0.9, 1.1]])
    assert (published(claim), measured(claim)) == ("1.5 ± 0.02", "1 [0.9, 1.1]")
    assert claims_table([claim]).row_count == 1
