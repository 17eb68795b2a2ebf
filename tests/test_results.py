import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from helpers import record

from cirl import paths
from cirl.errors import UserError
from cirl.metrics import READINGS, representation_importance
from cirl.run.config import Run
from cirl.run.digest import training_digest
from cirl.show import claims, page, style, tables
from cirl.show.save import Output
from cirl.study import catalog, records

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
RUNS = {"DeepAll": [Run(method="deepall", target=t, seed=s) for t in ("street", "print") for s in (0, 1)]}


@pytest.fixture
def recorded(workspace):
    for accuracy, run in zip((70, 72, 60, 64), RUNS["DeepAll"], strict=True):
        record(run, accuracy)
    return workspace


def keep_weights(run, weights):
    """model.pt of a finished run, with its checksum in metrics.json."""
    file = paths.RUNS / run.id / "model.pt"
    file.write_bytes(weights) if isinstance(weights, bytes) else torch.save(weights, file)
    result, checksum = file.with_name("metrics.json"), hashlib.sha256(file.read_bytes()).hexdigest()
    result.write_text(json.dumps({**json.loads(result.read_text()), "model_sha256": checksum}))


def test_the_collected_files_alone_give_the_same_tables_and_curves(recorded):
    for run in RUNS["DeepAll"]:
        keep_weights(run, {"h1.weight": torch.randn(10, 32)})
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
    keep_weights(run, {"h1.weight": W})
    (row,) = records.load_runs({"DeepAll": [run]}, importance=True).to_dict("records")
    for reading in READINGS:
        assert row[f"importance_{reading}.mean"] == pytest.approx(representation_importance(W, reading).mean().item())
    assert "importance_class.mean" not in records.load_runs({"DeepAll": [run]})  # only Table 6 needs it


def test_runs_of_other_code_are_counted_whether_read_from_folders_or_from_the_records(recorded):
    run = RUNS["DeepAll"][0]
    config = paths.RUNS / run.id / "config.json"
    config.write_text(config.read_text().replace(training_digest(run), "0123456789abcdef"))
    expected = "4 of 4 runs (1 of 4 runs come from other code)"
    assert records.coverage(records.load_runs(RUNS)) == expected.replace("(", "(4 trained here; ")
    records.collect(RUNS["DeepAll"], "tiny")
    paths.RUNS.rename(recorded / "gone")
    table = records.load_runs(RUNS)
    assert records.coverage(table).endswith(expected) and table.attrs["other_code"] == [run.id]


def test_collecting_keeps_the_rows_of_runs_that_are_not_here(recorded):
    records.collect(RUNS["DeepAll"], "tiny")
    paths.RUNS.rename(recorded / "gone")
    other = Run(method="cirl")
    record(other, 88)
    records.collect([other, *RUNS["DeepAll"]], "lite")
    table = pd.read_csv(paths.DATA / "results.csv").set_index("id")
    assert len(table) == 5 and table.loc[other.id, "study"] == "lite"
    assert table.loc[RUNS["DeepAll"][0].id, "study"] == "tiny"


def test_collecting_leaves_the_lines_of_other_runs_as_they_are(recorded):
    """`1` and `1.0` in one column, empty cells: nothing that is kept is read as a number and written again."""
    records.collect(RUNS["DeepAll"], "tiny")
    paths.RUNS.rename(recorded / "gone")
    kept = {}
    for name in ("results.csv", "history.csv"):
        file = paths.DATA / name
        table = pd.read_csv(file, dtype=str)
        epoch = next(column for column in table if column.endswith("epoch"))
        table.loc[0, epoch] = f"{float(table[epoch][0]):.1f}"
        table.to_csv(file, index=False)
        kept[file] = file.read_text(encoding="utf-8").splitlines()
    other = Run(method="cirl")
    record(other, 88)
    records.collect([other], "tiny")
    for file, lines in kept.items():
        assert {*lines} < {*file.read_text(encoding="utf-8").splitlines()}


def test_a_collected_row_of_other_fields_is_not_mistaken_for_the_run(recorded):
    """A default changed since: the id is the same, the run is not."""
    records.collect(RUNS["DeepAll"], "tiny")
    paths.RUNS.rename(recorded / "gone")
    file = paths.DATA / "results.csv"
    pd.read_csv(file).assign(epochs=5).to_csv(file, index=False)
    table = records.load_runs(RUNS)
    assert len(table) == 0 and table.attrs["skipped"][RUNS["DeepAll"][0].id] == "results.csv says epochs=5"


def test_collecting_twice_changes_nothing(recorded):
    records.collect(RUNS["DeepAll"], "tiny")
    before = [(paths.DATA / name).read_bytes() for name in ("results.csv", "history.csv")]
    records.collect(RUNS["DeepAll"], "tiny")
    assert [(paths.DATA / name).read_bytes() for name in ("results.csv", "history.csv")] == before


def test_a_collected_record_names_the_machine_that_trained_it(recorded):
    run = RUNS["DeepAll"][0]
    file = paths.RUNS / run.id / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["provenance"] |= {"cpu": "a CPU", "capability": "AVX2", "threads": 3}
    file.write_text(json.dumps(config), encoding="utf-8")
    records.collect([run], "tiny")
    row = pd.read_csv(paths.DATA / "results.csv").set_index("id").loc[run.id]
    assert [row["cpu"], row["capability"], row["threads"]] == ["a CPU", "AVX2", 3]


