"""The data laws, the paper's own numbers, and digits as patch tokens."""

from __future__ import annotations

import itertools
import tomllib
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from attsvm import InputError, TokenData, is_separable, load, solve
from attsvm.datasets import LAWS, PAPER, digits, make, make_many, orthonormal, paper, paths, sphere
from attsvm.selection import attended, optimal, scores

SIZES = {"sphere": {"n": 6, "T": 8, "d": 10}, "orthonormal": {"n": 3, "T": 4, "d": 6}, "digits": {"n": 20}}


def norms(a):
    return np.linalg.norm(a, axis=-1)


def same(a: TokenData, b: TokenData) -> bool:
    arrays = ("tokens", "queries", "mask", "labels", "value")
    return all(np.array_equal(getattr(a, k), getattr(b, k)) for k in arrays)


@pytest.mark.parametrize("law", LAWS)
def test_the_seed_tells_all(law):
    sizes = SIZES.get(law, {})
    one, two, other = (make(law, seed=s, **sizes) for s in (3, 3, 4))
    assert same(one, two)
    assert one.source == two.source
    assert not np.array_equal(one.tokens, other.tokens)
    assert one.source is not None
    assert "seed=3" in one.source
    assert one.source in repr(one)


@pytest.mark.parametrize("law", LAWS)
def test_the_source_can_be_run_again(law):
    """The line a data set carries is the call that made it."""
    data = make(law, seed=5, **SIZES.get(law, {}))
    name, _, rest = str(data.source).partition("(")
    arguments = eval(f"dict({rest}")
    assert same(make(name, **arguments), data)


@pytest.mark.parametrize("law", LAWS)
def test_the_source_is_kept_in_files(law, tmp_path):
    data = make(law, seed=1, **SIZES.get(law, {}))
    for suffix in ("npz", "safetensors"):
        assert load(data.save(tmp_path / f"a.{suffix}"))[0].source == data.source


def test_make_many_is_make_for_each_seed():
    many = make_many("sphere", range(4), n=2, T=3, d=5)
    assert all(same(data, sphere(2, 3, 5, seed=i)) for i, data in enumerate(many))


@pytest.mark.parametrize(
    ("law", "arguments", "message"),
    [
        ("spheres", {"seed": 0}, "There is no data law 'spheres'; there are sphere, paths-1"),
        ("sphere", {"seed": 0, "n": 3}, "The law 'sphere' takes (n: "),
        ("paths-1", {"seed": 0, "n": 3}, "it was given ['n']"),
        ("sphere", {"seed": 0, "n": 0, "T": 2, "d": 3}, "n must be an integer of at least 1; got 0"),
        ("sphere", {"seed": 0, "n": 1, "T": 2, "d": 3, "labels": "zeros"}, 'labels must be "fair"'),
        ("sphere", {"seed": -1, "n": 1, "T": 2, "d": 3}, "seed must be a non-negative integer"),
        (
            "orthonormal",
            {"seed": 0, "n": 1, "T": 4, "d": 3},
            "4 orthonormal tokens need at least 4 dimensions; got d = 3",
        ),
        ("digits", {"seed": 0, "classes": (3, 3)}, "classes must be two different digits from 0 to 9"),
        ("digits", {"seed": 0, "classes": (1, 10)}, "got (1, 10)"),
        ("digits", {"seed": 0, "n": 5}, "n must be even, half of each class, and at most 358"),
        ("digits", {"seed": 0, "n": 360}, "at most 358 for these classes; got 360"),
        ("digits", {"seed": 0, "d_q": 65}, "principal components; d_q = 65 is more"),
    ],
)
def test_unusable_requests_are_named(law, arguments, message):
    with pytest.raises(InputError) as error:
        make(law, **arguments)
    assert message in str(error.value)


def test_paths_come_as_one_and_two():
    with pytest.raises(InputError, match="paths come as number 1 and 2; got 3"):
        paths(3, seed=0)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 12), st.integers(0, 10**9))
