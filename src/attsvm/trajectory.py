"""What training leaves behind: the weights at the recorded steps and everything read off them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from attsvm import attention
from attsvm.data import TokenData
from attsvm.errors import InputError
from attsvm.prediction import Heads, Loss

Array = np.ndarray
_ARRAYS = ("steps", "run_data", "seeds", "stopped", "W", "K", "Q", "loss", "probabilities", "chosen", "norms")


@dataclass(frozen=True, eq=False)
class Trajectory:
    """R training runs at S recorded steps; n examples, m queries each, T tokens.

    Attributes:
        form: `"W"` or `"KQ"`.
        steps: `(S,)`, the recorded steps; 0 is the initial weights.
        data: the data sets; `run_data` `(R,)` says which one each run was trained on.
        seeds: `(R,)`, the seed of each run's initial weights.
        stopped: `(R,)`, the step at which the stop condition held, after which a run's weights stay as they are;
            -1 for a run that took every step.
        W: `(R, S, d_k, d_q)`; in `(K, Q)` form `K Qᵀ`.
        K, Q: `(R, S, d_k, r)` and `(R, S, d_q, r)`, or None in W form.
        loss: `(R, S)`, the training loss without the regularisation term.
        probabilities: `(R, S, n, m, T)`, softmax over the visible tokens; zeros for padding queries.
        chosen: `(R, S, n, m)`, the token of largest logit, -1 for padding queries.
        norms: `(R, S)`, `‖W‖_F`.
        settings: what repeats the training, in plain words and numbers.
        seconds, compile_seconds: wall time of the training steps, and of compiling before them.
    """

    form: str
    steps: Int[Array, " S"]
    data: tuple[TokenData, ...]
    run_data: Int[Array, " R"]
    seeds: Int[Array, " R"]
    stopped: Int[Array, " R"]
    W: Float[Array, "R S d_k d_q"]
    K: Float[Array, "R S d_k r"] | None
    Q: Float[Array, "R S d_q r"] | None
    loss: Float[Array, "R S"]
    probabilities: Float[Array, "R S n m T"]
    chosen: Int[Array, "R S n m"]
    norms: Float[Array, "R S"]
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    compile_seconds: float = 0.0

    @property
    def runs(self) -> int:
        """Number of runs, R."""
        return len(self.seeds)

    @property
    def final(self) -> Float[Array, "R d_k d_q"]:
        """The weights `W` at the last step."""
        return self.W[:, -1]

    @property
    def chosen_probability(self) -> Float[Array, "R S n m"]:
        """At every recorded step, the softmax probability of the token that is chosen in the end; NaN for padding."""
        last = np.broadcast_to(self.chosen[:, -1:], self.chosen.shape)
        taken = np.take_along_axis(self.probabilities, np.maximum(last, 0)[..., None], axis=-1)[..., 0]
        return np.where(last < 0, np.nan, taken)

    def __repr__(self) -> str:
        shape = f"n={self.data[0].n}, m={self.data[0].m}, T={self.data[0].T}"
        ended = "" if (self.stopped < 0).all() else f", {int((self.stopped >= 0).sum())} stopped early"
        return (
            f"Trajectory({self.form}, {self.runs} runs on {len(self.data)} data sets ({shape}), "
            f"{len(self.steps)} records to step {self.steps[-1]}, mean loss {self.loss[:, -1].mean():.3g}{ended})"
        )

    def save(self, path: str | Path) -> Path:
        """Write everything to one `.npz`. Callable heads are code, and only their names are kept, in `settings`.

        Raises:
            InputError: another suffix.
        """
        path = Path(path)
        if path.suffix != ".npz":
            raise InputError(f"A trajectory is saved as .npz; got {path.name!r}.")
        arrays = {key: getattr(self, key) for key in _ARRAYS if getattr(self, key) is not None}
        for key, name in (("X", "tokens"), ("z", "queries"), ("y", "labels"), ("mask", "mask"), ("v", "value")):
            if getattr(self.data[0], name) is not None:
                arrays[key] = np.stack([getattr(one, name) for one in self.data])
        about = {"form": self.form, "settings": self.settings}
        about |= {"seconds": self.seconds, "compile_seconds": self.compile_seconds}
        np.savez(path, about=np.array(json.dumps(about)), **arrays)
        return path

    @classmethod
    def load(cls, path: str | Path) -> Trajectory:
        """Read what `save` wrote. Data sets trained with a callable head come back without it.

        Raises:
            InputError: no such file, or not a trajectory.
        """
        path = Path(path)
        if not path.is_file():
            raise InputError(f"There is no file {str(path)!r}.")
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {key: file[key] for key in file.files}
            about = json.loads(str(arrays["about"]))
            data = tuple(_data_set(arrays, i) for i in range(len(arrays["X"])))
            return cls(data=data, **{key: arrays.get(key) for key in _ARRAYS}, **about)
        except Exception as error:  # whatever a damaged file raises
            raise InputError(f"{path.name} is not a trajectory written by Trajectory.save: {error!r}.") from error


def _data_set(arrays: dict[str, Array], i: int) -> TokenData:
    value = arrays["v"][i] if "v" in arrays else None
    return TokenData(arrays["X"][i], arrays["z"][i], mask=arrays["mask"][i], labels=arrays["y"][i], value=value)


def observe(
    W: Float[Array, "R S d_k d_q"], data: tuple[TokenData, ...], run_data: Array, heads: Heads, loss: Loss
) -> dict[str, Array]:
    """`loss`, `probabilities`, `chosen` and `norms` of a `Trajectory` with these weights."""
    R, S = W.shape[:2]
    shape = (R, S, data[0].n, data[0].m, data[0].T)
    softmax, chosen = np.empty(shape), np.empty(shape[:-1], dtype=np.int64)
    pooled, labels = np.empty((*shape[:-1], data[0].d_k)), np.empty((R, 1, *shape[2:4]))
    weight = np.empty_like(labels)
    for i, one in enumerate(data):
        rows = run_data == i
        logits = attention.logits(one, W[rows])
        softmax[rows] = attention.softmax(logits)
        chosen[rows] = np.where(one.active, logits.argmax(-1), -1)
        pooled[rows] = softmax[rows] @ one.tokens
        labels[rows], weight[rows] = one.labels, one.active / one.n
    h = heads(pooled.reshape(R, -1, data[0].d_k)).reshape(shape[:-1])
    # A padding query's pooled token is zero, where a user's head may be undefined.
    per_query = np.where(weight > 0, loss.value(np.where(weight > 0, labels * h, 0.0)), 0.0)
    return {
        "loss": (weight * per_query).sum((2, 3)),
        "probabilities": softmax,
        "chosen": chosen,
        "norms": np.linalg.norm(W, axis=(2, 3)),
    }


__all__ = ["Trajectory", "observe"]
