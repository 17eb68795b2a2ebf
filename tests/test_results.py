import json
from dataclasses import asdict

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

from cirl import paths
from cirl.errors import UserError
from cirl.metrics import READINGS, representation_importance
from cirl.run import files
from cirl.run.config import Run
from cirl.run.digest import training_digest
from cirl.show import page, report
from cirl.study import catalog, records

RUNS = {"DeepAll": [Run(method="deepall", target=t, seed=s) for t in ("street", "print") for s in (0, 1)]}


def record(run, accuracy):
    """A finished run's folder, as `runs.finish` leaves it."""
    chosen = {"epoch": 1, "source_val": 90.0, "target": accuracy, "invariance": 0.5, "independence": 100.0}
    metrics = {"id": run.id, "seconds": 1.0, **{rule: chosen for rule in records.RULES}, "floor": 30.0}
    metrics["oracle"] = {**chosen, "target": accuracy + 5}
    place = paths.RUNS / run.id
    files.write(
        place / "config.json",
        json.dumps({**asdict(run), "provenance": {"commit": "abc", "code": training_digest(run)}}),
    )
    files.write(
        place / "history.csv", f"epoch,loss,source_val,target,independence,floor,seconds\n0,1,80,{accuracy},5,3,1\n"
    )
    files.write(place / "metrics.json", json.dumps(metrics))


@pytest.fixture
def recorded(workspace):
    for accuracy, run in zip((70, 72, 60, 64), RUNS["DeepAll"], strict=True):
        record(run, accuracy)
    return workspace


def test_the_collected_files_alone_give_the_same_tables_and_curves(recorded):
    for run in RUNS["DeepAll"]:
        torch.save({"h1.weight": torch.randn(10, 32)}, paths.RUNS / run.id / "model.pt")
    table, history = records.load_runs(RUNS, importance=True), records.load_history(RUNS)
    records.collect(RUNS["DeepAll"], "tiny")
    paths.RUNS.rename(recorded / "gone")
    again, curves = records.load_runs(RUNS), records.load_history(RUNS)
    columns = [
        "row",
        "seed",
        "target",
        "accuracy",
        "importance_class.mean",
        "floor",
        "commit",
    ]
    pd.testing.assert_frame_equal(again[columns], table[columns], check_dtype=False)
    shown = ["row", "epoch", "accuracy", "independence", "seed", "target"]
    pd.testing.assert_frame_equal(
        curves[shown].reset_index(drop=True), history[shown].reset_index(drop=True), check_dtype=False
    )
    assert records.coverage(again) == records.coverage(curves) == "4 of 4 runs"


def test_importance_is_read_from_the_weights(recorded):
    run, W = RUNS["DeepAll"][0], torch.randn(10, 32)
    torch.save({"h1.weight": W}, paths.RUNS / run.id / "model.pt")
    (row,) = records.load_runs({"DeepAll": [run]}, importance=True).to_dict("records")
    for reading in READINGS:
        assert row[f"importance_{reading}.mean"] == pytest.approx(representation_importance(W, reading).mean().item())
    assert "importance_class.mean" not in records.load_runs({"DeepAll": [run]})  # asked for by Table 6 alone


def test_runs_of_other_code_are_counted_whether_read_from_folders_or_from_the_records(recorded):
    run = RUNS["DeepAll"][0]
    config = paths.RUNS / run.id / "config.json"
    config.write_text(config.read_text().replace(training_digest(run), "0123456789abcdef"))
    expected = "4 of 4 runs (1 of 4 runs come from other code)"
    assert records.coverage(records.load_runs(RUNS)) == expected
    records.collect(RUNS["DeepAll"], "tiny")
    paths.RUNS.rename(recorded / "gone")
    table = records.load_runs(RUNS)
    assert records.coverage(table) == expected and table.attrs["other_code"] == [run.id]


def test_collecting_keeps_the_rows_of_runs_that_are_not_here(recorded):
    records.collect(RUNS["DeepAll"], "tiny")
    paths.RUNS.rename(recorded / "gone")
    other = Run(method="cirl")
    record(other, 88)
    records.collect([other, *RUNS["DeepAll"]], "lite")
    table = pd.read_csv(paths.DATA / "results.csv").set_index("id")
    assert len(table) == 5 and table.loc[other.id, "study"] == "lite"
    assert table.loc[RUNS["DeepAll"][0].id, "study"] == "tiny"


def test_collecting_twice_changes_nothing(recorded):
    records.collect(RUNS["DeepAll"], "tiny")
    before = [(paths.DATA / name).read_bytes() for name in ("results.csv", "history.csv")]
    records.collect(RUNS["DeepAll"], "tiny")
    assert [(paths.DATA / name).read_bytes() for name in ("results.csv", "history.csv")] == before