def test_sphere(n, T, d, seed):
    data = sphere(n, T, d, seed=seed)
    assert data.tokens.shape == (n, T, d)
    assert data.queries.shape == (n, 1, d)
    assert data.value is not None
    for points in (data.tokens, data.queries, data.value):
        assert np.allclose(norms(points), 1, rtol=1e-14)
    assert np.isin(data.labels, [-1, 1]).all()
    ones = sphere(n, T, d, seed=seed, labels="ones")
    assert (ones.labels == 1).all()
    assert np.array_equal(ones.tokens, data.tokens)


def test_sphere_is_uniform_and_fair():
    """Means and second moments of the uniform law, `E x = 0` and `E xxᵀ = I/d`, within five standard errors."""
    data = sphere(3000, 6, 4, seed=0)
    x = data.tokens.reshape(-1, 4)
    assert np.abs(x.mean(0)).max() < 5 / np.sqrt(4 * len(x))
    assert np.abs(x.T @ x / len(x) - np.eye(4) / 4).max() < 5 / np.sqrt(len(x)) / 4
    assert abs(data.labels.mean()) < 5 / np.sqrt(3000)


def test_wide_spheres_are_separable():
    assert all(is_separable(data) for data in make_many("sphere", range(10), n=6, T=8, d=10))


def test_paths_1():
    data = np.stack([paths(1, seed=s).tokens for s in range(400)])
    assert data.shape == (400, 2, 3, 2)
    means, spread = data.mean((0, 2)), data.std((0, 2))
    assert np.abs(means - [[-1, 0], [1, 0]]).max() < 5 * 0.3 / np.sqrt(1200)
    assert np.abs(spread - 0.3).max() < 5 * 0.3 / np.sqrt(2400)


def test_paths_2():
    sets = [paths(2, seed=s) for s in range(400)]
    x = np.stack([data.tokens for data in sets])
    assert x.shape == (400, 2, 5, 2)
    assert (x[:, :, 0] == [[1, 0.5], [1, -0.5]]).all()
    assert all((optimal(data).indices == 0).all() for data in sets)
    assert np.abs(x[:, :, 1:].mean((0, 1, 2)) - [-1, 0]).max() < 0.1
    assert np.abs(x[:, :, 1:].std((0, 1, 2)) - 0.5).max() < 0.05


@pytest.mark.parametrize("number", [1, 2])
def test_paths_have_unit_queries_and_value(number):
    data = paths(number, seed=7)
    assert np.allclose(norms(data.queries), 1)
    assert np.allclose(norms(data.value), 1)
    assert (data.labels == 1).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 4), st.integers(0, 10**9))
def test_orthonormal(n, T, extra, seed):
    data = orthonormal(n, T, T + extra, seed=seed)
    gram = data.tokens @ data.tokens.swapaxes(1, 2)
    assert np.allclose(gram, np.eye(T), atol=1e-13)
    assert (data.labels == 1).all()
    assert np.allclose(norms(data.queries), 1)


def test_orthonormal_frames_have_no_preferred_direction():
    x = orthonormal(4000, 3, 3, seed=0).tokens
    assert np.abs(x.mean(0)).max() < 5 / np.sqrt(3 * 4000)
    determinants = np.linalg.det(x)
    assert abs(determinants.mean()) < 5 / np.sqrt(4000)


@pytest.mark.parametrize(("name", "shape"), [("paths-1", (2, 3, 2)), ("paths-2", (2, 5, 2))])
def test_paper_paths(name, shape):
    data = paper(name)
    assert isinstance(data, TokenData)
    assert data.tokens.shape == shape
    assert np.array_equal(data.tokens, data.tokens.astype(np.float32))
    assert np.allclose(norms(data.queries), 1, atol=1e-6)
    assert data.source == f"paper('{name}')"
    assert is_separable(data)


def test_paper_paths_follow_the_laws():
    one, two = paper("paths-1"), paper("paths-2")
    assert isinstance(one, TokenData)
    assert isinstance(two, TokenData)
    assert np.abs(one.tokens - np.array([[[-1, 0]], [[1, 0]]])).max() < 4 * 0.3
    assert (two.tokens[:, 0] == [[1, 0.5], [1, -0.5]]).all()
    assert (optimal(two).indices == 0).all()


