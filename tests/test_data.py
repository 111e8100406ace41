"""TokenData: canonical form, self-attention, ragged examples, files, and an error for every unusable input."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attsvm import InputError, Selection, TokenData, load

RNG = np.random.default_rng(0)
X, Z = RNG.standard_normal((3, 4, 5)), RNG.standard_normal((3, 2))


def small(**rest):
    return TokenData(X, Z, **rest)


def test_canonical_form():
    data = small(labels=[1, -1, 2.5], value=np.ones(5, dtype=np.float32))
    assert (data.n, data.m, data.T, data.d_k, data.d_q) == (3, 1, 4, 5, 2)
    assert data.queries.shape == (3, 1, 2)
    assert data.mask.shape == (3, 1, 4)
    assert data.mask.all()
    assert data.labels.tolist() == [[1.0], [-1.0], [2.5]]
    arrays = (data.tokens, data.queries, data.labels, data.value)
    assert all(a is not None and a.dtype == np.float64 for a in arrays)


def test_defaults_are_positive_labels_and_no_head():
    data = small()
    assert (data.labels == 1).all()
    assert data.value is None
    assert data.head is None
    assert "head=none" in repr(data)


def test_labels_and_masks_spread_over_the_queries_of_an_example():
    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]], dtype=bool)
    data = TokenData(X, np.ones((3, 2, 6)), labels=[1, -1, 1], mask=mask)
    assert data.labels.tolist() == [[1, 1], [-1, -1], [1, 1]]
    assert np.array_equal(data.mask, np.stack([mask, mask], axis=1))


def test_arrays_are_copies_and_read_only():
    x, mask = X.copy(), np.ones((3, 4), dtype=bool)
    data = TokenData(x, Z, mask=mask)
    x[:], mask[:] = 7.0, False
    assert np.array_equal(data.tokens, X)
    assert data.mask.all()
    for array in (data.tokens, data.queries, data.mask, data.labels):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_frozen_and_replaceable():
    data = small(labels=[1, -1, 1])
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.tokens = X  # type: ignore[misc]
    again = dataclasses.replace(data, value=np.ones(5))
    assert again.value is not None
    assert np.array_equal(again.labels, data.labels)


def test_with_value_says_that_the_source_no_longer_tells_all():
    data = small(source="made").with_value(np.ones(5))
    assert data.source == "made, value replaced"
    assert small().with_value(np.ones(5)).source is None


@pytest.mark.parametrize("kind", [list, np.float32, np.int64, np.bool_])
def test_any_real_kind_of_number_is_taken(kind):
    values = np.array([[[0, 1], [1, 0]]])
    given = values.tolist() if kind is list else values.astype(kind)
    assert np.array_equal(TokenData(given, [[1, 2, 3]]).tokens, values)


def test_jax_arrays_are_taken():
    jnp = pytest.importorskip("jax.numpy")
    data = TokenData(jnp.asarray(X, dtype=jnp.bfloat16), jnp.asarray(Z))
    assert data.tokens.dtype == np.float64
    assert np.abs(data.tokens - X).max() < 0.02


HEAD = lambda a: a.sum()  # noqa: E731
BAD = {
    "flat tokens": ({"tokens": X[0]}, "tokens: got (4, 5), expected shape (n, T, d_k)"),
    "empty tokens": ({"tokens": np.zeros((3, 0, 5))}, "no axis empty"),
    "text": ({"tokens": np.full((3, 4, 5), "1")}, "tokens must be an array of real numbers"),
    "complex": ({"tokens": X + 1j}, "tokens must be an array of real numbers"),
    "jagged": ({"tokens": [[[1.0]], [[1.0, 2.0]]]}, "tokens must be an array of real numbers"),
    "nothing": ({"tokens": None}, "tokens: got (), expected"),
    "nan": ({"tokens": np.where(np.arange(5) == 2, np.nan, X)}, "12 NaN or infinite entries, the first at (0, 0, 2)"),
    "inf query": ({"queries": Z * np.inf}, "queries has 6 NaN or infinite"),
    "flat query": ({"queries": Z[:, 0]}, "queries: got (3,), expected shape (n, d_q) or (n, m, d_q)"),
    "other n": ({"queries": Z[:2]}, "expected one entry per example, n = 3"),
    "number mask": ({"mask": np.ones((3, 4))}, "mask must be boolean"),
    "mask shape": ({"mask": np.ones((4, 3), dtype=bool)}, "mask: got (4, 3), expected (3, 4) or (3, 1, 4)"),
    "labels": ({"labels": [1, 1]}, "labels: got (2,), expected (3,) or (3, 1)"),
    "label nan": ({"labels": [1, np.nan, 1]}, "labels has 1 NaN or infinite"),
    "value width": ({"value": np.ones(2)}, "value: got (2,), expected (5,)"),
    "value nan": ({"value": np.full(5, np.nan)}, "value has 5 NaN"),
    "both heads": ({"value": np.ones(5), "head": HEAD}, "Both value and head"),
}


@pytest.mark.parametrize("case", BAD)
def test_unusable_input_is_named(case):
    change, message = BAD[case]
    arguments = {"tokens": X, "queries": Z} | change
    with pytest.raises(InputError) as error:
        TokenData(arguments.pop("tokens"), arguments.pop("queries"), **arguments)
    assert message in str(error.value)


def test_hidden_entries_may_hold_anything():
    x, z, y = X.copy(), RNG.standard_normal((3, 2, 2)), np.ones((3, 2))
    mask = np.ones((3, 2, 4), dtype=bool)
    mask[0, :, 3], mask[1, 1, :] = False, False
    x[0, 3], z[1, 1], y[1, 1] = np.nan, np.inf, np.nan
    data = TokenData(x, z, mask=mask, labels=y)
    assert (data.tokens[0, 3] == 0).all()
    assert (data.queries[1, 1] == 0).all()
    assert data.labels[1, 1] == 1
    assert data.active.tolist() == [[True, True], [True, False], [True, True]]


def test_ragged():
    parts = [RNG.standard_normal((length, 5)) for length in (2, 4, 1)]
    data = TokenData.from_ragged(parts, Z, labels=[1, -1, 1], value=np.ones(5), source="made")
    assert data.mask[:, 0].sum(-1).tolist() == [2, 4, 1]
    assert all(np.array_equal(data.tokens[i, : len(p)], p) for i, p in enumerate(parts))
    assert data.source == "made"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "tokens is empty"),
        ([np.ones((2, 5)), np.ones((2, 4))], "tokens: got widths [4, 5], expected one common width"),
        ([np.ones((2, 5)), np.ones((0, 5))], "tokens[1]: got (0, 5)"),
        ([np.ones(5)], "tokens[0]: got (5,)"),
    ],
)
def test_ragged_errors(parts, message):
    with pytest.raises(InputError) as error:
        TokenData.from_ragged(parts, Z[: max(1, len(parts))])
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("query", "positions"),
    [(-1, [3, 3, 3]), (0, [0, 0, 0]), ([0, 2, -2], [0, 2, 2]), ([[0, 1], [2, 3], [-4, -1]], [[0, 1], [2, 3], [0, 3]])],
)
def test_self_attention_asks_with_named_tokens(query, positions):
    data = TokenData.self_attention(X, query=query)
    expected = np.stack([X[i, p] for i, p in enumerate(np.reshape(positions, (3, -1)))])
    assert np.array_equal(data.queries, expected)
    assert data.mask.all()


def test_causal_sees_no_later_token():
    data = TokenData.self_attention(X, query="all", causal=True)
    assert np.array_equal(data.queries, X)
    assert np.array_equal(data.mask, np.broadcast_to(np.tri(4, dtype=bool), (3, 4, 4)))
    one = TokenData.self_attention(X, query=1, causal=True)
    assert one.mask[:, 0].tolist() == [[True, True, False, False]] * 3


def test_ragged_self_attention_asks_with_the_last_token_of_each_example():
    mask = np.arange(4) < np.array([2, 4, 3])[:, None]
    x = np.where(mask[:, :, None], X, np.nan)
    last = TokenData.self_attention(x, query=-1, mask=mask)
    assert np.array_equal(last.queries[:, 0], X[[0, 1, 2], [1, 3, 2]])
    every = TokenData.self_attention(x, query="all", causal=True, mask=mask)
    assert np.array_equal(every.mask, mask[:, None, :] & mask[:, :, None] & np.tri(4, dtype=bool))
    assert np.array_equal(every.active, mask)


def test_left_padding_counts_from_the_end_too():
    mask = np.arange(4) >= np.array([2, 0, 1])[:, None]
    assert np.array_equal(TokenData.self_attention(X, query=-2, mask=mask).queries[:, 0], X[:, 2])


def test_a_mask_per_query_joins_the_causal_rule():
    mask = np.ones((3, 4, 4), dtype=bool)
    mask[:, 3, 0] = False
    data = TokenData.self_attention(X, query="all", causal=True, mask=mask)
    assert np.array_equal(data.mask, mask & np.tri(4, dtype=bool))


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (4, "query positions must lie in [-4, 3]; got 4 to 4"),
        ([0, -5, 1], "query positions must lie in [-4, 3]; got -5 to 1"),
        ("last", "query: got 'last', expected \"all\" or token positions"),
        (1.0, "integer token positions; got dtype float64"),
        (True, "integer token positions; got dtype bool"),
        ([0, 1], "query: got (2,), expected one integer, (3,) or (3, m)"),
        (np.zeros((3, 0), dtype=int), "query: got (3, 0), expected at least one position"),
    ],
)
def test_self_attention_errors(query, message):
    with pytest.raises(InputError) as error:
        TokenData.self_attention(X, query=query)
    assert message in str(error.value)


@pytest.mark.parametrize("query", [3, -3])
def test_a_hidden_token_cannot_ask(query):
    mask = np.arange(4) < np.array([2, 4, 3])[:, None]
    with pytest.raises(InputError, match=r"Example 0 asks with token \d, which the mask hides; name a visible token"):
        TokenData.self_attention(X, query=query, mask=mask)


def same(a: TokenData, b: TokenData) -> bool:
    arrays = ("tokens", "queries", "mask", "labels", "value")
    return a.source == b.source and all(np.array_equal(getattr(a, k), getattr(b, k)) for k in arrays)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("source", [None, "sphere(n=3, seed=é)"])
def test_files_round_trip(tmp_path, suffix, source):
    mask = np.arange(4) < np.array([2, 4, 3])[:, None]
    data = TokenData.self_attention(X, query="all", mask=mask, labels=[1, -1, 1], value=np.arange(5.0), source=source)
    for chosen in (None, np.zeros((3, 4), dtype=int), data.mask):
        again, kept = load(data.save(tmp_path / f"data{suffix}", chosen=chosen))
        assert same(data, again)
        assert kept is None if chosen is None else np.array_equal(kept, chosen)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_selection_is_saved_as_booleans(tmp_path, suffix):
    sets = np.zeros((3, 1, 4), dtype=bool)
    sets[:, :, :2] = True
    _, kept = load(small().save(tmp_path / f"data{suffix}", chosen=Selection(sets)))
    assert np.array_equal(kept, sets)


def test_minimal_file_needs_tokens_and_queries_only(tmp_path):
    np.savez(tmp_path / "a.npz", X=X.astype(np.float32), z=Z)
    data, chosen = load(tmp_path / "a.npz")
    assert chosen is None
    assert np.array_equal(data.tokens, X.astype(np.float32))


def test_saving_errors(tmp_path):
    cases = [
        (small(), "a.csv", None, "use the suffix .npz or .safetensors"),
        (small(head=HEAD), "a.npz", None, "A callable head cannot be saved"),
        (small(), "a.npz", "optimal", "chosen must be token indices, booleans or a Selection"),
        (small(), "none/a.npz", None, "There is no folder"),
    ]
    for data, name, chosen, message in cases:
        with pytest.raises(InputError) as error:
            data.save(tmp_path / name, chosen=chosen)
        assert message in str(error.value)


def test_loading_errors(tmp_path):
    np.savez(tmp_path / "no-z.npz", X=X, Z=Z)
    np.savez(tmp_path / "labels.npz", X=X, z=Z, Y=np.ones(3))
    np.savez(tmp_path / "objects.npz", X=np.array([None, 1], dtype=object), z=Z)
    (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04 torn")
    (tmp_path / "torn.safetensors").write_bytes(b"torn")
    np.save(tmp_path / "one.npy", X)
    cases = {
        "absent.npz": "There is no file",
        "no-z.npz": "no-z.npz lacks the key(s) ['z']; it has ['X', 'Z']",
        "labels.npz": "['Y'], which differ from",
        "objects.npz": "objects.npz cannot be read",
        "torn.npz": "torn.npz cannot be read; expected an .npz or .safetensors file",
        "torn.safetensors": "torn.safetensors cannot be read",
        "one.npy": "one.npy cannot be read",
    }
    for name, message in cases.items():
        with pytest.raises(InputError) as error:
            load(tmp_path / name)
        assert message in str(error.value)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 99))
def test_ragged_equals_padding_by_hand(lengths, d_k, d_q, seed):
    rng = np.random.default_rng(seed)
    n, T = len(lengths), max(lengths)
    mask = np.arange(T) < np.array(lengths)[:, None]
    x, z = rng.standard_normal((n, T, d_k)), rng.standard_normal((n, d_q))
    ragged = TokenData.from_ragged([row[:length] for row, length in zip(x, lengths, strict=True)], z)
    assert same(ragged, TokenData(np.where(mask[:, :, None], x, np.nan), z, mask=mask))
