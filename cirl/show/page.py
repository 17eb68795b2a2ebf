"""The report as one self-contained page: the scoreboard of claims, then every item with its caption and coverage."""

import base64
import io
import re
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import mistune
import pandas as pd
from jinja2 import Environment
from markupsafe import Markup
from PIL import Image

from cirl import paths
from cirl.show import claims, tables
from cirl.study import catalog, records, studies

MOST_REAL = ("paper", "lite", "digits", "tiny")  # the order in which the page over all studies looks for records
GROUPS = {"The paper": ("figure", "table"), "Beyond the paper": ("methods", "curves"), "Audits": ("audit",)}
_FROM_MARKDOWN = mistune.create_markdown(plugins=["table"])  # html in the text is escaped


@dataclass(frozen=True)
class Section:
    """An item on the page."""

    stem: str
    title: str
    study: str  # named if the page is over all studies
    image: str  # png, base64
    text: Markup
    missing: list[str]


def page(study: str | None = None) -> str:
    """The html of a study's report, or of the report that shows each item from the most real study with records."""
    chosen = {stem: study or most_real(stem) for stem in catalog.ITEMS}
    chosen = {stem: name for stem, name in chosen.items() if name and catalog.has(name, stem) and stem != "claims"}
    found = [verdict for name in dict.fromkeys(chosen.values()) for verdict in _verdicts(name, chosen)]
    groups: dict[str, list[Section]] = {}
    for stem, name in chosen.items():
        groups.setdefault(_group(stem), []).append(_section(stem, name, study is None))
    return (
        Environment(autoescape=True, trim_blocks=False)
        .from_string(_template())
        .render(
            title=f"CIRL: figures and tables of the study {study}" if study else "CIRL: figures and tables",
            about=f"{studies.study(study).label.replace('`', '')}." if study else _about(chosen),
            provenance=_provenance(chosen),
            score=claims.counts(found).capitalize(),
            scoreboard=_html(tables.markdown(claims.scoreboard(found))),
            groups=groups,
        )
    )


def most_real(stem: str) -> str | None:
    """The most real study that has half of an item's runs recorded, otherwise the one with the largest share.

    A drawing without runs is taken from the embedded data."""
    having = [name for name in MOST_REAL if catalog.has(name, stem)]
    if catalog.ITEMS[stem].rows is None:
        return having[-1] if having else None
    runs = {name: {run.id for run in catalog.expected(stem, name)} for name in having}
    shares = {name: len(records.recorded(ids)) / len(ids) for name, ids in runs.items()}
    return next(
        (name for name, share in shares.items() if share >= 0.5),
        max(shares, key=shares.__getitem__, default=None),
    )


def _template():
    return Path(__file__).with_name("page.html").read_text(encoding="utf-8")


def _group(stem):
    return next((name for name, starts in GROUPS.items() if stem.startswith(starts)), "Tour and benchmark")


def _verdicts(name, chosen):
    """The verdicts of a study on the claims whose item the page shows from this study."""
    return [verdict for verdict in claims.verdicts(name) if any(chosen.get(item) == name for item in verdict.items)]


def _section(stem, name, named):
    title, place = catalog.title(stem, name), paths.FIGURES / name
    file = place / f"{stem}.md"
    if not file.exists():
        ids = {run.id for run in catalog.expected(stem, name)}
        why = "No records." if ids and not records.recorded(ids) else "Not rendered yet."
        return Section(stem, title, "", "", Markup(f"<p>{why}</p>"), [])
    text = file.read_text(encoding="utf-8")
    missing = re.search(r"^Missing runs: (.*)$", text, re.M)
    text = text.replace(missing[0], "") if missing else text
    runs = re.findall(r"`([^`]+)`", missing[1]) if missing else []
    return Section(stem, title, name if named else "", _image(place / f"{stem}.png"), _html(text), runs)


def _image(file):
    """A png with 256 colours, a third of the bytes, as base64; empty if there is none."""
    if not file.exists():
        return ""
    buffer = io.BytesIO()
    with Image.open(file) as picture:
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(buffer, "png", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def _html(text):
    """Markdown as html: wide tables scroll, rows without a number of ours are dimmed."""
    html = str(_FROM_MARKDOWN(text)).replace("<table>", '<div class="wide" tabindex="0"><table>')
    html = html.replace("</table>", "</table></div>")
    cell = r"<td[^>]*>(?:(?!</td>).)*</td>"
    return Markup(re.sub(rf"<tr>(?=\s*{cell}\s*<td[^>]*>{tables.UNKNOWN})", '<tr class="dim">', html, flags=re.S))


def _about(chosen):
    shown = [name for name in MOST_REAL if name in chosen.values()]
    labels = [f"{name}: {studies.study(name).label.replace('`', '')}" for name in shown]
    return "Each item is shown from the most real study that has records for it. " + "; ".join(labels) + "."


def _provenance(chosen):
    """How many runs the items rest on, their code, and the packages."""
    expected = dict.fromkeys(run for stem, name in chosen.items() for run in catalog.expected(stem, name))
    runs = records.load_runs({"all": list(expected)})
    commits = ", ".join(sorted(runs["commit"].astype(str).unique())) if len(runs) else "none"
    minutes = pd.to_numeric(runs["seconds"]).sum() / 60 if len(runs) else 0
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "torchvision", "grad-cam"))
    return (
        f"{records.coverage(runs)}, {minutes:.0f} minutes of training. Code of the runs: {commits}. {packages}. "
        "Accuracies are of the epoch chosen by source validation, unless a rule is named."
    )