def test_rules_read_their_own_numbers(recorded):
    assert records.load_runs(RUNS)["accuracy"].tolist() == [70, 72, 60, 64]
    assert records.load_runs(RUNS, "oracle")["accuracy"].tolist() == [75, 77, 65, 69]
    with pytest.raises(UserError, match="source_val, last, oracle"):
        records.load_runs(RUNS, "best")


def test_what_is_missing_is_named(recorded):
    rows = {**RUNS, "CIRL": [Run(method="cirl")]}
    table = records.load_runs(rows)
    assert table.attrs["missing"] == [Run(method="cirl").id] and records.coverage(table) == "4 of 5 runs"
    assert records.coverage(records.load_runs({"CIRL": [Run(method="cirl")]})) == "0 of 1 runs"


def test_a_damaged_record_is_named_and_nothing_is_overwritten(recorded):
    records.collect(RUNS["DeepAll"], "tiny")
    kept = (paths.DATA / "results.csv").read_bytes()
    run = RUNS["DeepAll"][0]
    broken = paths.RUNS / run.id / "metrics.json"
    broken.write_text(broken.read_text()[:50])
    with pytest.warns(UserWarning, match=rf"skipped {run.id}: .*metrics\.json, line 1, is damaged"):
        records.collect(RUNS["DeepAll"], "tiny")
    assert (paths.DATA / "results.csv").read_bytes() == kept  # the record of before still stands
    file = paths.DATA / "results.csv"
    file.write_text(kept.decode() + "half,a,line\n")
    with pytest.raises(UserError, match=r"results\.csv, line 6, is damaged"):
        records.load_runs(RUNS)
    assert file.read_text().endswith("half,a,line\n")


DAMAGES = {  # what is done to a run's folder, and the reason that is given
    "another run's record": (("metrics.json", '"id": "', '"id": "other-'), "metrics.json is the record of other-"),
    "another run's config": (("config.json", '"tau": 2.0', '"tau": 7.0'), "config.json says tau=7.0"),
    "an older version's record": (("metrics.json", '"oracle"', '"best"'), "metrics.json lacks oracle"),
    "no config": (("config.json", None, None), "No such file"),
    "no JSON": (("metrics.json", "{", "["), "metrics.json, line 1, is damaged"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_folder_that_cannot_be_trusted_is_skipped_with_the_reason(damage, recorded):
    run = RUNS["DeepAll"][0]
    (name, old, new), why = DAMAGES[damage]
    file = paths.RUNS / run.id / name
    if old is None:
        file.unlink()
    else:
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new, 1))
    for table in (records.load_runs(RUNS), records.load_history(RUNS)):
        assert why in table.attrs["skipped"][run.id] and why in records.coverage(table)
        assert run.id in table.attrs["missing"]  # nothing is guessed
    records.load_runs({"others": RUNS["DeepAll"][1:]})


def test_a_skipped_folder_does_not_hide_the_collected_record(recorded):
    records.collect(RUNS["DeepAll"], "tiny")
    run = RUNS["DeepAll"][0]
    (paths.RUNS / run.id / "metrics.json").write_text("{}")
    table = records.load_runs(RUNS)
    assert run.id in table.attrs["skipped"] and run.id not in table.attrs["missing"]


def test_a_half_finished_folder_counts_as_missing(recorded):
    run = RUNS["DeepAll"][0]
    (paths.RUNS / run.id / "metrics.json").unlink()
    table = records.load_runs(RUNS)
    assert run.id in table.attrs["missing"] and not table.attrs["skipped"]


def test_a_summary_is_mean_deviation_and_interval_over_seeds(recorded):
    summary = report.summary(records.load_runs(RUNS), ["street", "print"]).set_index("column")
    assert summary["mean"].tolist() == [71, 62, 66.5] and summary["n"].tolist() == [2, 2, 2]
    assert summary.loc["avg", "std"] == pytest.approx(np.std([65, 68], ddof=1))
    half = 12.706 * np.std([65, 68], ddof=1) / np.sqrt(2)
    assert summary.loc["avg", "high"] == pytest.approx(66.5 + half, abs=0.01)


def test_an_average_over_an_incomplete_row_is_missing(recorded):
    summary = report.summary(records.load_runs({"x": RUNS["DeepAll"][:3]}), ["street", "print"]).set_index("column")
    assert summary.loc["avg", "n"] == 1  # the second seed lacks a target


def test_a_comparison_shows_ours_the_papers_and_the_difference(workspace):
    runs = [Run("pacs", target, "deepall") for target in ("art_painting", "cartoon", "photo", "sketch")]
    for accuracy, run in zip((80, 75, 90, 60), runs, strict=True):
        record(run, accuracy)
    paper = report.paper_table(2).set_index("method")
    columns = report.columns_of(paper, runs)
    table = report.compare(
        report.summary(records.load_runs({"DeepAll": runs}), list(columns)[:-1]), paper, ["DeepAll", "CIRL"], columns
    )
    cell = table[(table["row"] == "DeepAll") & (table["column"] == "avg")].iloc[0]
    assert (cell["mean"], cell["paper"]) == (76.25, 79.94) and cell["difference"] == pytest.approx(-3.69)
    text = report.markdown(table, "Method", columns)
    assert "| DeepAll | **80.0** (77.6) |" in text and "| CIRL | – (86.1) |" in text and "-3.7 |" in text


