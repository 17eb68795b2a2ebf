"""The documents: every link points to a committed file, and the numbers of the README are those of the records."""

import re
import subprocess
import tomllib
from pathlib import Path

import nbformat
import pandas as pd
import pytest

from cirl import paths
from cirl.methods.table import LABELS
from cirl.show import claims, tables
from cirl.study import catalog, records, studies

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
STUDIES = {"Digits-DG": ("digits", "table01"), "PACS": ("lite", "table03"), "`tiny`": ("tiny", "table01")}
METHODS = ("DeepAll", "Mix", "CIRL")
NUMBER = r"[+-]?\d+\.\d"


def committed():
    """The files of the repository: those that git knows, or all if this is no clone."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        return {file for file in ROOT.rglob("*") if ".venv" not in file.parts}
    return {ROOT / name for name in listed.stdout.splitlines()}


FILES = committed()
PLACES = FILES | {place for file in FILES for place in file.parents}
DOCUMENTS = sorted(file for file in FILES if file.suffix in (".md", ".ipynb") and ROOT / "figures" not in file.parents)


def words(document):
    """The text of a document without code."""
    if document.suffix == ".ipynb":
        cells = nbformat.read(document, 4).cells
        return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.S | re.M)


def anchors(document):
    """The names of a document's headings, as a code host spells them."""
    heads = re.findall(r"^#+ (.*)$", words(document), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_link_points_to_a_committed_file_or_heading(document):
    for link in re.findall(r"\]\(([^)\s]+)\)", words(document)):
        if link.startswith(("http://", "https://", "attachment:")):
            continue
        name, _, heading = link.partition("#")
        file = (document.parent / name).resolve() if name else document
        assert file in PLACES, f"{link} is not in the repository"
        assert not heading or heading in anchors(file), f"{link}: there is no such heading"


@pytest.mark.parametrize("stem", catalog.ITEMS)
def test_a_notebook_links_its_committed_items(stem):
    item = catalog.ITEMS[stem]
    name = f"figures/tiny/{stem}.{'png' if 'png' in item.kinds else 'md'}"
    if ROOT / name in FILES:
        notebook = ROOT / "notebooks" / f"{item.notebook}.ipynb"
        last = [cell for cell in nbformat.read(notebook, 4).cells if cell.cell_type == "markdown"][-1].source
        assert f"](../{name})" in last, f"link ../{name} in the last cell of {notebook.name}"


def results_table(readme):
    """The rows of the README's table of results: what was trained, then one cell per column."""
    part = readme.split("## Results at a glance")[1].split("\n## ")[0].replace("−", "-")
    lines = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("|")]
    assert lines[0][2:] == ["DeepAll", "Mix: CIRL's augmentation alone", "CIRL", "CIRL less DeepAll", "CIRL less Mix"]
    return lines[2:]


def measured(cells):
    """What the records say to the cells of a row: numbers as they must be written."""
    study, stem = next(value for name, value in STUDIES.items() if name in cells[0])
    rows = {method: catalog.rows(stem, study)[method] for method in METHODS}
    targets = list(dict.fromkeys(run.target for run in rows["CIRL"]))
    said = cells[0].lower().replace("-", "_")
    named = [target for target in targets if re.search(rf"targets? .*\b{target}\b", said)]
    rows = {row: [run for run in runs if run.target in (named or targets)] for row, runs in rows.items()}
    found = records.load_runs(rows)
    summary = tables.summary(found, named or targets)
    means = summary[summary["column"] == "avg"].set_index("row")
    published = tables.published(int(stem.removeprefix("table"))).set_index("method")
    paper = pd.Series(dtype=float) if study == "tiny" else published[named or ["avg"]].mean(axis=1)
    seeds = int(means["n"].min())
    yield f"{seeds} seed{'s' if seeds > 1 else ''}"
    for row in METHODS:
        yield f"{means.loc[row, 'mean']:.1f}" + (f" (paper {paper[row]:.1f})" if row in paper else "")
    for other in ("DeepAll", "Mix"):
        verdict = claims.judge(claims.Claim(stem, "", "CIRL", other), found, {})
        yield f"{verdict.interval}, n = {verdict.n}" if verdict.n > 1 else f"{verdict.interval}, one run: undecided"


def disagreements(readme):
    """The cells of the README's results that the records do not bear out."""
    wrong = []
    for cells in results_table(readme):
        wrong += [(cells[0], cell, fact) for cell, fact in zip(cells[1:], measured(cells), strict=True) if cell != fact]
    return wrong


@pytest.fixture
def committed_records(monkeypatch, tmp_path):
    """No folders of runs: a clone has the collected files only."""
    monkeypatch.setattr(paths, "RUNS", tmp_path)


def test_the_results_of_the_readme_are_those_of_the_records(committed_records):
    assert disagreements(README) == []


def test_any_edited_number_of_the_readmes_results_is_noticed(committed_records):
    start, end = README.index("## Results at a glance"), README.index("Brackets are")
    spots = [match.span() for match in re.finditer(NUMBER, README) if start < match.start() < end]
    spots = [(a, b) for a, b in spots if README[:a].rsplit("\n", 1)[-1].startswith("|")]
    assert len(spots) >= 10
    for a, b in spots[:: max(1, len(spots) // 8)]:
        other = f"{float(README[a:b]) + 0.1:.1f}"
        assert disagreements(README[:a] + ("+" if README[a] == "+" else "") + other + README[b:]), README[a:b]


def test_the_verdicts_counted_in_the_readme_are_those_of_the_scoreboard():
    said = re.search(r"(\d+) holds?, (\d+) (?:is|are) refuted and (\d+)\s+(?:is|are)\s+undecided", README)
    found = pd.read_csv(ROOT / "figures" / "tiny" / "claims.csv")
    words = found.loc[~found["control"], "verdict"].value_counts()
    assert [int(number) for number in said.groups()] == [words.get(word, 0) for word in claims.MARKS]


def test_the_sizes_that_the_readme_states_are_true():
    assert f"\n{len(LABELS)} methods in one harness" in README
    assert all(re.search(rf"\b{re.escape(label)}\b", README) for label in LABELS.values())
    assert f"a core of {len(catalog.core('tiny'))} runs" in README
    assert f"(the study has {len(catalog.all_runs('digits'))})" in README
    assert all(f"| `{name}` |" in README for name in studies.STUDIES)


def test_the_badges_are_true():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    facts = {"python": project["requires-python"].removeprefix(">=") + " or newer", "licence": project["license"]}
    for name, fact in facts.items():
        badge = (ROOT / "figures" / "badges" / f"{name}.svg").read_text(encoding="utf-8")
        assert f"<title>{name}: {fact}</title>" in badge and f">{fact}</text>" in badge
        assert f"(figures/badges/{name}.svg)" in README
    assert "![Python 3.11 or newer]" in README and (ROOT / "LICENSE").read_text().startswith("MIT")


def test_the_readme_can_be_read_in_ten_minutes():
    assert len(README.splitlines()) <= 150
