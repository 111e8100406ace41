import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attsvm.attention import gradient, probabilities
from attsvm.data import TokenData
from attsvm.errors import InputError
from attsvm.optimizers import GD, NormalizedGD
from attsvm.training import SaturatedAt, TrainingError, _advance, train
from attsvm.trajectory import Trajectory


def sphere(seed, n=4, T=5, d=6, **rest):
    rng = np.random.default_rng(seed)

    def unit(*shape):
        x = rng.normal(size=shape)
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    rest = {"value": unit(d), "labels": rng.choice([-1.0, 1.0], n)} | rest
    return TokenData(unit(n, T, d), unit(n, d), **rest)


DATA = sphere(0)
LOG_TINY = -100 * np.log(10)


def unit(g):
    return g / np.linalg.norm(g)


@pytest.mark.parametrize("optimizer", ["normalized_gd", "gd"])
def test_every_step_follows_the_gradient(optimizer):
    run = train(DATA, optimizer=optimizer, learning_rate=0.3, record=range(6), seeds=3)
    for s in range(5):
        direction, log_scale = gradient(DATA, run.W[0, s])
        step = unit(direction) if optimizer == "normalized_gd" else np.exp(log_scale) * direction
        np.testing.assert_allclose(run.W[0, s + 1], run.W[0, s] - 0.3 * step, rtol=1e-12, atol=1e-14)


def test_factors_are_normalised_apart_and_decay_enters_as_a_logarithm():
    """At logit gaps of thousands the gradient is e^-thousands; λ is set to match it."""
    rng = np.random.default_rng(1)
    K, Q = 200 * rng.normal(size=(2, 6, 3))
    (gK, gQ), log_scale = gradient(DATA, (K, Q))
    assert log_scale < -1000
    run = train(DATA, form="KQ", initial=(K, Q), log_regularization=log_scale - 7, record=[0, 1])
    for before, after, g in ((K, run.K[0, 1], gK), (Q, run.Q[0, 1], gQ)):
        np.testing.assert_allclose(after, before - 0.1 * unit(g + 2 * np.exp(-7) * before), rtol=1e-11)


def test_regularization_and_its_logarithm_agree():
    a = train(DATA, form="KQ", regularization=1e-3, steps=300, record=2)
    b = train(DATA, form="KQ", log_regularization=np.log(1e-3), steps=300, record=2)
    np.testing.assert_array_equal(a.final, b.final)
    assert a.norms[0, -1] < train(DATA, form="KQ", regularization=0.0, steps=300, record=2).norms[0, -1]


def test_vanishing_regularization_lowers_the_rank():
    """λ = 1e-100 drives K Qᵀ towards a nuclear-norm solution; without it the small singular values stay."""
    options = {"form": "KQ", "steps": 6000, "record": 2, "seeds": [0, 1]}
    tiny = train(DATA, log_regularization=LOG_TINY, **options)
    none = train(DATA, **options)

    def tail(run):
        s = np.linalg.svd(run.final, compute_uv=False)
        return (s[:, -1] / s[:, 0]).max()

    assert tail(tiny) < 1e-3 * tail(none)
    assert np.isfinite(tiny.loss).all()


@pytest.mark.parametrize("form", ["W", "KQ"])
def test_runs_do_not_depend_on_their_batch(form):
    """To the last bit: at the balance of gradient and decay, (K, Q) training multiplies a rounding error fast."""
    sets = [DATA, sphere(1), sphere(2)]
    options = {"form": form, "record": [0, 50, 400], "log_regularization": LOG_TINY}
    batch = train(sets, seeds=np.arange(120).reshape(3, 40), **options)
    assert batch.run_data.tolist() == [0] * 40 + [1] * 40 + [2] * 40
    assert batch.seeds.tolist() == list(range(120))
    np.testing.assert_array_equal(batch.W[85], train(sets[2], seeds=85, **options).W[0])
    np.testing.assert_array_equal(batch.W[40:42], train(sets, seeds=[40, 41], **options).W[2:4])