def test_rules_read_their_own_numbers(recorded):
    assert records.load_runs(RUNS)["accuracy"].tolist() == [70, 72, 60, 64]
    assert records.load_runs(RUNS, "oracle")["accuracy"].tolist() == [75, 77, 65, 69]
    with pytest.raises(UserError, match="source_val, last, oracle"):
        records.load_runs(RUNS, "best")


def test_what_is_missing_is_named(recorded):
    rows = {**RUNS, "CIRL": [Run(method="cirl")]}
    table = records.load_runs(rows)
    assert (
        table.attrs["missing"] == [Run(method="cirl").id] and records.coverage(table) == "4 of 5 runs (4 trained here)"
    )
    assert records.coverage(records.load_runs({"CIRL": [Run(method="cirl")]})) == "0 of 1 runs"


def test_a_damaged_record_is_named_and_nothing_is_overwritten(recorded):
    records.collect(RUNS["DeepAll"], "tiny")
    kept = (paths.DATA / "results.csv").read_bytes()
    run = RUNS["DeepAll"][0]
    broken = paths.RUNS / run.id / "metrics.json"
    broken.write_text(broken.read_text()[:50])
    with pytest.warns(UserWarning, match=rf"skipped {run.id}: .*metrics\.json, line 1, is damaged"):
        records.collect(RUNS["DeepAll"], "tiny")
    assert (paths.DATA / "results.csv").read_bytes() == kept  # the earlier record is kept
    file = paths.DATA / "results.csv"
    file.write_text(kept.decode() + "half,a,line\n")
    with pytest.raises(UserError, match=r"results\.csv, line 6, is damaged"):
        records.load_runs(RUNS)
    assert file.read_text().endswith("half,a,line\n")


DAMAGES = {  # a change of a run's folder, and the reason given
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
    summary = tables.summary(records.load_runs(RUNS), ["street", "print"]).set_index("column")
    assert summary["mean"].tolist() == [71, 62, 66.5] and summary["n"].tolist() == [2, 2, 2]
    assert summary.loc["avg", "std"] == pytest.approx(np.std([65, 68], ddof=1))
    half = 12.706 * np.std([65, 68], ddof=1) / np.sqrt(2)
    assert summary.loc["avg", "high"] == pytest.approx(66.5 + half, abs=0.01)


def test_an_average_over_an_incomplete_row_is_missing(recorded):
    summary = tables.summary(records.load_runs({"x": RUNS["DeepAll"][:3]}), ["street", "print"]).set_index("column")
    assert summary.loc["avg", "n"] == 1  # the second seed lacks a target


def test_a_comparison_shows_ours_the_papers_and_the_difference(workspace):
    runs = [Run("pacs", target, "deepall") for target in ("art_painting", "cartoon", "photo", "sketch")]
    for accuracy, run in zip((80, 75, 90, 60), runs, strict=True):
        record(run, accuracy)
    paper = tables.published(2).set_index("method")
    table = tables.compare(records.load_runs({"DeepAll": runs}), paper, {"DeepAll": runs, "CIRL": []})
    cell = table[(table["row"] == "DeepAll") & (table["column"] == "avg")].iloc[0]
    assert (cell["mean"], cell["paper"]) == (76.25, 79.94) and cell["difference"] == pytest.approx(-3.69)
    text = tables.markdown(tables.page(table, "Method"))
    assert "| DeepAll | **80.0** (77.6) |" in text and "| CIRL | – (86.1) |" in text and "-3.7 |" in text
    assert "| paper avg | difference |" in text  # the same data: no benchmark is named


def test_on_stand_in_data_only_the_averages_stand_side_by_side(recorded):
    paper = tables.published(2).set_index("method")
    table = tables.compare(records.load_runs(RUNS), paper, RUNS)
    assert table["difference"].isna().all()
    assert table.set_index("column")["paper"].dropna().to_dict() == {"avg": 79.94}
    head, line = tables.page(table, "Method")
    assert head == ["Method", "street", "print", "avg", "95 % CI", "n", "paper avg (PACS)"]
    assert line[1] == "**71.0** ± 1.4" and line[-1] == "79.94"


def test_with_fewer_targets_of_the_papers_data_its_average_is_over_the_same(workspace):
    runs = [Run("pacs", target, "deepall") for target in ("cartoon", "sketch")]
    for run in runs:
        record(run, 70)
    paper = tables.published(2).set_index("method")
    table = tables.compare(records.load_runs({"DeepAll": runs}), paper, {"DeepAll": runs}).set_index("column")
    assert table.loc["avg", "paper"] == pytest.approx((69.5 + 76.77) / 2)


def test_one_target_has_no_average(recorded):
    paper = tables.published(2).set_index("method")
    rows = {"DeepAll": RUNS["DeepAll"][:2]}
    table = tables.compare(records.load_runs(rows), paper, rows)
    head, line = tables.page(table, "Method")
    assert head == ["Method", "street", "95 % CI", "n", "paper avg (PACS)"]
    assert line[1] == "**71.0** ± 1.4" and line[3:] == ["2", "79.94"]


@pytest.mark.parametrize("number", [1, 2])
def test_tinys_photo_is_not_mistaken_for_that_of_pacs(number, workspace):
    run = Run(target="photo")
    record(run, 70)
    rows = {"DeepAll": [run]}
    paper = tables.published(number).set_index("method")
    table = tables.compare(records.load_runs(rows), paper, rows).set_index("column")
    assert table.loc["photo", "mean"] == 70 and np.isnan(table.loc["photo", "paper"])


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14])
def test_every_table_of_accuracies_names_its_benchmark(number, recorded):
    paper = tables.published(number)
    titles = {1: "Digits-DG", 4: "Office-Home", 10: "mini-DomainNet", 11: "Digits-DG", 14: "Office-Home"}
    table = tables.compare(records.load_runs(RUNS), paper, RUNS)
    assert table.attrs["benchmark"] == titles.get(number, "PACS")


