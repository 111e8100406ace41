"""Update rules of other geometries: their steps against definitions, their limits against the SVMs of their norms."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attsvm
from attsvm import datasets
from attsvm.compare import margin
from attsvm.errors import InputError
from attsvm.optimizers import (
    Adam,
    MirrorDescent,
    NormalizedGD,
    SignDescent,
    SpectralDescent,
    as_optimizer,
    svm_of,
)
from attsvm.steepest import polar_factor
from attsvm.training import _advance

SETS = [datasets.sphere(4, 5, 6, seed=seed) for seed in (0, 2)]
RULES = [SignDescent(0.05), SpectralDescent(0.05), MirrorDescent(3.0, 0.5), MirrorDescent(1.75), Adam(0.02)]


def polar(g):
    """From the eigenvectors of gᵀg, apart from any singular value decomposition."""
    values, V = np.linalg.eigh(g.T @ g)
    keep = values > 1e-12 * values[-1]
    return g @ (V[:, keep] / np.sqrt(values[keep])) @ V[:, keep].T


def dual_unit(g, p):
    q = p / (p - 1)
    return g / np.sum(np.abs(g) ** q) ** (1 / q)


def step_of(rule, W, g, k):
    rate = rule.learning_rate / np.sqrt(1 + k / rule.decay)
    if isinstance(rule, MirrorDescent):
        z = np.sign(W) * np.abs(W) ** (rule.p - 1) - rate * dual_unit(g, rule.p)
        return np.sign(z) * np.abs(z) ** (1 / (rule.p - 1))
    return W - rate * (np.sign(g) if isinstance(rule, SignDescent) else polar(g))


@pytest.mark.parametrize("rule", RULES, ids=lambda r: type(r).__name__)
def test_steps_by_definition_then_nothing_for_zero_and_nan_for_nan(rule):
    """NaN must show in the weights, where training reports it."""
    rule, rng = replace(rule, decay=3.0), np.random.default_rng(2)
    W, g = rng.normal(size=(2, 5, 4, 1))
    with jax.enable_x64(True):
        weights, zero = (jnp.asarray(W),), jnp.zeros(1)
        state = rule.init(weights)
        for k in range(0 if isinstance(rule, Adam) else 3):
            expected = step_of(rule, np.asarray(weights[0])[..., 0], g[..., 0], k)
            weights, state = rule.update(weights, (jnp.asarray(g),), zero, state)
            np.testing.assert_allclose(np.asarray(weights[0])[..., 0], expected, rtol=1e-9, atol=1e-12)
        still, _ = rule.update(weights, (0 * jnp.asarray(g),), zero - jnp.inf, rule.init(weights))
        broken, _ = rule.update(weights, (jnp.nan * jnp.asarray(g),), zero, rule.init(weights))
    np.testing.assert_allclose(still[0], weights[0], rtol=1e-14)
    assert np.isnan(broken[0]).all()


def test_spectral_step_of_a_matrix_of_low_rank():
    """The polar factor keeps to the range of the gradient, at any scale, and a zero takes no step."""
    rng = np.random.default_rng(0)
    g = rng.normal(size=(7, 3)) @ rng.normal(size=(3, 5))
    stack = np.stack([g, 1e-200 * g, 0 * g], axis=-1)
    with jax.enable_x64(True):
        D, alone = (np.asarray(polar_factor(jnp.asarray(part))) for part in (stack, stack[..., :1]))
    np.testing.assert_array_equal(D[..., :1], alone)
    np.testing.assert_allclose(np.linalg.svd(D[..., 0], compute_uv=False), [1, 1, 1, 0, 0], atol=1e-13)
    assert np.sum(g * D[..., 0]) == pytest.approx(np.linalg.norm(g, "nuc"), rel=1e-13)
    np.testing.assert_allclose(D[..., 1], D[..., 0], atol=1e-12)
    assert not D[..., 2].any()


def test_mirror_descent_at_two_is_normalised_gd():
    W, g = np.random.default_rng(3).normal(size=(2, 5, 4, 2))
    rules = MirrorDescent(2.0), NormalizedGD()
    with jax.enable_x64(True):
        a, b = (rule.update((jnp.asarray(W),), (jnp.asarray(g),), jnp.zeros(2), 0)[0][0] for rule in rules)
    np.testing.assert_allclose(a, b, rtol=1e-13)


def adam(rule, gradients):
    """Textbook Adam with ε = 0, in plain numbers."""
    m = v = W = 0.0
    for k, g in enumerate(gradients):
        m, v = rule.beta1 * m + (1 - rule.beta1) * g, rule.beta2 * v + (1 - rule.beta2) * g**2
        m_hat, v_hat = m / (1 - rule.beta1 ** (k + 1)), v / (1 - rule.beta2 ** (k + 1))
        W = W - rule.learning_rate / np.sqrt(1 + k / rule.decay) * m_hat / np.sqrt(v_hat)
    return W


@pytest.mark.parametrize("shift", [0.0, -3000.0])
def test_adam_is_adam_at_any_scale_of_the_gradient(shift):
    """Moments of gradients near e^-3000, whose squares and themselves underflow, are those of gradients near one."""
    rule, rng = Adam(0.03, decay=5.0, beta1=0.8, beta2=0.9), np.random.default_rng(1)
    directions, logs = rng.normal(size=(12, 3, 2, 1)), rng.normal(size=12) - 0.3 * np.arange(12)
    with jax.enable_x64(True):
        W, state = (jnp.zeros((3, 2, 1)),), rule.init((jnp.zeros((3, 2, 1)),))
        for d, log in zip(directions, logs, strict=True):
            W, state = rule.update(W, (jnp.asarray(d),), jnp.array([log + shift]), state)
    expected = adam(rule, np.exp(logs)[:, None, None, None] * directions)
    np.testing.assert_allclose(np.asarray(W[0]), expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("rule", "norm", "least"),
    [
        (SignDescent(0.1), "max", 0.94),
        (SpectralDescent(0.1), "spec", 0.94),
        (MirrorDescent(1.75), 1.75, 0.99),
        (MirrorDescent(3.0, 3.0), 3.0, 0.97),
        (Adam(0.01, decay=np.inf, beta2=0.95), "max", 0.9),
    ],
    ids=lambda value: str(value)[:16],
)
def test_each_rule_goes_to_the_svm_of_its_norm(rule, norm, least):
    """The margin in its own norm nears the best there is, and exceeds that of gradient descent in the same norm."""
    assert svm_of(rule) == norm
    options = {"steps": 8000, "initial": "zeros", "record": 2}
    run, plain = (attsvm.train(SETS, optimizer=each, **options) for each in (rule, NormalizedGD()))
    for r, data in enumerate(SETS):
        svm = attsvm.solve(data, run.chosen[r, -1], norm=norm)
        own, other = (margin(each.final[r], svm.problem, svm.norm) * svm.value for each in (run, plain))
        assert least < own <= 1 + 1e-9
        assert own > other


def test_names_and_norms():
    assert as_optimizer("sign", 0.3) == SignDescent(0.3)
    assert isinstance(as_optimizer("spectral", None), SpectralDescent)
    assert [svm_of(name) for name in ("gd", "normalized_gd", "sign", "spectral", "adam")] == [
        "fro",
        "fro",
        "max",
        "spec",
        "max",
    ]
    assert svm_of(MirrorDescent(2)) == "fro"
    assert svm_of(MirrorDescent(3)) == 3.0

    class Nameless(NormalizedGD):
        svm_norm = None

    with pytest.raises(InputError, match="svm_norm"):
        svm_of(Nameless())


def test_other_numbers_do_not_compile_again():
    attsvm.train(SETS, optimizer=MirrorDescent(3.0), steps=2)
    before = _advance._cache_size()
    attsvm.train(SETS, optimizer=MirrorDescent(1.5, 0.2, decay=10.0), steps=3)
    assert _advance._cache_size() == before


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ("mirror", "exponent"),
        (MirrorDescent(1.0), "above 1"),
        (MirrorDescent(np.nan), "above 1"),
        (SignDescent(decay=0.0), "positive number of steps"),
        (Adam(beta2=1.0), "beta2"),
        (Adam(beta1=-0.1), "beta1"),
        (Adam(learning_rate=0.0), "learning_rate"),
    ],
)
def test_bad_rules(optimizer, message):
    with pytest.raises(InputError, match=message):
        attsvm.train(SETS, optimizer=optimizer, steps=2)