def test_training_goes_on_when_softmax_has_rounded_to_one():
    """The margin over the norm keeps growing while the probabilities of step 1,000 and later are exactly 1."""
    run = train(DATA, record=[1000, 4000])
    sure = run.probabilities.max(-1).min((2, 3))[0]
    assert sure[1] == 1.0

    def margin(s):
        logits = np.sort(np.einsum("ntk,kq,nmq->nmt", DATA.tokens, run.W[0, s], DATA.queries), axis=-1)
        return (logits[..., -1] - logits[..., -2]).min() / run.norms[0, s]

    assert margin(1) > margin(0)


def test_what_is_recorded():
    run = train(DATA, form="KQ", inner_dim=2, steps=70, record=8, seeds=[0, 1])
    assert run.steps[0] == 0
    assert run.steps[-1] == 70
    assert run.K.shape == run.Q.shape == (2, len(run.steps), 6, 2)
    np.testing.assert_allclose(run.W, run.K @ run.Q.swapaxes(-1, -2))
    np.testing.assert_allclose(run.norms, np.linalg.norm(run.W, axis=(2, 3)))
    np.testing.assert_allclose(run.probabilities, probabilities(DATA, run.W))
    h = (run.probabilities @ DATA.tokens @ DATA.value)[..., 0]
    np.testing.assert_allclose(run.loss, np.logaddexp(0, -DATA.labels[:, 0] * h).mean(-1))
    np.testing.assert_array_equal(run.chosen, run.probabilities.argmax(-1))
    assert run.final is not None
    assert "\n" not in repr(run)
    assert run.settings["log_regularization"] is None
    assert (run.stopped == -1).all()
    assert run.chosen_probability[:, -1].min() == run.probabilities[:, -1].max(-1).min()


def test_causal_sequences_with_padding():
    rng = np.random.default_rng(2)
    mask = np.array([[True] * 5, [True] * 3 + [False] * 2])
    data = TokenData.self_attention(
        rng.normal(size=(2, 5, 4)), query="all", causal=True, mask=mask, value=rng.normal(size=4)
    )
    run = train(data, steps=300, record=3)
    assert (run.chosen[:, :, 1, 3:] == -1).all()
    assert (run.chosen[0, -1, 0] <= np.arange(5)).all()
    assert np.isnan(run.chosen_probability[:, :, 1, 3:]).all()
    assert run.loss[0, -1] < run.loss[0, 0]


def test_rectangular_weights_and_callable_heads_per_data_set():
    def network(V, a):
        return jax.nn.relu(V @ a).sum()

    rng = np.random.default_rng(3)
    sets = [
        TokenData(
            rng.normal(size=(3, 4, 5)),
            rng.normal(size=(3, 2)),
            labels=[1, 1, -1],
            head=jax.tree_util.Partial(network, rng.normal(size=(6, 5))),
        )
        for _ in range(2)
    ]
    run = train(sets, form="KQ", record=[0, 40])
    assert run.K.shape == (2, 2, 5, 2)
    alone = train(sets[1], form="KQ", record=[0, 40])
    np.testing.assert_allclose(run.final[1], alone.final[0], rtol=1e-10)
    assert (run.loss[:, -1] < run.loss[:, 0]).all()


def test_stop_condition_freezes_runs_one_by_one():
    options = {"record": np.arange(0, 600, 20), "seeds": [0, 1, 2]}
    run = train(DATA, stop=SaturatedAt(0.9), **options)
    assert (run.stopped > 0).all()
    assert run.steps[-1] == run.stopped.max() < 580
    assert run.settings["stop"] == "SaturatedAt(probability=0.9)"
    free = train(DATA, **options)
    for r, step in enumerate(run.stopped):
        s = int(np.searchsorted(run.steps, step))
        np.testing.assert_allclose(run.W[r, : s + 1], free.W[r, : s + 1], rtol=1e-9)
        assert (run.W[r, s:] == run.W[r, s]).all()
        assert run.probabilities[r, s].max(-1).min() >= 0.9 > run.probabilities[r, s - 1].max(-1).min()