def test_an_item_carries_study_training_coverage_and_what_is_missing(recorded):
    rows = {**RUNS, "CIRL": [Run(method="cirl")]}
    text = Output("tiny").save("table01", [["a", "b"], ["x", "1"]], "A caption.", records.load_runs(rows))
    assert text == (paths.FIGURES / "tiny" / "table01.md").read_text(encoding="utf-8")
    epochs = Run().epochs
    for piece in (
        "**Table 1, stand-in on tiny.** A caption.",
        f"{epochs} epochs, seeds 0 and 1. 4 of 5 runs",  # the seeds of the records, not all that the study wants
        "| x | 1 |",
        "? undecided: CIRL is above DeepAll on tiny (convnet32): –, n = 0",
        "<summary>Missing runs (1)</summary>\n\n- `tiny-",
    ):
        assert piece in text, piece
    with pytest.raises(UserError, match="tiny, digits, lite, paper"):
        Output("enormous")


def still_moving(run, by):
    """Give a recorded run a history whose source validation changes by so many points in its last epoch."""
    epochs = {"epoch": [0, 1], "source_val": [80, 80 + by], "target": [70, 75], "independence": [5, 5]}
    pd.DataFrame(epochs).to_csv(paths.RUNS / run.id / "history.csv", index=False)


def test_an_item_names_the_rows_that_have_not_converged(recorded):
    rows = catalog.rows("table05", "tiny")
    for name, by in {"DeepAll": 0.4, "Mix": 2.0, "CIRL": -0.6}.items():
        for run in rows[name]:
            record(run, 70)
            still_moving(run, by)
    text = Output("tiny").save("table05", [["a"], ["1"]], "A caption.", records.load_runs(rows))
    assert "over the last fifth of the epochs): Mix (+2.0), CIRL (-0.6)." in text
    for name in ("Mix", "CIRL"):
        for run in rows[name]:
            still_moving(run, 0.4)
    text = Output("tiny").save("table05", [["a"], ["1"]], "A caption.", records.load_runs(rows))
    assert "converged" not in text


def test_of_many_rows_that_have_not_converged_an_item_gives_the_number(recorded):
    rows = catalog.rows("figure5c", "tiny")
    for (run,) in rows.values():
        record(run, 70)
        still_moving(run, 1.0)
    text = Output("tiny").save("figure5c", [["a"], ["1"]], "A caption.", records.load_runs(rows))
    assert "over the last fifth of the epochs): 25 of 25 rows." in text


def test_only_default_parameters_write_into_the_folder_of_the_study(workspace):
    assert Output("tiny", rule="source_val", limit=2000).folder == paths.FIGURES / "tiny"
    other = Output("tiny", rule="oracle", dataset="folder:/a/b c")
    assert other.folder == paths.FIGURES / "looks" / "tiny" / "rule=oracle,dataset=folder_a_b_c"
    assert "undecided" not in other.save("table02", [["a"], ["1"]], "A caption.")  # claims are of the defaults


def test_a_table_is_written_as_latex_too(workspace):
    lines = [["Method", "street (paper: mnist_m)", "95 % CI"], ["A & B", "**80.0** ± 1.2 (77.6)", "–"]]
    Output("tiny").save("table05", lines, "A caption.")
    text = (paths.FIGURES / "tiny" / "table05.tex").read_text(encoding="utf-8")
    assert r"\toprule" in text and r"\bottomrule" in text
    assert r"A \& B & \textbf{80.0} $\pm$ 1.2 (77.6) & -- \\" in text
    assert r"street (paper: mnist\_m) & 95 \% CI" in text


def test_a_column_without_numbers_is_left_out(recorded):
    paper = tables.published(2).set_index("method")
    table = tables.compare(records.load_runs(RUNS), paper, RUNS)
    assert "difference" not in tables.page(table, "Method")[0]
    assert "95 % CI" in tables.page(table, "Method")[0]


def test_an_interval_shows_both_ends_and_a_dash_where_there_is_none():
    assert tables.interval(-0.44, 1.36) == "[-0.4, 1.4]"
    assert tables.interval(-0.44, 1.36, digits=2, sign="+") == "[-0.44, +1.36]"
    assert tables.interval(float("nan"), float("nan")) == tables.UNKNOWN


def test_an_unknown_table_of_the_paper_is_refused():
    with pytest.raises(UserError, match="Tables 1 to 14"):
        tables.published(15)


@pytest.mark.parametrize(
    ("finding", "shown"),
    [
        ("a, 1 and finance.", "a, 1 and finance."),
        ("a is 1 (2; chance 3); b is nan; c is 4.", "a is 1 (2; chance 3); c is 4."),
        ("a is 1; b is 2 (nan; chance 3).", "a is 1."),
        ("a is +nan. B reaches 5 – 6.", None),
        ("the range 5–10 holds.", "the range 5–10 holds."),
    ],
)
def test_a_finding_stands_in_the_md_without_the_clauses_whose_number_is_unknown(finding, shown, workspace):
    text = Output("tiny").save("audit_selection", [["x"], ["1"]], "Caption.", finding=finding)
    found = [line for line in text.splitlines() if line.startswith("What we found: ")]
    assert found == ([f"What we found: {shown}"] if shown else [])