def test_on_stand_in_data_the_parts_are_named_and_no_difference_is_taken(recorded):
    paper = report.paper_table(2).set_index("method")
    columns = report.columns_of(paper, RUNS["DeepAll"])
    assert columns == {"street": "sketch", "print": "cartoon", "avg": "avg"}
    table = report.compare(report.summary(records.load_runs(RUNS), ["street", "print"]), paper, ["DeepAll"], columns)
    assert table["difference"].isna().all()
    assert table.set_index("column").loc["avg", "paper"] == pytest.approx((69.5 + 76.77) / 2)
    assert "street (paper: sketch)" in report.markdown(table, "Method", columns)


def test_tinys_photo_is_not_mistaken_for_that_of_pacs():
    paper = report.paper_table(2).set_index("method")
    assert report.columns_of(paper, [Run(target="photo")])["photo"] == "art_painting"
    digits = report.paper_table(1).set_index("method")
    assert report.columns_of(digits, [Run(target="photo")])["photo"] == "mnist_m"


def test_an_item_carries_study_coverage_claims_and_what_is_missing(recorded):
    rows = {**RUNS, "CIRL": [Run(method="cirl")]}
    text = report.save(
        "| a |",
        "table02",
        "tiny",
        "A caption.",
        None,
        records.load_runs(rows),
        {"This holds": True, "That": False, "Who knows": None},
    )
    assert text == (paths.FIGURES / "tiny" / "table02.md").read_text()
    for piece in (
        "**Table 2.** A caption.",
        "4 of 5 runs",
        "- ✓ This holds",
        "- ✗ That",
        "- – Who knows",
        "Missing runs: `tiny-",
    ):
        assert piece in text
    with pytest.raises(UserError, match="tiny, digits, lite, paper"):
        report.save("x", "table02", "enormous", "A caption.")


def test_an_unknown_table_of_the_paper_is_refused():
    with pytest.raises(UserError, match="Tables 1 to 14"):
        report.paper_table(15)


def test_findings_are_one_line_each_and_stand_between_the_marks_of_the_readme(workspace):
    for item, finding in (("audit_selection", "a, nan and finance."), ("audit_recipe", "b.")):
        report.save("| x |", item, "tiny", "Caption.", finding=finding)
    lines = page.findings("tiny").splitlines()
    assert lines == [  # in the order of the grid; what is unknown is a dash
        "- [Audit: recipe](figures/tiny/audit_recipe.md): b.",
        "- [Audit: selection](figures/tiny/audit_selection.md): a, – and finance.",
    ]
    text = f"before\n{page.MARKS[0]}\nold\n{page.MARKS[1]}\nafter\n"
    new = page.with_findings(text, "tiny")
    assert new.splitlines() == ["before", page.MARKS[0], *lines, page.MARKS[1], "after"]
    assert page.with_findings(new, "tiny") == new
    assert page.with_findings("a README without marks\n", "tiny") == "a README without marks\n"


def test_the_readme_says_what_the_committed_audits_found():
    readme = (paths.ROOT / "README.md").read_text()
    found = page.findings("tiny")
    assert page.with_findings(readme, "tiny") == readme
    assert all(f"](figures/tiny/{notebook}.md): " in found for notebook in catalog.AUDITS)


def test_the_audits_follow_the_items_of_the_paper_on_the_page():
    items = sorted(["methods", "audit_recipe", "table02", "tour_masks", "figure4"], key=page._order)
    assert items == ["figure4", "table02", "audit_recipe", "methods", "tour_masks"]


def test_a_row_of_dots_without_numbers_is_said_to_be_missing_or_undefined():
    figure, ax = plt.subplots()
    table = pd.DataFrame({"a": [1.0, np.nan, np.nan]}, index=["Mix", "CIRL", "FACT"])
    report.dots(ax, table, measured=["Mix", "FACT"])
    assert [(text.get_text(), text.get_position()[1]) for text in ax.texts] == [("missing", 1), ("undefined", 2)]
    plt.close(figure)


def test_variants_and_recipes_have_the_colour_of_cirl_and_methods_their_own():
    for row in (
        "CIRL, classifier at 10x",
        "CIRL (paper's equations)",
        "Variant 3",
        "paper: as it is",
        "released: ramp=0",
    ):
        assert report.color(row) == report.COLORS["CIRL"], row
    assert report.color("FACT, classifier at 1x") == report.COLORS["FACT"]
    assert report.color("Mixup") == report.COLORS["others"]
