"""One HTML page that opens offline: the claims, then every experiment with its figures, settings, seeds and command."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plotly.io import to_html
from plotly.offline import get_plotlyjs

from attsvm.experiments.base import Claim, Experiment, Results, Verdict
from attsvm.experiments.show import measured, published

if TYPE_CHECKING:
    from attsvm.experiments.runner import Reproduction

STYLE = """
:root { color-scheme: light; --line: #ddd; --soft: #666; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
body { color: #1a1a1a; background: #fff; }
h1 { font-size: 1.6rem; } h2 { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1.5rem; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; }
th, td { text-align: left; vertical-align: top; padding: .4rem .6rem; border-bottom: 1px solid var(--line); }
td.number { font-variant-numeric: tabular-nums; }
code, pre { font: .85rem/1.4 ui-monospace, monospace; }
pre { background: #f6f6f6; padding: .7rem 1rem; overflow-x: auto; }
small, figcaption, .note { color: var(--soft); } figure { margin: 1.5rem 0; } figure svg { width: 100%; height: auto; }
.verdict { white-space: nowrap; font-weight: 600; }
.holds { color: #00694b; } .artefact { color: #8a5a00; } .unstated { color: #0072b2; } .fails { color: #b3261e; }
"""
CLASSES = {
    Verdict.HOLDS: "holds",
    Verdict.STRONGER: "holds",
    Verdict.ARTEFACT: "artefact",
    Verdict.UNSTATED: "unstated",
    Verdict.FAILS: "fails",
}


def write(path: Path, record: Mapping[str, Any], experiments: Sequence[Experiment], made: Reproduction) -> None:
    """Write the page beside the experiments' folders, whose SVG figures it takes in."""
    left = f"<p><b>Unfinished: {escape(', '.join(made.unfinished))}.</b></p>" if made.unfinished else ""
    body = [
        "<h1>Transformers as Support Vector Machines, reproduced</h1>",
        f"<p>Made in {made.wall:.0f} s by</p><pre>{escape(record['command'])}</pre>{left}",
        _claims(made.claims),
    ]
    for one in experiments:
        about = record["experiments"][one.id]
        body.append(_experiment(one, about, path.parent, made.seconds[one.id], made.results[one.id]))
    body.append(f"<h2>Versions</h2>{_pairs(record['versions'])}")
    script = f"<script>{get_plotlyjs()}</script>" if any(one.interactive for one in experiments) else ""
    head = f'<meta charset="utf-8"><title>attsvm reproduce</title><style>{STYLE}</style>{script}'
    page = f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(body) + "\n</body></html>\n"
    path.write_text(page, encoding="utf-8")


def _claims(claims: Sequence[Claim]) -> str:
    head = "".join(f"<th>{name}</th>" for name in ("claim", "published", "measured [95 % interval]", "verdict"))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(map(_row, claims))}</tbody></table>"


def _row(claim: Claim) -> str:
    note = f'<div class="note">{escape(claim.note)}</div>' if claim.note else ""
    name = f'<a href="#{escape(claim.experiment)}"><code>{escape(claim.experiment)}/{escape(claim.id)}</code></a>'
    cells = "".join(f'<td class="number">{escape(text)}</td>' for text in (published(claim), measured(claim)))
    verdict = f'<td class="verdict {CLASSES[claim.verdict]}">{escape(claim.verdict)}</td>'
    return f"<tr><td>{name}<br>{escape(claim.statement)}{note}</td>{cells}{verdict}</tr>\n"


def _experiment(
    experiment: Experiment, about: Mapping[str, Any], folder: Path, seconds: float, results: Results
) -> str:
    place = folder / experiment.id
    figures = "".join(_figure(file, experiment.id) for file in sorted(place.glob("*.svg")))
    for name, closer in (experiment.interactive(results) if experiment.interactive else {}).items():
        mark = f"{experiment.id}-{name}-closer"
        figures += f"<figure>{to_html(closer, include_plotlyjs=False, full_html=False, div_id=mark)}</figure>"
    files = sorted(file.name for file in place.iterdir() if file.suffix in (".parquet", ".npz", ".json"))
    links = ", ".join(f'<a href="{experiment.id}/{name}">{name}</a>' for name in files)
    paragraphs = "".join(f"<p>{escape(part)}</p>" for part in experiment.about.split("\n\n"))
    return (
        f'<h2 id="{experiment.id}">{escape(experiment.title)} <small>{experiment.id}, {seconds:.1f} s</small></h2>'
        f"{paragraphs}{figures}<h3>Settings and seeds</h3>{_pairs(about['spec'] | about['seeds'])}"
        f"<p>Data: {links}. Remake with</p><pre>{escape(about['command'])}</pre>"
    )


def _pairs(values: Mapping[str, Any]) -> str:
    rows = (f"<tr><th>{escape(str(key))}</th><td>{escape(str(value))}</td></tr>" for key, value in values.items())
    return f"<table>{''.join(rows)}</table>"


def _figure(file: Path, prefix: str) -> str:
    svg = file.read_text(encoding="utf-8")
    svg = svg[svg.index("<svg") :]
    mark = f"{prefix}-{file.stem}-"  # ids of several figures in one page must differ
    svg = re.sub(r'(\bid="|href="#|url\(#)', lambda found: found[0] + mark, svg)
    link = f'<a href="{prefix}/{file.stem}.png">PNG</a>'
    return f"<figure>{svg}<figcaption>{escape(file.stem)} ({link})</figcaption></figure>"