def test_a_row_of_dots_without_numbers_is_labelled_missing_or_undefined():
    figure, ax = plt.subplots()
    table = pd.DataFrame({"a": [1.0, np.nan, np.nan]}, index=["Mix", "CIRL", "FACT"])
    style.dots(ax, table, measured=["Mix", "FACT"])
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
        assert style.color(row) == style.COLORS["CIRL"], row
    assert style.color("FACT, classifier at 1x") == style.COLORS["FACT"]
    assert style.color("Mixup") == style.COLORS["others"]


ODD = {  # a change of a run's folder: (file, its content), and the reason given
    "a list": ("metrics.json", "[]", "not a JSON object"),
    "null": ("metrics.json", "null", "not a JSON object"),
    "deep nesting": ("metrics.json", "[" * 100000 + "]" * 100000, "nested too deeply"),
    "no dict under a rule": ("metrics.json", '{"source_val": 3}', "source_val=3"),
    "accuracy NaN": ("metrics.json", '{"source_val": {"target": NaN}}', "source_val.target=nan"),
    "accuracy 1000": ("metrics.json", '{"last": {"target": 1000}}', "last.target=1000"),
    "accuracy in words": ("metrics.json", '{"last": {"target": "high"}}', "last.target='high'"),
    "provenance in words": ("config.json", '{"provenance": "mine"}', "provenance"),
}


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_record_is_skipped_with_the_reason_and_the_others_are_read(odd, recorded):
    name, content, why = ODD[odd]
    run = RUNS["DeepAll"][0]
    file = paths.RUNS / run.id / name
    if content.startswith("{"):
        kept, changes = json.loads(file.read_text()), json.loads(content)
        for key, value in changes.items():
            kept[key] = {**kept[key], **value} if isinstance(value, dict) else value
        content = json.dumps(kept)
    file.write_text(content)
    table = records.load_runs(RUNS)
    assert why in table.attrs["skipped"][run.id] and table.attrs["missing"] == [run.id] and len(table) == 3
    with pytest.warns(UserWarning, match=f"skipped {run.id}"):
        records.collect(RUNS["DeepAll"], "tiny")
    assert len(pd.read_csv(paths.DATA / "results.csv")) == 3


def test_a_record_without_provenance_counts_as_of_other_code(recorded):
    run = RUNS["DeepAll"][0]
    file = paths.RUNS / run.id / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "provenance": None}))
    assert records.load_runs(RUNS).attrs["other_code"] == [run.id]


@pytest.mark.parametrize(
    "content", [None, "", "epoch\n0\n", "epoch,source_val,target,independence\n0,1,nan,1\n", "a\0,\n"]
)
def test_a_run_with_an_odd_history_is_skipped_by_curves_and_collect(content, recorded):
    run = RUNS["DeepAll"][0]
    file = paths.RUNS / run.id / "history.csv"
    file.unlink() if content is None else file.write_text(content)
    table = records.load_history(RUNS)
    assert "history.csv" in table.attrs["skipped"][run.id] and table.attrs["missing"] == [run.id]
    with pytest.warns(UserWarning, match=f"skipped {run.id}: history.csv"):
        records.collect(RUNS["DeepAll"], "tiny")
    assert run.id not in set(pd.read_csv(paths.DATA / "results.csv")["id"])


COLLECTED = {  # a change of the rows of results.csv, and the reason given
    "twice": (lambda table: pd.concat([table, table[:1]]), "two rows"),
    "no column": (lambda table: table.drop(columns="last.target"), "last.target=None"),
    "NaN": (
        lambda table: table.assign(**{"oracle.target": [np.nan, *table["oracle.target"][1:]]}),
        "oracle.target=nan",
    ),
    "1000": (lambda table: table.assign(**{"last.target": [1000.0, *table["last.target"][1:]]}), "last.target=1000"),
    "words": (lambda table: table.assign(**{"last.target": ["high", *table["last.target"][1:]]}), "last.target=nan"),
}


@pytest.mark.parametrize("odd", COLLECTED)
def test_an_odd_row_of_the_collected_file_is_skipped_with_the_reason(odd, recorded):
    records.collect(RUNS["DeepAll"], "tiny")
    paths.RUNS.rename(recorded / "gone")
    change, why = COLLECTED[odd]
    file = paths.DATA / "results.csv"
    table = pd.read_csv(file)
    change(table).to_csv(file, index=False)
    first = table["id"][0]
    found = records.load_runs(RUNS)
    assert why in found.attrs["skipped"][first] and first in found.attrs["missing"]
    assert len(found) == (0 if odd == "no column" else 3)


def test_an_empty_collected_file_holds_no_records_and_says_so(recorded):
    (paths.DATA / "results.csv").write_text("")
    paths.RUNS.rename(recorded / "gone")
    with pytest.warns(UserWarning, match="results.csv is empty"):
        assert records.load_runs(RUNS).empty


def test_a_comma_in_a_folder_name_does_not_damage_the_records(folder):
    place = folder.parent / "a,b"
    folder.rename(place)
    run = Run(f"folder:{place}", "wool", "deepall", backbone="convnet32", weights="none")
    record(run, 70)
    for _ in range(2):  # written, read, and written again
        records.collect([run], "tiny")
    paths.RUNS.rename(folder.parent / "gone")
    assert records.load_runs({"x": [run]})["accuracy"].tolist() == [70]
    assert len(records.load_history({"x": [run]})) == 1


