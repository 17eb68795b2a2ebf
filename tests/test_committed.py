"""What is committed: a run that has not converged decides nothing, and figures/ shows what data/ holds."""

from pathlib import Path

import nbformat
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from cirl import paths
from cirl.methods.table import LABELS
from cirl.run.config import Run, settings
from cirl.show import claims, page
from cirl.study import catalog, records

ROOT = Path(__file__).parent.parent
STUDIES = ("tiny", "digits", "lite")
AS_COMMITTED = pytest.mark.skipif(
    any((ROOT / "data" / "runs").glob("*/metrics.json")), reason="`make` has drawn figures/ from the runs found here"
)
NOT_MET = {  # method -> its change over the last fifth of the epochs
    "mix": "+0.54 over three seeds",
    "mixup": "+0.78 over three seeds",
    "ccsa": "+0.50 over three seeds",
    "rsc": "+0.66 over three seeds",
    "masf": "+0.78 over three seeds",
    "eisnet": "+0.97 over three seeds",
}


def history(values, row="Mix", target="street", seed=0):
    return pd.DataFrame({"row": row, "target": target, "seed": seed, "epoch": range(len(values)), "source_val": values})


def test_the_late_change_is_that_of_the_last_fifth():
    epochs = history([0.0, 1.0, 5.0, 6.0, 7.0, 9.0, 4.0, 4.0, 3.0, 8.0])
    assert records.late_changes(epochs) == {"Mix": 4.0}
    assert pd.isna(records.late_changes(history([3.0]))["Mix"])
    assert records.late_changes(history([])) == {}


def test_a_row_that_moves_by_the_bound_in_either_direction_has_not_converged():
    parts = [history([1.0, 1.5], "up"), history([1.5, 1.0], "down"), history([1.0, 1.4], "flat"), history([1.0], "one")]
    assert records.not_converged(pd.concat(parts)) == {"up": 0.5, "down": -0.5}


def test_the_late_change_is_the_mean_over_targets_of_the_seeds_that_have_all_of_them():
    parts = [history([1.0, 3.0], seed=0), history([5.0, 6.0], seed=0, target="print"), history([0.0, 90.0], seed=1)]
    other = history([7.0, 7.5], row="CIRL", seed=1)  # of another row, whose only target it is
    assert records.late_changes(pd.concat([*parts, other])) == {"Mix": 1.5, "CIRL": 0.5}


def expected(method):
    """A method, marked if its records are known not to meet the bound; strict, so that the mark goes when they do."""
    marks = [pytest.mark.xfail(reason=NOT_MET[method], strict=True)] if method in NOT_MET else []
    return pytest.param(method, marks=marks)


@pytest.mark.parametrize("method", [*map(expected, LABELS)])
def test_a_method_has_converged_on_tiny(method):
    row = LABELS[method]
    epochs = records.load_history({row: catalog.rows("methods", "tiny")[row]})
    if epochs["id"].nunique() < len(settings("tiny").domains):
        pytest.skip("not on every target yet")
    assert epochs["epoch"].nunique() >= Run("tiny").epochs
    assert abs(records.late_changes(epochs)[row]) < records.CONVERGED


def test_the_page_of_methods_marks_those_that_have_not_converged():
    page = pd.read_csv(ROOT / "figures" / "tiny" / "methods.csv").set_index("method")["late"]
    text = (ROOT / "figures" / "tiny" / "methods.md").read_text(encoding="utf-8")
    marked = {line.split(" | ")[0].removeprefix("| ") for line in text.splitlines() if "† |" in line}
    assert marked == {*page.index[page.abs() >= records.CONVERGED]} == {LABELS[method] for method in NOT_MET}


def test_the_page_of_methods_explains_the_line_of_chance_only_where_it_is_drawn():
    accuracies = pd.read_csv(ROOT / "figures" / "tiny" / "methods.csv")[[*settings("tiny").domains]]
    caption = (ROOT / "figures" / "tiny" / "methods.md").read_text(encoding="utf-8")
    assert ("dotted: chance" in caption) == bool(accuracies.min().min() < 30)


def drawn_from_records():
    """Each study with its notebooks that need neither weights nor data."""
    ids = {*pd.read_csv(ROOT / "data" / "results.csv", usecols=["id"])["id"]}
    for study in STUDIES:
        for notebook, stems in catalog.notebooks(study, weights=False, recorded=ids).items():
            if any(catalog.expected(stem, study) for stem in stems):
                yield pytest.param(study, notebook, stems, id=f"{study}-{notebook}")


@AS_COMMITTED
@pytest.mark.parametrize("study, notebook, stems", [*drawn_from_records()])
@pytest.mark.filterwarnings("error")
def test_a_committed_item_says_what_the_records_give(study, notebook, stems, tmp_path, monkeypatch):
    """Otherwise an item keeps old numbers when records or code change. The text is compared, not the picture."""
    plt.switch_backend("agg")
    monkeypatch.setattr(paths, "FIGURES", tmp_path / "figures")
    monkeypatch.setattr(paths, "RUNS", tmp_path / "runs")  # a checkout has none
    monkeypatch.setattr(Figure, "savefig", lambda *_, **__: None)
    values = {}
    for cell in nbformat.read(ROOT / "notebooks" / f"{notebook}.ipynb", 4).cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, notebook, "exec"), values)
            values |= {"study": study} if "parameters" in cell.metadata.get("tags", []) else {}
    plt.close("all")
    for file in (f"{stem}.{kind}" for stem in stems for kind in ("md", "csv") if kind in catalog.ITEMS[stem].kinds):
        ours, committed = (folder / "figures" / study / file for folder in (tmp_path, ROOT))
        assert ours.read_text(encoding="utf-8") == committed.read_text(encoding="utf-8"), file


@AS_COMMITTED
@pytest.mark.parametrize("study", STUDIES)
def test_a_committed_scoreboard_says_what_the_records_give(study, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "RUNS", tmp_path / "runs")
    found = claims.frame(claims.verdicts(study)).to_csv(index=False, float_format="%.6g")
    assert found == (ROOT / "figures" / study / "claims.csv").read_text(encoding="utf-8")


@AS_COMMITTED
@pytest.mark.parametrize("study", [*STUDIES, None])
def test_a_committed_report_shows_the_committed_items(study):
    file = ROOT / "figures" / (study or "") / "report.html"
    assert page.page(study) == file.read_text(encoding="utf-8")
