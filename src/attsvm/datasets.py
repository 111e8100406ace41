"""Data by name and seed: the laws of the paper, the paper's own numbers, and handwritten digits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from importlib import resources
from inspect import signature
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float

from attsvm.data import TokenData
from attsvm.errors import InputError

Array = np.ndarray

PAPER = ("paths-1", "paths-2", "local")
PATCH, STRIDE, INK = 4, 2, 16.0  # 4 x 4 windows, every second pixel; grey levels run from 0 to 16
TIE = 1e-9  # scores are of order one; the closest two patches that differ are 3.6e-7 apart
RIDGE = 1.0  # on sums over all patches: only steadies pixels that are blank in every image


def sphere(n: int, T: int, d: int, *, seed: int, labels: str = "fair") -> TokenData:
    """The common law of the experiments of arXiv 2308.16898: everything uniform on the unit sphere.

    Value vector v, tokens `x_it` and queries `z_i` are independent and uniform on the unit sphere of R^d, drawn in this
    order and before the labels. The paper's study of local convergence has n, T, d = 6, 8, 10. Almost all such data are
    separable once `d >= max(T - 1, n)`; below that many are not, and none is left out here.

    Args:
        n: examples.
        T: tokens per example.
        d: width of tokens and queries.
        seed: of NumPy's default generator.
        labels: `"fair"`, `Y_i = ±1` with equal chance, or `"ones"`, `Y_i = +1`.

    Returns:
        Tokens `(n, T, d)`, queries `(n, d)`, labels `(n,)`, value `(d,)`.

    Raises:
        InputError: a size below 1, a seed that is no non-negative integer, or another word for the labels.
    """
    n, T, d = _sizes(n=n, T=T, d=d)
    if labels not in ("fair", "ones"):
        raise InputError(f'labels must be "fair" (±1 with equal chance) or "ones"; got {labels!r}.')
    rng = _generator(seed)
    v, x, z = _on_sphere(rng, d), _on_sphere(rng, n, T, d), _on_sphere(rng, n, d)
    y = rng.choice([-1.0, 1.0], size=n) if labels == "fair" else np.ones(n)
    source = f"sphere(n={n}, T={T}, d={d}, labels={labels!r}, seed={int(seed)})"
    return TokenData(x, z, labels=y, value=v, source=source)


def paths(number: int, *, seed: int) -> TokenData:
    """The planar examples whose optimisation paths arXiv 2308.16898 draws: n = 2, d = 2, all Y = +1.

    - `number=1`: T = 3, tokens `x_1t = (-1, 0) + 0.3 g` and `x_2t = (1, 0) + 0.3 g` with standard Gaussian g.
    - `number=2`: T = 5, optimal tokens (1, 0.5) and (1, -0.5), all others `(-1, 0) + 0.5 g`. Draws in which v prefers
      another token are thrown away and made again, from the same stream.

    Value vector and queries are uniform on the unit circle. The very numbers behind the figures are `paper("paths-1")`
    and `paper("paths-2")`.

    Returns:
        Tokens `(2, T, 2)`, queries `(2, 2)`, labels `(2,)`, value `(2,)`.

    Raises:
        InputError: a number other than 1 and 2, or a seed that is no non-negative integer.
    """
    if number not in (1, 2):
        raise InputError(f"paths come as number 1 and 2; got {number!r}.")
    rng = _generator(seed)
    x, v = _paths_1(rng) if number == 1 else _paths_2(rng)
    return TokenData(x, _on_sphere(rng, 2, 2), value=v, source=f"paths-{number}(seed={int(seed)})")


def orthonormal(n: int, T: int, d: int, *, seed: int) -> TokenData:
    """Orthonormal tokens, for the head `h(a) = vᵀa - λ‖a‖²` with which arXiv 2308.16898 makes attention choose several.

    The tokens of each example are T orthonormal vectors of R^d, uniformly distributed (Haar); v and the queries are
    uniform on the unit sphere; all Y = +1. On such tokens the best attention for that head has the closed form
    `sparsemax(Xv / 2λ)`, so the number of chosen tokens grows with λ. `value` carries v, the head's linear part.

    Returns:
        Tokens `(n, T, d)`, queries `(n, d)`, labels `(n,)`, value `(d,)`.

    Raises:
        InputError: T > d, a size below 1, or a seed that is no non-negative integer.
    """
    n, T, d = _sizes(n=n, T=T, d=d)
    if d < T:
        raise InputError(f"{T} orthonormal tokens need at least {T} dimensions; got d = {d}. Raise d or lower T.")
    rng = _generator(seed)
    v, z = _on_sphere(rng, d), _on_sphere(rng, n, d)
    Q, R = np.linalg.qr(rng.standard_normal((n, d, T)))
    frames = Q * np.sign(np.diagonal(R, axis1=1, axis2=2))[:, None, :]  # the sign that makes the law uniform
    return TokenData(frames.swapaxes(1, 2), z, value=v, source=f"orthonormal(n={n}, T={T}, d={d}, seed={int(seed)})")


def digits(*, classes: tuple[int, int] = (1, 7), n: int = 48, d_q: int = 8, seed: int = 0) -> TokenData:
    """Handwritten digits as patch tokens: real data that ship with scikit-learn, no network needed.

    Two classes of the 8 x 8 images, grey levels divided by 16. The whole image asks which of its patches to look at:

    - **Tokens**: the nine 4 x 4 windows at every second pixel, read row by row, less the mean patch (d_k = 16).
      Position is not encoded: a patch is known by its ink alone.
    - **Query**: the first `d_q` principal components of the image, scaled to variance `1 / d_q`: `‖z‖` is about 1.
    - **Labels**: +1 for `classes[0]`, -1 for `classes[1]`.
    - **Value**: v of the ridge regression of the label on a single patch, so that the optimal token is the patch that
      speaks most for the true class of the image.

    Mean patch, components and v are fitted on all images of the two classes and depend on neither n nor the seed. The
    seed shuffles the images of each class; classes alternate, so that `digits(n=48)` is the beginning of
    `digits(n=358)` and the rest of the latter is a held-out set. Many patches are blank, several in one image. Where
    they would be the best ones, the optimal token is a tie and the image is left out: one image in all, a 5 in the
    classes 4 and 5.

    The default has 384 rows and is separable in d_k x d_q = 128 dimensions. So is every n as long as a linear function
    of the query tells the classes apart: where all `Y_i cᵀz_i > 0`, the rank-one weight `v cᵀ` gives the optimal tokens
    the largest logits, though with a far smaller margin than the SVM's.

    Args:
        classes: two different digits.
        n: images, even, half of each class.
        d_q: width of the query, at most the rank of the images (at least 38 for any two classes).
        seed: of the shuffling.

    Returns:
        Tokens `(n, 9, 16)`, queries `(n, d_q)`, labels `(n,)`, value `(16,)`.

    Raises:
        InputError: classes that are no two digits, an odd n or more images than there are, a d_q out of range.
    """
    n, d_q = _sizes(n=n, d_q=d_q)
    rng, (images, y) = _generator(seed), _two_classes(classes)
    tokens = _patches(images)
    queries, value = _components(images.reshape(len(images), -1), d_q), _readout(tokens, y)
    second, best = np.partition(y[:, None] * (tokens @ value), -2, axis=1)[:, -2:].T
    sides = [rng.permutation(np.flatnonzero((y == side) & (best - second > TIE))) for side in (1.0, -1.0)]
    most = 2 * min(map(len, sides))
    if n % 2 or n > most:
        raise InputError(f"n must be even, half of each class, and at most {most} for these classes; got {n}.")
    pick = np.stack([side[: n // 2] for side in sides], axis=1).ravel()
    source = f"digits(classes={tuple(int(c) for c in classes)}, n={n}, d_q={d_q}, seed={int(seed)})"
    return TokenData(tokens[pick], queries[pick], labels=y[pick], value=value, source=source)


LAWS: Mapping[str, Callable[..., TokenData]] = MappingProxyType(
    {
        "sphere": sphere,
        "paths-1": partial(paths, 1),
        "paths-2": partial(paths, 2),
        "orthonormal": orthonormal,
        "digits": digits,
    }
)


def make(law: str, *, seed: int, **sizes: Any) -> TokenData:
    """Data by the name of their law: `make("sphere", n=6, T=8, d=10, seed=3)`.

    Args:
        law: a key of `LAWS`.
        seed: non-negative integer; the law and the seed are written in `TokenData.source`.
        **sizes: the law's own arguments.

    Raises:
        InputError: no such law, or arguments it does not take.
    """
    if law not in LAWS:
        raise InputError(f"There is no data law {law!r}; there are {', '.join(LAWS)}.")
    form = signature(LAWS[law])
    try:
        form.bind(seed=seed, **sizes)
    except TypeError as error:
        raise InputError(f"The law {law!r} takes {form}; it was given {sorted(sizes)} ({error}).") from error
    return LAWS[law](seed=seed, **sizes)


def make_many(law: str, seeds: Iterable[int], **sizes: Any) -> list[TokenData]:
    """One data set per seed, each as `make` gives it.

    Raises:
        InputError: as in `make`.
    """
    return [make(law, seed=seed, **sizes) for seed in seeds]


def paper(name: str) -> TokenData | list[TokenData]:
    """The numbers that the program published with arXiv 2308.16898 draws, for figures on the very same data.

    Args:
        name: `"paths-1"` (n, T, d = 2, 3, 2) or `"paths-2"` (2, 5, 2): one data set; `"local"`: a list of 100 data sets
            of n, T, d = 6, 8, 10.

    Returns:
        Tokens, queries, labels and value as published, in float32, widened to float64.

    Raises:
        InputError: another name.
    """
    if name not in PAPER:
        raise InputError(f"The paper's own data are {', '.join(PAPER)}; got {name!r}.")
    packaged = resources.files("attsvm") / "paper_data" / f"{name}.npz"
    with packaged.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
        X, z, y, v = (file[key] for key in "Xzyv")
    if X.ndim == 3:
        return TokenData(X, z, labels=y, value=v, source=f"paper({name!r})")
    return [TokenData(X[i], z[i], labels=y[i], value=v[i], source=f"paper({name!r})[{i}]") for i in range(len(X))]


def _sizes(**given: Any) -> tuple[int, ...]:
    for name, size in given.items():
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise InputError(f"{name} must be an integer of at least 1; got {size!r}.")
    return tuple(int(size) for size in given.values())


def _generator(seed: Any) -> np.random.Generator:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"seed must be a non-negative integer, so that the draw can be repeated; got {seed!r}.")
    return np.random.default_rng(int(seed))


def _on_sphere(rng: np.random.Generator, *shape: int) -> Array:
    g = rng.standard_normal(shape)
    return g / np.linalg.norm(g, axis=-1, keepdims=True)


def _paths_1(rng: np.random.Generator) -> tuple[Array, Array]:
    x = np.array([[[-1.0, 0.0]], [[1.0, 0.0]]]) + 0.3 * rng.standard_normal((2, 3, 2))
    return x, _on_sphere(rng, 2)


def _paths_2(rng: np.random.Generator) -> tuple[Array, Array]:
    first = np.array([[[1.0, 0.5]], [[1.0, -0.5]]])
    while True:
        others = np.array([-1.0, 0.0]) + 0.5 * rng.standard_normal((2, 4, 2))
        v = _on_sphere(rng, 2)
        if (first @ v > others @ v).all():
            return np.concatenate([first, others], axis=1), v


@cache
def _all_digits() -> tuple[Array, Array]:
    from sklearn.datasets import load_digits  # here, since importing scikit-learn takes half a second

    bunch: Any = load_digits()
    return bunch.images / INK, bunch.target


def _two_classes(classes: Any) -> tuple[Float[Array, "N 8 8"], Float[Array, " N"]]:
    pair = np.asarray(classes)
    if (
        pair.shape != (2,)
        or pair.dtype.kind not in "iu"
        or pair[0] == pair[1]
        or not np.isin(pair, np.arange(10)).all()
    ):
        raise InputError(f"classes must be two different digits from 0 to 9, such as (1, 7); got {classes!r}.")
    images, target = _all_digits()
    kept = np.isin(target, pair)
    return images[kept], np.where(target[kept] == pair[0], 1.0, -1.0)


def _patches(images: Float[Array, "N 8 8"]) -> Float[Array, "N 9 16"]:
    windows = np.lib.stride_tricks.sliding_window_view(images, (PATCH, PATCH), axis=(1, 2))[:, ::STRIDE, ::STRIDE]
    patches = windows.reshape(len(images), -1, PATCH * PATCH)
    return patches - patches.mean((0, 1))


def _components(pixels: Float[Array, "N 64"], count: int) -> Float[Array, "N count"]:
    """Leading principal components, each of variance `1 / count`; the sign makes the largest loading positive."""
    centred = pixels - pixels.mean(0)
    _, sigma, Vt = np.linalg.svd(centred, full_matrices=False)
    rank = int(np.sum(sigma > 1e-10 * sigma[0]))
    if count > rank:
        raise InputError(f"These images have {rank} principal components; d_q = {count} is more. Lower d_q.")
    axes = Vt[:count]
    axes = axes * np.sign(np.take_along_axis(axes, np.abs(axes).argmax(1)[:, None], axis=1))
    return centred @ axes.T * np.sqrt(len(pixels) / count) / sigma[:count]


def _readout(patches: Float[Array, "N 9 16"], y: Float[Array, " N"]) -> Float[Array, " 16"]:
    """Ridge regression of the image's label on one patch."""
    A, b = patches.reshape(-1, patches.shape[-1]), np.repeat(y, patches.shape[1])
    return np.linalg.solve(A.T @ A + RIDGE * np.eye(A.shape[1]), A.T @ b)