def test_two_processes_that_collect_at_once_lose_nothing(recorded):
    runs = [Run(method="deepall", seed=seed) for seed in range(40, 52)]
    for run in runs:
        record(run, 50)
    line = (
        "import sys, time; from cirl.study import records; from cirl.run.config import Run; write = records.write;"
        "records.write = lambda *given: (time.sleep(0.3), write(*given));"  # a slow disk
        "records.collect([Run(method='deepall', seed=int(s)) for s in sys.argv[1:]], 'tiny')"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", line, *(str(run.seed) for run in part)])
        for part in (runs[:6], runs[6:])
    ]
    assert [process.wait() for process in both] == [0, 0]
    assert set(pd.read_csv(paths.DATA / "results.csv")["id"]) == {run.id for run in runs}
    assert set(pd.read_csv(paths.DATA / "history.csv")["id"]) == {run.id for run in runs}


BROKEN = {  # model.pt of a finished run
    "empty": b"",
    "text": b"no weights",
    "a list": [1],
    "another dict": {"a": torch.ones(2)},
    "no tensor": {"h1.weight": None},
    "another shape": {"h1.weight": torch.ones(3)},
    "NaN": {"h1.weight": torch.full((10, 32), torch.nan)},
    "an object": {"h1.weight": Path("x")},
}


@pytest.mark.parametrize("broken", [*BROKEN, "cut", "flipped"])
def test_a_run_with_broken_weights_is_skipped_by_collect_and_importance(broken, recorded):
    run = RUNS["DeepAll"][0]
    keep_weights(run, BROKEN.get(broken, {"h1.weight": torch.randn(10, 32)}))
    file = paths.RUNS / run.id / "model.pt"
    whole, middle = file.read_bytes(), file.stat().st_size // 2
    if broken == "cut":
        file.write_bytes(whole[:middle])
    elif broken == "flipped":
        file.write_bytes(whole[:middle] + bytes([whole[middle] ^ 4]) + whole[middle + 1 :])
    table = records.load_runs(RUNS, importance=True)
    assert "model.pt" in table.attrs["skipped"][run.id] and len(table) == 3
    with pytest.warns(UserWarning, match=f"skipped {run.id}: .*model.pt"):
        records.collect(RUNS["DeepAll"], "tiny")
    assert set(pd.read_csv(paths.DATA / "results.csv")["id"]) == {each.id for each in RUNS["DeepAll"][1:]}


def test_line_ends_of_windows_change_nothing(recorded):
    def shown():
        return records.load_runs(RUNS)["accuracy"].tolist(), len(records.load_history(RUNS))

    def as_on_windows(files):
        for file in files:
            file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))

    expected, collected = shown(), [paths.DATA / "results.csv", paths.DATA / "history.csv"]
    records.collect(RUNS["DeepAll"], "tiny")
    as_on_windows([*paths.RUNS.glob("*/*"), *collected])
    assert shown() == expected
    records.collect(RUNS["DeepAll"], "tiny")
    assert not any(b"\r" in file.read_bytes() for file in collected)
    as_on_windows(collected)
    paths.RUNS.rename(recorded / "gone")
    assert shown() == expected


@pytest.mark.parametrize(
    "content", [b"id,study\n\xff\xfe,tiny\n", b"id,study\n<<<<<<< HEAD\n", b"\xef\xbb\xbfid,study\nx,tiny\n"]
)
def test_a_collected_file_in_another_encoding_or_with_a_conflict_is_one_sentence(content, recorded):
    (paths.DATA / "results.csv").write_bytes(content)
    for read in (lambda: records.load_runs(RUNS), lambda: records.collect(RUNS["DeepAll"], "tiny")):
        with pytest.raises(UserError, match=r"results\.csv, line \d, is damaged. Restore it with git checkout"):
            read()


@pytest.mark.parametrize("name", ["results.csv", "history.csv"])
def test_a_disk_that_fills_while_collecting_loses_nothing(name, recorded, monkeypatch):
    records.collect(RUNS["DeepAll"][:2], "tiny")
    before = {file: (paths.DATA / file).read_text() for file in ("results.csv", "history.csv")}

    def full(descriptor, kept=os.fsync):
        if f"/.{name}." in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        kept(descriptor)

    with (
        monkeypatch.context() as patch,
        pytest.raises(UserError, match=r"No space left on device.*; the previous content is untouched"),
    ):
        patch.setattr(os, "fsync", full)
        records.collect(RUNS["DeepAll"], "tiny")
    assert (paths.DATA / name).read_text() == before[name] and not [*paths.DATA.glob(".*.tmp")]
    records.collect(RUNS["DeepAll"], "tiny")
    for file in before:
        assert set(pd.read_csv(paths.DATA / file)["id"]) == {run.id for run in RUNS["DeepAll"]}


def test_what_a_killed_collect_left_is_removed(recorded):
    for name in ("results.csv", "history.csv"):
        (paths.DATA / f".{name}.17.tmp").write_text("unfinished")
    records.collect(RUNS["DeepAll"], "tiny")
    assert not [*paths.DATA.glob(".*.tmp")]