def test_paper_local():
    sets = paper("local")
    assert isinstance(sets, list)
    assert len(sets) == 100
    assert sets[17].source == "paper('local')[17]"
    for data in sets:
        assert data.tokens.shape == (6, 8, 10)
        assert np.isin(data.labels, [-1, 1]).all()
        for points in (data.tokens, data.queries, data.value):
            assert np.allclose(norms(points), 1, atol=1e-6)


def test_paper_errors():
    with pytest.raises(InputError, match="The paper's own data are paths-1, paths-2, local; got 'rank'"):
        paper("rank")


def test_paper_data_are_in_the_package():
    folder = resources.files("attsvm") / "paper_data"
    names = {item.name for item in folder.iterdir()}
    assert names == {f"{name}.npz" for name in PAPER} | {"README.md"}
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["src/attsvm"]


def test_digit_tokens_are_windows_of_the_images():
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = bunch.images[np.isin(bunch.target, (1, 7))] / 16
    data = digits(n=10, seed=3)
    assert (data.n, data.T, data.d_k, data.d_q) == (10, 9, 16, 8)
    windows = [images[:, r : r + 4, c : c + 4].reshape(-1, 16) for r in (0, 2, 4) for c in (0, 2, 4)]
    every = np.stack(windows, axis=1)
    every = every - every.mean((0, 1))
    for tokens in data.tokens:
        assert np.isclose(every, tokens, atol=1e-12).all((1, 2)).sum() == 1


def test_digit_classes_alternate_and_small_sets_begin_large_ones():
    small, large = digits(n=20, seed=2), digits(n=358, seed=2)
    assert small.labels[:, 0].tolist() == [1, -1] * 10
    assert np.array_equal(small.tokens, large.tokens[:20])
    assert np.array_equal(small.queries, large.queries[:20])
    assert np.array_equal(small.value, large.value)
    assert len(np.unique(large.tokens, axis=0)) == 358


def test_digit_queries_are_white():
    z = digits(n=358).queries[:, 0]
    assert np.abs(z.mean(0)).max() < 0.01
    assert np.allclose(8 * z.T @ z / len(z), np.eye(8), atol=0.03)


def test_digit_readout_is_the_ridge_regression_of_scikit_learn():
    from sklearn.linear_model import Ridge

    data = digits(classes=(1, 7), n=358)
    x, y = data.tokens.reshape(-1, 16), np.repeat(data.labels[:, 0], 9)
    v = Ridge(alpha=1.0, fit_intercept=False).fit(x, y).coef_
    assert data.value is not None
    assert np.linalg.norm(v - data.value) < 0.02 * np.linalg.norm(v)  # three images of 361 are not among the 358


def test_no_two_classes_tie():
    with threadpool_limits(1):
        for pair in itertools.combinations(range(10), 2):
            data = digits(classes=pair, n=346, d_q=38)
            gamma = np.sort(scores(data)[:, 0], axis=1)
            assert (gamma[:, -1] - gamma[:, -2]).min() > 1e-9


def test_default_digits_are_separable_in_both_norms():
    for seed in range(3):
        data = digits(seed=seed)
        for norm in ("fro", "nuc"):
            solution = solve(data, norm=norm)
            assert solution.margin > 0.02
            assert solution.certificate.gap < 1e-8


def test_digit_svm_finds_the_best_patch_of_images_it_has_not_seen():
    """The commonest patch is the best of 28 % of the held-out images; the SVM of 48 others finds it in over 60 %."""
    every, best = digits(n=358), optimal(digits(n=358)).indices[:, 0]
    W = solve(digits(), norm="nuc").W
    agreement = (attended(every, W).indices[48:, 0] == best[48:]).mean()
    assert agreement > 0.6
    assert np.bincount(best[48:]).max() / 310 < 0.35
