"""The report of a study as one self-contained page: every item with its caption, coverage and claims."""

import base64
import io
from html import escape
from importlib.metadata import version

import mistune
import pandas as pd
from PIL import Image

from cirl import paths
from cirl.show import report
from cirl.study import catalog, records, studies

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #222; margin: 0; background: #fff; }
header, main { max-width: 60rem; margin: 0 auto; padding: 1rem; }
nav a { display: inline-block; margin: 0 .6rem .3rem 0; color: #0072B2; }
section { border-top: 1px solid #ddd; padding: 1rem 0; }
img { max-width: 100%; height: auto; display: block; margin: .5rem 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #eee; text-align: left; white-space: nowrap; }
ul { padding-left: 0; list-style: none; }
code { background: #f4f4f4; padding: 0 .2rem; overflow-wrap: anywhere; }
"""
MARKS = "<!-- findings: written by the notebook `report` -->", "<!-- end of findings -->"


def page(study: str) -> str:
    """The html of a study's report, images inside."""
    items = [item for owned in catalog.notebooks(study).values() for item in owned]
    items = sorted(items, key=_order)
    links = "".join(f'<a href="#{item}">{escape(report.title(item))}</a>' for item in items)
    sections = "".join(_section(item, study) for item in items)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>CIRL, study {escape(study)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{STYLE}</style></head><body><header><h1>CIRL: figures and tables of the study {escape(study)}</h1>"
        f"<p>{escape(studies.study(study).label.replace('`', ''))}.</p>{_provenance(study)}<nav>{links}</nav></header>"
        f"<main>{sections}</main></body></html>"
    )


def findings(study: str) -> str:
    """One line per audit that has been rendered: its finding, as its own md says it."""
    lines = []
    for item in (item for notebook in catalog.AUDITS for item in catalog.NOTEBOOKS[notebook]):
        file = paths.FIGURES / study / f"{item}.md"
        said = file.read_text().splitlines() if file.exists() else []
        finding = next((line.removeprefix(report.FINDING) for line in said if line.startswith(report.FINDING)), None)
        lines += [f"- [{report.title(item)}](figures/{study}/{item}.md): {finding}"] if finding else []
    return "\n".join(lines)


def with_findings(text: str, study: str) -> str:
    """The README with what the audits of a study found, between its two marks."""
    before, _, rest = text.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    return f"{before}{MARKS[0]}\n{findings(study)}\n{MARKS[1]}{after}" if after else text


def _order(item):
    """Figures and tables of the paper, each by number, then the audits, then the rest."""
    kinds = ("figure", "table", "audit")
    return next((place for place, kind in enumerate(kinds) if item.startswith(kind)), len(kinds)), item


def _section(item, study):
    place = paths.FIGURES / study
    if not (place / f"{item}.md").exists():
        return f'<section id="{item}"><h2>{escape(report.title(item))}</h2><p>Not rendered yet.</p></section>'
    image = ""
    if (place / f"{item}.png").exists():
        buffer = io.BytesIO()
        with Image.open(place / f"{item}.png") as picture:  # 256 colours make a third of the bytes
            picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(buffer, "png", optimize=True)
        data = base64.b64encode(buffer.getvalue()).decode()
        image = f'<img alt="{escape(report.title(item))}" src="data:image/png;base64,{data}">'
    text = mistune.create_markdown(plugins=["table"])((place / f"{item}.md").read_text())
    text = text.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")
    return f'<section id="{item}"><h2>{escape(report.title(item))}</h2>{image}{text}</section>'


def _provenance(study):
    """How many runs there are, by which code, and with what."""
    runs = records.load_runs({"all": catalog.all_runs(study)})
    commits = ", ".join(sorted(runs["commit"].astype(str).unique())) if len(runs) else "none"
    minutes = pd.to_numeric(runs["seconds"]).sum() / 60 if len(runs) else 0
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "torchvision", "grad-cam"))
    return (
        f"<p>{records.coverage(runs)}, {minutes:.0f} minutes of training in all. Code of the runs: {escape(commits)}. "
        f"{escape(packages)}. Accuracies are of the epoch that source validation chose, unless a rule is named.</p>"
    )