class Page(HTMLParser):
    """What a browser would run or fetch: tags, and attributes with scripts or addresses."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.active = set(), []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        for name, value in attrs:
            outside = name in ("src", "href") and not value.startswith(("data:image/png", "data:,", "#", "figures/"))
            if name.startswith("on") or outside:
                self.active.append((tag, name, value))


HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>[x](javascript:alert(3)) ![y](http://z/y.png)"


def test_a_foreign_record_puts_no_script_into_the_page(recorded):
    run = RUNS["DeepAll"][0]
    file = paths.RUNS / run.id / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "sampling": HOSTILE}))
    other = paths.RUNS / RUNS["DeepAll"][1].id / "config.json"
    config = json.loads(other.read_text())
    config["provenance"]["commit"] = HOSTILE
    other.write_text(json.dumps(config))
    table = records.load_runs(RUNS)
    assert HOSTILE in records.coverage(table)
    Output("tiny").save("table01", [["a"], ["1"]], "A caption.", table)
    html = page.page("tiny")
    shown = Page(html)
    assert "alert(1)" in html  # the reason is shown, as text
    assert not shown.tags & {"script", "iframe", "object"} and not shown.active
    assert "default-src 'none'" in html


def test_a_foreign_caption_puts_no_script_into_the_page(recorded):
    """figures/<study>/*.md may be somebody else's, too."""
    file = paths.FIGURES / "tiny" / "table01.md"
    file.parent.mkdir(parents=True)
    file.write_text(f"**Table 1.** A caption. {HOSTILE.split(' ![')[0]}", encoding="utf-8")
    html = page.page("tiny")
    shown = Page(html)
    assert "alert(1)" in html and not shown.tags & {"script", "iframe", "object"}
    assert not [value for _, name, value in shown.active if name.startswith("on") or value.startswith("javascript:")]


@pytest.fixture
def browser(tmp_path):
    """The title that a page has after Chromium has run what it runs."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed (apt-get install chromium)")
    offline = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"]
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", *offline]

    def title(html):
        file = tmp_path / "page.html"
        file.write_text(html, encoding="utf-8")
        command = [program, *flags, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", file.as_uri()]
        dom = subprocess.run(command, capture_output=True, text=True, timeout=300).stdout
        return re.search("<title>(.*)</title>", dom)[1]

    return title


def test_chromium_runs_no_script_of_a_foreign_record(browser, recorded):
    hostile = "<script>document.title='ran'</script><img src=x onerror=\"document.title='ran'\">"
    assert browser(f"<title>CIRL</title>{hostile}") == "ran"  # it would
    for i, name in enumerate(("sampling", "provenance")):
        file = paths.RUNS / RUNS["DeepAll"][i].id / "config.json"
        config = json.loads(file.read_text())
        file.write_text(json.dumps({**config, name: hostile if i == 0 else {**config[name], "commit": hostile}}))
    Output("tiny").save("table01", [["a"], ["1"]], "A caption.", records.load_runs(RUNS))
    html = page.page("tiny")
    assert html.count("document.title=") >= 2  # the reason and the commit are shown, as text
    policy = re.search("<meta http-equiv.*>", html)[0]
    for each in (html, html.replace(policy, "")):  # nor would it without the page's own policy
        assert browser(each).startswith("CIRL: figures and tables")


def test_files_are_utf8_in_any_locale(recorded):
    line = (
        "from cirl.show import page; from cirl.show.save import Output; from cirl.study import records;"
        "from cirl import paths; from cirl.run.files import write;"
        "Output('tiny').save('audit_recipe', [['κ'], ['±']], 'é', finding='±τ.');"
        "write(paths.ROOT / 'report.html', page.page('tiny'))"
    )
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "utf-8"}
    (recorded / "script.py").write_text(line.replace(";", "\n").replace("\n ", "\n"), encoding="utf-8")
    subprocess.run([sys.executable, str(recorded / "script.py")], env=plain, check=True)
    assert "±τ." in (paths.FIGURES / "tiny" / "audit_recipe.md").read_text(encoding="utf-8")
    assert "κ" in (recorded / "report.html").read_text(encoding="utf-8")


def verdict(differences, late=None, **more):
    """The verdict on `a` above `b`, given paired differences by target and seed, and the late changes of the rows."""
    cells = [{"row": row, "target": "t", "seed": seed} for row in "ab" for seed in range(len(differences))]
    values = pd.DataFrame(cells, columns=["row", "target", "seed"])
    values[more.get("value", "accuracy")] = [*differences, *[0.0] * len(differences)]
    return claims.judge(claims.Claim("table05", "a is above b", "a", "b", **more), values, late or {})


@pytest.mark.parametrize(
    ("differences", "within", "word"),
    [
        ([1.0, 2.0, 3.0, 2.0], None, "holds"),
        ([-1.0, -2.0, -3.0, -2.0], None, "refuted"),
        ([-1.0, 2.0, 3.0], None, "undecided"),
        ([5.0], None, "undecided"),  # one pair has no interval
        ([], None, "undecided"),
        ([0.1, -0.2, 0.1, 0.0], 2, "holds"),
        ([5.0, 5.1, 4.9], 2, "refuted"),
        ([1.9, 2.1, 2.0], 2, "undecided"),
    ],
)
def test_a_claim_is_decided_by_the_interval_of_paired_differences(differences, within, word):
    found = verdict(differences, within=within)
    assert found.word == word and found.n == len(differences)


@pytest.mark.parametrize(
    ("late", "word", "note"),
    [
        ({"a": 0.49, "b": -0.49}, "holds", ""),
        ({"a": 0.5, "b": 0.1}, "undecided", "; not converged: a (+0.5)"),
        ({"a": 0.7, "b": -1.2, "c": 9.0}, "undecided", "; not converged: a (+0.7), b (-1.2)"),
        ({"c": 9.0}, "holds", ""),
        ({"a": float("nan")}, "holds", ""),  # a single epoch does not tell
    ],
)
def test_a_claim_is_undecided_if_a_row_has_not_converged(late, word, note):
    found = verdict([1.0, 2.0, 3.0, 2.0], late)
    assert found.word == word and str(found).endswith(f"n = 4{note}")
    assert claims.scoreboard([found])[1][2] == found.interval + note
    assert list(claims.frame([found])["verdict"]) == [word]


def test_a_claim_that_the_interval_leaves_open_says_nothing_about_convergence():
    assert "converged" not in str(verdict([-1.0, 2.0, 3.0], {"a": 2.0}))


def test_the_convergence_of_a_group_of_rows_is_that_of_its_mean():
    values = pd.DataFrame(
        [(row, "t", seed, 5.0 * (row == "a") + 0.1 * seed * (row == "b")) for row in "abc" for seed in range(3)],
        columns=["row", "target", "seed", "accuracy"],
    )
    claim = claims.Claim("table05", "x", "a", ("b", "c"))
    assert claims.judge(claim, values, {"b": 0.8, "c": -0.2}).word == "holds"
    found = claims.judge(claim, values, {"b": 0.8, "c": 0.8})
    assert found.word == "undecided" and str(found).endswith("; not converged: mean of 2 rows (+0.8)")


def test_the_verdicts_of_a_study_look_at_the_last_epochs_of_its_runs(recorded):
    for run in catalog.expected("table05", "tiny"):
        gain = {"deepall": 0, "mix": 5}.get(run.method, 9) + 0.01 * run.seed
        record(run, 70 + gain)
    text = "The augmentation alone, Mix, is above DeepAll"
    assert {v.claim.text: v.word for v in claims.verdicts("tiny", "table05")}[text] == "holds"
    for run in catalog.rows("table05", "tiny")["Mix"]:
        still_moving(run, 2)
    assert {v.claim.text: v.word for v in claims.verdicts("tiny", "table05")}[text] == "undecided"


def test_the_interval_of_a_claim_is_students_over_pairs():
    found = verdict([1.0, 2.0, 3.0])
    half = 4.3027 / np.sqrt(3)
    assert (found.mean, found.low, found.high) == pytest.approx((2, 2 - half, 2 + half), abs=1e-3)
    assert "+2.0 [-0.5, +4.5], n = 3" in str(found)


def test_a_claim_pairs_what_both_rows_have_and_averages_groups_of_rows():
    values = pd.DataFrame(
        [("a", "t", 0, 9.0), ("a", "t", 1, 8.0), ("b", "t", 0, 1.0), ("c", "t", 0, 3.0), ("c", "t", 1, 5.0)],
        columns=["row", "target", "seed", "accuracy"],
    )
    found = claims.judge(claims.Claim("table05", "x", "a", ("b", "c")), values, {})
    assert found.n == 1 and found.mean == 7  # b lacks seed 1


@pytest.mark.parametrize("name", ["tiny", "digits", "lite", "paper"])
def test_a_claim_is_in_the_list_once_and_compares_rows_that_its_item_has(name):
    texts = [verdict.claim.text for verdict in claims.verdicts(name)]
    assert len(texts) == len(set(texts)) > 5
    for claim in claims.claims(name):
        rows = {*catalog.rows(claim.item, name)}
        for side in (claim.more, claim.less):
            named = {side} if isinstance(side, str) else {*side}
            assert {row.removesuffix(", first epoch") for row in named} <= rows, claim


def test_the_draws_of_eq_16_are_held_against_the_released_ones(workspace):
    rows = catalog.rows("table01", "digits")
    pairs = zip(rows["CIRL (draws of Eq. 16)"], rows["CIRL"], strict=True)
    for more, (equation, released) in zip((0.5, 1.5, 1.0, 1.0), pairs, strict=False):
        record(released, 70)
        record(equation, 70 + more)
    (found,) = [each for each in claims.verdicts("digits", "table01") if "Eq. 16" in each.claim.text]
    assert found.claim.control and found.claim.text == "CIRL (draws of Eq. 16) is above CIRL on Digits-DG (convnet)"
    assert (found.word, found.interval, found.n) == ("holds", "+1.0 [+0.4, +1.6]", 4)


def test_one_comparison_under_several_items_is_one_claim():
    found = {verdict.claim.text: verdict.items for verdict in claims.verdicts("tiny")}
    assert found["CIRL attends to the object more than DeepAll"] == ("figure4", "figure6")


def test_the_page_opens_with_the_scoreboard_and_follows_the_paper(recorded):
    for stem in catalog.ITEMS:
        if catalog.has("tiny", stem) and stem not in ("audit_tau", "claims"):
            Output("tiny").save(stem, [["a"], ["1"]], "A caption.")
    html = page.page("tiny")
    *sections, last = re.findall(r'<section id="(\w+)">', html)
    assert last == "waiting" and '<li id="audit_tau">Audit: weight of Eq. 10: no records</li>' in html
    assert sections[0] == "claims" and len(sections) == len(set(sections))
    paper = [stem for stem in sections if stem.startswith(("figure", "table"))]
    assert paper == [
        stem for stem in catalog.ITEMS if stem.startswith(("figure", "table")) and catalog.has("tiny", stem)
    ]
    assert sections[1:][: len(paper)] == paper and sections[-1] == "benchmark"
    assert re.findall(r'<a href="#(\w+)">', html) == [*sections, last]
    expected = {run for stem in catalog.ITEMS for run in catalog.expected(stem, "tiny")}
    assert f"{len(expected & {*RUNS['DeepAll']})} of {len(expected)} runs" in html


def test_a_field_that_old_rows_lack_keeps_its_type(recorded):
    old = Run(seed=8)
    record(old, 70)
    records.collect([old], "tiny")
    table = pd.read_csv(paths.DATA / "results.csv").assign(compile=None, augment=None)
    table.to_csv(paths.DATA / "results.csv", index=False)
    new = Run(seed=9)
    record(new, 71)
    records.collect([new], "tiny")
    for name in (old.id, new.id):
        shutil.rmtree(paths.RUNS / name)
    found = records.load_runs({"CIRL": [old, new]})
    assert list(found["accuracy"]) == [70, 71] and not found.attrs["skipped"]


def test_rows_without_our_numbers_are_dimmed_and_missing_runs_folded(recorded):
    rows = {**RUNS, "CIRL": [Run(method="cirl")]}
    lines = [["Method", "print", "street", "paper avg"], ["DeepAll", "–", "**71.0**", "–"]]
    lines += [["FACT", "– (70.0)", "– (81.0)", "75.5"]]
    Output("tiny").save("table05", lines, "A caption.", records.load_runs(rows))
    html = page.page("tiny")
    assert re.search(r'<tr class="dim">\s*<td[^>]*>FACT', html) and not re.search(r'class="dim">\s*<td[^>]*>Deep', html)
    assert "<summary>Missing runs (1)</summary>" in html and html.count("Missing runs") == 1


def test_a_claim_without_runs_is_folded_on_the_page(recorded):
    for run in catalog.expected("table01", "tiny"):
        if run.method in ("deepall", "cirl"):
            record(run, 70 + 5 * (run.method == "cirl") + run.seed)
    shown, folded = page.page("tiny").split("<details>")[:2]
    assert "CIRL is above DeepAll on tiny" in shown and "CIRL is above FACT on tiny" not in shown
    assert "CIRL is above FACT on tiny" in folded and "CIRL is above DeepAll on tiny" not in folded


def test_the_page_over_all_studies_says_which_study_a_claim_rests_on(recorded):
    rows = catalog.rows("table01", "digits")
    for run in (*rows["DeepAll"], *rows["CIRL"]):
        record(run, 70 + 5 * (run.method == "cirl") + run.seed)
    for claim in ("CIRL is above DeepAll on Digits-DG", "CIRL is above FACT on Digits-DG"):  # with runs, and without
        line = rf"<td>{claim}(?:(?!</tr>).)*<td>Table 1{{}}</td>\s*</tr>"
        assert re.search(line.format(r" \(digits\)"), page.page(), re.S)
        assert re.search(line.format(""), page.page("digits"), re.S)


def test_the_counts_are_a_sentence():
    found = [verdict([1.0, 2.0, 3.0, 2.0]), verdict([]), verdict([1.0, -1.0]), verdict([1.0, 2.0], control=True)]
    assert claims.counts(found) == (
        "Of the paper's 3 claims 1 holds, 0 are refuted and 2 are undecided; of these 1 for lack of runs"
    )
    found += [verdict([1.0, 2.0, 3.0, 2.0], {"a": 1.0}), verdict([1.0, -1.0], {"a": 1.0})]
    assert claims.counts(found) == (
        "Of the paper's 5 claims 1 holds, 0 are refuted and 4 are undecided; of these 1 for lack of runs and 1 "
        "because training has not converged"
    )


@pytest.mark.parametrize(
    ("value", "differences", "text"),
    [
        ("accuracy", [9.0, 9.4], "+9.2 [+6.7, +11.7]"),
        ("accuracy", [0.02], "+0.0"),
        ("distance", [0.1, 0.12], "+0.110 [-0.017, +0.237]"),
        ("independence", [-782.4], "-782"),
        ("accuracy", [], "–"),
    ],
)
def test_an_interval_has_the_digits_of_its_measure(value, differences, text):
    assert verdict(differences, value=value).interval == text


def test_the_page_prefers_real_data_as_soon_as_the_claim_is_measured_on_every_target(recorded):
    rows = catalog.rows("table01", "digits")
    first = [run for run in (*rows["DeepAll"], *rows["CIRL"]) if run.seed == 0]
    for run in (*first[:-1], *catalog.rows("table01", "tiny")["CIRL"]):
        record(run, 70)
    assert page.most_real("table01") == page.most_real("table11") == "tiny"
    record(first[-1], 70)
    assert page.most_real("table01") == page.most_real("table11") == "digits"
    assert page.most_real("table05") == "tiny"  # its claims are about the variants


def test_the_page_over_all_studies_takes_each_item_from_the_most_real_study_with_records(recorded):
    assert page.most_real("table05") == page.most_real("figure1") == "tiny"
    for run in catalog.expected("table01", "digits"):
        record(run, 70)
    assert page.most_real("table01") == "digits"
    assert page.most_real("table05") == "digits" and page.most_real("figure1") == "tiny"
    assert page.most_real("table02") == "paper"  # the only study that has it
    Output("digits").save("table01", [["a"], ["1"]], "A caption.")
    html = page.page()
    assert "Table 2: no records" in html and "From the study digits." in html
    assert "<h2>Table 1</h2>" in html and "Table 5, stand-in on digits_dg: not rendered yet" in html
    record(catalog.expected("figure3", "tiny")[0], 80)
    for name in ("tiny", "digits"):  # drawn with a run on the embedded data in every study
        Output(name).save("figure3", plt.figure(), "A caption.")
        assert page.most_real("figure3") == "tiny"
    assert "CIRL is above DeepAll on Digits-DG (convnet)" in html
