"""Interactive figures for the report: a path with a slider over its steps, one point per run with its seed on hover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
import polars as pl
from jaxtyping import Float, Int
from plotly.graph_objects import Figure as Interactive

from attsvm import plots

Array = np.ndarray

POSITIONS = 60  # of the slider
DASHES = ("solid", "dash", "dot", "dashdot")


def paths(
    steps: Int[Array, " S"],
    curves: Mapping[str, Float[Array, "S 2"]],
    lines: Mapping[str, Float[Array, " 2"]],
    tokens: Float[Array, "n T 2"],
    view: float | int,
) -> Interactive:
    """Paths in the plane up to the step that a slider shows, the lines they turn to, and the tokens.

    Args:
        steps: recorded steps.
        curves: by name, those of one kind after another, one per query.
        lines: by name, directions, in the same order.
        tokens: of each query.
        view: half-width of the view at first; zooming shows the rest.
    """
    n, reach = len(tokens), max(float(np.abs(curve).max()) for curve in curves.values())
    still = [_dots(tokens[i], i) for i in range(n)] + [
        _line([[0.0, 0.0], (reach / np.linalg.norm(line) * line).tolist()], name, j % n, DASHES[2 + j // n])
        for j, (name, line) in enumerate(lines.items())
    ]
    figure = Interactive([*still, *_lines(curves, n)])
    figure.update_layout(_layout("", ""), sliders=[_slider(steps, curves, len(still))], height=620)
    figure.update_xaxes(range=[-view, view])
    figure.update_yaxes(range=[-view, view], scaleanchor="x")
    return figure


def runs(
    table: pl.DataFrame, x: str, y: str, by: str, hover: Sequence[str], *, log_x: bool = False, log_y: bool = False
) -> Interactive:
    """One point per run, coloured by a column, with its seed and what else is in `hover` under the pointer."""
    figure = Interactive()
    for j, (name, rows) in enumerate(table.partition_by(by, as_dict=True, maintain_order=True).items()):
        texts = [
            "<br>".join(f"{column}: {_word(row[column])}" for column in hover) for row in rows.iter_rows(named=True)
        ]
        marker = {"color": plots.COLOURS[j % len(plots.COLOURS)], "symbol": j % 6, "size": 7, "opacity": 0.75}
        figure.add_scatter(
            x=rows[x].to_list(),
            y=rows[y].to_list(),
            mode="markers",
            name=f"{by} {name[0]}",
            text=texts,
            hovertemplate=f"%{{text}}<br>{x}: %{{x:.4g}}<br>{y}: %{{y:.4g}}<extra></extra>",
            marker=marker,
        )
    figure.update_layout(_layout(x, y), height=480)
    figure.update_xaxes(type="log" if log_x else "linear", exponentformat="power")
    figure.update_yaxes(type="log" if log_y else "linear", exponentformat="power")
    return figure


def _layout(x: str, y: str) -> dict:
    return {
        "template": "plotly_white",
        "margin": {"l": 60, "r": 20, "t": 20, "b": 50},
        "xaxis": {"title": x},
        "yaxis": {"title": y},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
    }


def _slider(steps: Int[Array, " S"], curves: Mapping[str, Float[Array, "S 2"]], first: int) -> dict:
    """Cuts the curves, whose traces begin at `first`, off at a step."""
    traces = list(range(first, first + len(curves)))
    moves = []
    for to in np.unique(np.geomspace(1, len(steps), POSITIONS).astype(int)):
        cut = {axis: [curve[:to, j].tolist() for curve in curves.values()] for j, axis in enumerate("xy")}
        moves.append({"method": "restyle", "label": str(steps[to - 1]), "args": [cut, traces]})
    return {"steps": moves, "active": len(moves) - 1, "currentvalue": {"prefix": "step "}}


def _lines(curves: Mapping[str, Float[Array, "S 2"]], n: int) -> list[go.Scatter]:
    return [_line(curve, name, j % n, DASHES[j // n]) for j, (name, curve) in enumerate(curves.items())]


def _line(points: Float[Array, "S 2"] | list, name: str, query: int, dash: str) -> go.Scatter:
    x, y = np.asarray(points, dtype=float).T
    return go.Scatter(
        x=x.tolist(), y=y.tolist(), mode="lines", name=name, line={"color": plots.COLOURS[query], "dash": dash}
    )


def _dots(tokens: Float[Array, "T 2"], query: int) -> go.Scatter:
    return go.Scatter(
        x=tokens[:, 0].tolist(),
        y=tokens[:, 1].tolist(),
        mode="markers",
        name=f"tokens of example {query + 1}",
        marker={"color": plots.COLOURS[query], "size": 8, "symbol": "circle-open"},
    )


def _word(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