def test_a_second_call_and_another_learning_rate_do_not_compile():
    train(DATA, steps=3)
    before = _advance._cache_size()
    train(sphere(9), steps=50, learning_rate=0.01, seeds=4)
    train(DATA, steps=50, optimizer=NormalizedGD(0.5), initial=np.eye(6))
    assert _advance._cache_size() == before


def test_save_and_load(tmp_path):
    run = train([DATA, sphere(1)], form="KQ", steps=20, record=3, initial=(np.eye(6), np.eye(6)), seeds=[1, 2])
    back = Trajectory.load(run.save(tmp_path / "run.npz"))
    for name in ("steps", "run_data", "seeds", "stopped", "W", "K", "Q", "loss", "probabilities", "chosen", "norms"):
        np.testing.assert_array_equal(getattr(back, name), getattr(run, name))
    assert back.settings == run.settings
    np.testing.assert_array_equal(back.data[1].value, run.data[1].value)
    assert repr(back) == repr(run)
    with pytest.raises(InputError, match=r"\.npz"):
        run.save(tmp_path / "run.json")
    np.savez(tmp_path / "other.npz", a=1)
    with pytest.raises(InputError, match="not a trajectory"):
        Trajectory.load(tmp_path / "other.npz")


def test_flat_loss_stays_put():
    run = train(DATA, head=lambda a: 0.0 * a.sum(), steps=5, record=2)
    np.testing.assert_array_equal(run.W[:, 0], run.final)


def test_numbers_that_are_not_finite_are_an_error_naming_run_and_step():
    with pytest.raises(TrainingError, match=r"weights of run 0 \(data set 0\).*step \d+"):
        train(DATA, head=lambda a: jnp.sqrt(-1.0 - (a * a).sum()), steps=10)
    with pytest.raises(TrainingError, match="1 of 2 runs"):
        train([DATA, sphere(1, value=None, head=jnp.sum).with_value(np.full(6, 1e308))], loss="exponential", steps=10)


def test_progress_bar(capsys):
    train(DATA, steps=5, record=2, progress=True)
    assert "training" in capsys.readouterr().err
    train(DATA, steps=5, record=2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "QK"}, "form"),
        ({"optimizer": "newton"}, "normalized_gd"),
        ({"optimizer": GD(), "learning_rate": 0.1}, "set it in the object"),
        ({"learning_rate": -1.0}, "positive"),
        ({"learning_rate": np.nan}, "positive"),
        ({"steps": 0}, "steps"),
        ({"regularization": -1.0}, "λ"),
        ({"regularization": 0.1, "log_regularization": -1.0}, "not both"),
        ({"log_regularization": -np.inf}, "finite"),
        ({"seeds": 1.5}, "seeds"),
        ({"seeds": -1}, "non-negative"),
        ({"seeds": [[1], [2]]}, "one row per data set"),
        ({"initial": "normal"}, "uniform"),
        ({"initial": "zeros", "form": "KQ"}, "stationary"),
        ({"initial": np.zeros((5, 5))}, "expected"),
        ({"initial": np.zeros((3, 6, 6)), "seeds": [1, 2]}, "expected 2"),
        ({"initial": (np.eye(6), np.eye(6))}, "one array"),
        ({"initial": (np.eye(6), np.eye(6)), "form": "KQ", "inner_dim": 3}, "drop inner_dim"),
        ({"inner_dim": 2}, "KQ"),
        ({"inner_dim": 0, "form": "KQ"}, "positive"),
        ({"record": "all"}, "record"),
        ({"record": 1}, "at least 2"),
        ({"record": [-1, 5]}, "non-negative"),
        ({"record": [10], "steps": 5}, "beyond the last step"),
        ({"loss": "hinge"}, "loss"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(InputError, match=message):
        train(DATA, **options)


def test_bad_data():
    with pytest.raises(InputError, match="Pad the shorter"):
        train([DATA, sphere(1, T=4)])
    with pytest.raises(InputError, match="non-empty"):
        train([])
    with pytest.raises(InputError, match="no prediction head"):
        train(TokenData(np.ones((1, 2, 3)), np.ones((1, 2))))
