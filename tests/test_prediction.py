import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attsvm.data import TokenData
from attsvm.errors import InputError
from attsvm.prediction import LOSSES, LinearHead, MLPHead, QuadraticHead, as_loss, check_head, gather_heads
from attsvm.training import _advance, train


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def one(**head):
    return TokenData(np.ones((1, 2, 3)), np.ones((1, 2)), **head)


@pytest.mark.parametrize("name", LOSSES)
def test_slopes_are_the_derivatives_of_the_values(name):
    loss, x, step = LOSSES[name], np.linspace(-5, 5, 11), 1e-6
    sign, log_slope = loss.log_slope(jnp.asarray(x))
    numeric = (loss.value(x + step) - loss.value(x - step)) / (2 * step)
    np.testing.assert_allclose(sign * np.exp(log_slope), numeric, rtol=1e-6)


def test_logistic_slope_far_out():
    """At a margin of 1e4 the slope is e^-10000; its logarithm is exact."""
    _, log_slope = LOSSES["logistic"].log_slope(jnp.asarray([1e4, -1e4]))
    np.testing.assert_allclose(log_slope, [-1e4, 0.0], atol=1e-300)


def test_callable_loss():
    loss = as_loss(lambda x: (x - 2) ** 2)
    sign, log_slope = loss.log_slope(jnp.asarray([[0.0, 3.0]]))
    np.testing.assert_allclose(sign * np.exp(log_slope), [[-4.0, 2.0]])
    np.testing.assert_allclose(loss.value(np.array([[0.0, 3.0]])), [[4.0, 1.0]])


def test_heads_with_numbers_of_their_own_in_one_batch():
    def network(V, a):
        return jax.nn.relu(V @ a).sum()

    V = np.random.default_rng(0).normal(size=(2, 4, 3))
    data = [one(head=jax.tree_util.Partial(network, V[i])) for i in range(2)]
    heads = gather_heads(data, None, np.array([0, 0, 1]))
    a = np.random.default_rng(1).normal(size=(3, 5, 3))
    expected = [np.maximum(a[r] @ V[i].T, 0).sum(-1) for r, i in enumerate([0, 0, 1])]
    np.testing.assert_allclose(heads(a), expected, rtol=1e-14)


def test_linear_head_and_value_agree():
    a = np.random.default_rng(1).normal(size=(2, 5, 3))
    value = np.array([1.0, -2.0, 0.5])
    run_data = np.zeros(2, dtype=int)
    by_value = gather_heads([one(value=value)], None, run_data)
    by_head = gather_heads([one()], LinearHead(value), run_data)
    by_callable = gather_heads([one()], lambda a: a @ value, run_data)
    assert by_value.linear
    assert not by_callable.linear
    np.testing.assert_array_equal(by_value(a), by_head(a))
    np.testing.assert_allclose(by_value(a), by_callable(a), rtol=1e-14)


def test_quadratic_and_one_hidden_layer():
    rng = np.random.default_rng(3)
    a, v, V, out = rng.normal(size=3), rng.normal(size=3), rng.normal(size=(5, 3)), rng.normal(size=5)
    units = V @ a
    normal = np.array([0.5 * (1 + math.erf(u / math.sqrt(2))) for u in units])
    expected = {
        QuadraticHead(v, 0.7): v @ a - 0.7 * a @ a,
        MLPHead(V): np.maximum(units, 0).sum(),
        MLPHead(V, out): out @ np.maximum(units, 0),
        MLPHead(V, out, activation="gelu"): out @ (units * normal),
    }
    for head, value in expected.items():
        check_head(head, 3)
        np.testing.assert_allclose(head(jnp.asarray(a)), value, rtol=1e-13)
        slope, step = jax.grad(head)(jnp.asarray(a)), 1e-6
        numeric = [(head(a + step * e) - head(a - step * e)) / (2 * step) for e in np.eye(3)]
        np.testing.assert_allclose(slope, numeric, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", [QuadraticHead, lambda v, c: MLPHead(np.stack([v, -v]), c, "gelu")])
def test_other_numbers_do_not_compile_again(kind):
    """Every data set of a batch has its own head, and the next batch others still."""
    rng, sizes = np.random.default_rng(4), []
    for c in (0.1, 0.2, 0.3):
        sets = [one(head=kind(rng.normal(size=3), c * i)) for i in (1, 2)]
        runs = train(sets, steps=3, record=2)
        sizes.append(_advance._cache_size())
        for r, data in enumerate(sets):
            np.testing.assert_allclose(runs.final[r], train(data, steps=3, record=2).final[0], rtol=1e-12)
        alone = _advance._cache_size()
    assert sizes[1] == sizes[2] == alone


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (lambda a: a, "one real scalar"),
        (lambda a: a @ jnp.ones(5), "fails on a pooled token of shape \\(3,\\)"),
        (lambda a: np.tanh(a).sum().item(), "jax.numpy"),
        (lambda a: None, "one real scalar"),
        (3.0, "callable"),
        (LinearHead(np.ones(4)), "shape \\(3,\\)"),
        (LinearHead(np.array([1.0, np.nan, 0.0])), "finite"),
        (QuadraticHead(np.ones(3), np.inf), "numbers of this QuadraticHead are not all finite"),
        (QuadraticHead(np.ones(2), 1.0), "fails on a pooled token of shape \\(3,\\)"),
        (MLPHead(np.ones((3, 4))), "fails on a pooled token of shape \\(3,\\)"),
        (MLPHead(np.full((4, 3), np.nan)), "not all finite"),
    ],
)
def test_bad_heads(head, message):
    with pytest.raises(InputError, match=message):
        check_head(head, 3)


def test_unknown_activation():
    with pytest.raises(InputError, match="one of \\['gelu', 'relu'\\]; got 'tanh'"):
        MLPHead(np.ones((4, 3)), activation="tanh")


@pytest.mark.parametrize(("loss", "message"), [("hinge", "logistic"), (lambda x: jnp.ones(2) * x, "scalar")])
def test_bad_losses(loss, message):
    with pytest.raises(InputError, match=message):
        as_loss(loss)


def test_no_head_and_different_heads():
    with pytest.raises(InputError, match="no prediction head"):
        gather_heads([one()], None, np.zeros(1, dtype=int))
    with pytest.raises(InputError, match="Partial"):
        gather_heads([one(head=jnp.sum), one(value=np.ones(3))], None, np.arange(2))
