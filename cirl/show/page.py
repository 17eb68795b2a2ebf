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


SCALE = 0.72  # pixels of the page per pixel of a png (150 a inch): type in figures is as large as in the text
WIDE = 700  # a figure wider than this scrolls on a small screen instead of shrinking


@dataclass(frozen=True)
class Section:
    """An item on the page."""

    stem: str
    title: str
    short: str  # in the navigation
    study: str  # named if the page is over all studies
    image: str  # png, base64
    width: int  # at which it is shown
    text: Markup
    missing: list[str]


def page(study: str | None = None) -> str:
    """The html of a study's report, or of the report that shows each item from the most real study with records."""
    studied = ((stem, study or most_real(stem)) for stem in catalog.ITEMS if stem != "claims")
    chosen = {stem: name for stem, name in studied if name and catalog.has(name, stem)}
    drawn = {stem: name for stem, name in chosen.items() if _is_drawn(stem, name)}
    groups: dict[str, list[Section]] = {}
    named = study is None  # say of each item and claim from which study it is
    for stem, name in drawn.items():
        groups.setdefault(_group(stem), []).append(_section(stem, name, named))
    found = [verdict for name in dict.fromkeys(chosen.values()) for verdict in _verdicts(name, chosen)]
    shown = dict(
        title=f"CIRL: figures and tables of the study {study}" if study else "CIRL: figures and tables",
        about=_about([study] if study else drawn.values()),
        provenance=_provenance(chosen),
        score=claims.counts(found),
        scoreboard=_scoreboard([verdict for verdict in found if verdict.n], named),
        without_runs=_scoreboard([verdict for verdict in found if not verdict.n], named),
        groups=groups,
        waiting=[
            (stem, catalog.title(stem, name), _why(stem, name))
            for stem, name in chosen.items()
            if stem not in drawn and not (catalog.ITEMS[stem].rows is None and _is_drawn(stem, "tiny"))  # drawn once
        ],
        wide=WIDE,
    )
    return Environment(autoescape=True, trim_blocks=False).from_string(_template()).render(shown)


def most_real(stem: str) -> str | None:
    """The most real study that has measured the item's claim or recorded half of its runs; else that with most of them.

    Only studies that have drawn the item count, if there are any. An item that shows embedded data alone, in every
    study, is taken from the last of them."""
    having = [name for name in MOST_REAL if catalog.has(name, stem)]
    having = [name for name in having if _is_drawn(stem, name)] or having
    runs = {name: catalog.expected(stem, name) for name in having}
    if all(run.dataset == "tiny" for some in runs.values() for run in some):
        return having[-1] if having else None
    shares = {name: len(records.recorded({run.id for run in some})) / len(some) for name, some in runs.items()}
    return next(
        (name for name, share in shares.items() if share >= 0.5 or (share and _is_measured(stem, name))),
        max(shares, key=shares.__getitem__, default=None),
    )


def _is_measured(stem, name):
    """Whether the first claim about the item's runs has been measured on every target."""
    runs = catalog.expected(stem, name)
    item = next((claim.item for claim in claims.claims(name) if catalog.expected(claim.item, name) == runs), None)
    return item is not None and claims.verdicts(name, item)[0].n >= len({run.target for run in runs})


def _template():
    return Path(__file__).with_name("page.html").read_text(encoding="utf-8")


def _group(stem):
    return next((name for name, starts in GROUPS.items() if stem.startswith(starts)), "Tour and benchmark")


def _verdicts(name, chosen):
    """The verdicts of a study on the claims whose item the page shows from this study."""
    return [verdict for verdict in claims.verdicts(name) if any(chosen.get(item) == name for item in verdict.items)]


def _is_drawn(stem, name):
    return (paths.FIGURES / name / f"{stem}.md").exists()


def _why(stem, name):
    """Why an item is not on the page."""
    ids = {run.id for run in catalog.expected(stem, name)}
    return "no records" if ids and not records.recorded(ids) else "not rendered yet"


def _section(stem, name, named):
    title, place = catalog.title(stem, name), paths.FIGURES / name
    text = (place / f"{stem}.md").read_text(encoding="utf-8")
    missing = re.search(r"^<details><summary>Missing runs.*?</details>$", text, re.M | re.S)
    text = text.replace(missing[0], "") if missing else text
    runs = re.findall(r"`([^`]+)`", missing[0]) if missing else []
    text = text.removeprefix(f"**{title}.** ").replace(
        f"Study `{name}`: {studies.study(name).label}.", ""
    )  # said above
    short = catalog.ITEMS[stem].title.split(": ")[-1]
    image, width = _image(place / f"{stem}.png")
    return Section(stem, title, short[0].upper() + short[1:], name if named else "", image, width, _html(text), runs)


def _image(file):
    """A png with 256 colours, a third of the bytes, as base64, and the width to show it at; empty if there is none."""
    if not file.exists():
        return "", 0
    buffer = io.BytesIO()
    with Image.open(file) as picture:
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(buffer, "png", optimize=True)
        return base64.b64encode(buffer.getvalue()).decode(), round(SCALE * picture.width)


def _html(text):
    """Markdown as html: wide tables scroll, rows without a number of ours are dimmed."""
    html = re.sub(r"<table>.*?</table>", _dimmed, str(_FROM_MARKDOWN(text)), flags=re.S)
    return Markup(
        html.replace("<table>", '<div class="wide" tabindex="0"><table>').replace("</table>", "</table></div>")
    )


def _dimmed(table):
    """A table whose rows without a number of ours have the class `dim`; the first column is the row's name."""
    head, *rows = re.findall(r"<tr>.*?</tr>", table[0], re.S)
    ours = [not word.startswith("paper") for word in re.findall(r"<th[^>]*>(.*?)</th>", head, re.S)]
    html = table[0]
    for row in rows:
        cells = re.findall(r"<td[^>]*>(.*?)</td>", row, re.S)
        kept = [cell for cell, own in zip(cells[1:], ours[1:], strict=True) if own]
        if kept and all(cell.startswith(tables.UNKNOWN) for cell in kept):
            html = html.replace(row, row.replace("<tr>", '<tr class="dim">', 1), 1)
    return html


def _scoreboard(found, named):
    return _html(tables.markdown(claims.scoreboard(found, named))) if found else ""


def _about(names):
    """What the studies are that the page shows."""
    labels = {name: studies.study(name).label.replace("`", "") for name in MOST_REAL if name in names}
    if len(labels) == 1:
        (label,) = labels.values()
        return f"{label[0].upper()}{label[1:]}."
    said = "; ".join(f"{name} ({label})" for name, label in labels.items())
    return f"Each item is shown from the most real study that has records for it. Studies: {said}."


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
