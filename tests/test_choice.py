"""Any runs, chosen by id or pattern, and compared."""

import json
import os
import shutil
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
from helpers import record, short, train
from scipy import stats

from cirl import paths
from cirl.errors import UserError
from cirl.run.config import Run
from cirl.run.folder import saved_run
from cirl.show import compare, tables
from cirl.study import records
from cirl.study.choice import by_row, choose

RUNS = [Run(method=m, target=t, seed=s) for m in ("deepall", "cirl") for t in ("street", "print") for s in (0, 1)]
ACCURACIES = (70, 72, 60, 64, 75, 78, 64, 70)


@pytest.fixture
def finished(workspace):
    for i, (accuracy, run) in enumerate(zip(ACCURACIES, RUNS, strict=True)):
        record(run, accuracy)
        os.utime(paths.RUNS / run.id / "metrics.json", ns=(i, i))
    return workspace


def test_ids_patterns_and_the_latest_choose_runs_without_repeating_them(finished):
    first, last = RUNS[0].id, RUNS[-1].id
    assert [run.id for run in choose(first)] == [first]
    assert [run.id for run in choose("latest")] == [last]
    assert [run.id for run in choose("*-deepall-street-*")] == [run.id for run in RUNS[:2]]
    assert [run.id for run in choose(f"latest {last} *-cirl-print-s1")] == [last]
    assert asdict(choose(first)[0]) == asdict(RUNS[0])


def test_collected_runs_are_chosen_as_well_unless_their_weights_are_needed(finished):
    records.collect(RUNS, "tiny")
    shutil.rmtree(paths.RUNS / RUNS[0].id)
    (found,) = choose(RUNS[0].id)
    assert found.id == RUNS[0].id and asdict(found) == asdict(RUNS[0])
    assert len(choose("tiny-*")) == len(RUNS)
    with pytest.raises(UserError, match=r"no finished run; .* has 0"):
        choose("tiny-*", weights=True)
    (paths.RUNS / RUNS[1].id / "model.pt").touch()
    assert [run.id for run in choose("tiny-*", weights=True)] == [RUNS[1].id]


def test_a_schedule_or_domain_that_looks_like_a_number_stays_text(workspace):
    run = Run(method="deepall", schedule="0.8")
    record(run, 70)
    records.collect([run], "tiny")
    shutil.rmtree(paths.RUNS)
    (found,) = choose(run.id)
    assert found.schedule == "0.8" and found.drops == (0.8,)


def test_without_collected_records_the_folders_alone_are_chosen_from(finished):
    (paths.DATA / "results.csv").write_text("")
    with pytest.warns(UserWarning, match="results.csv is empty"):
        assert len(choose("tiny-*")) == len(RUNS)
    (paths.DATA / "results.csv").write_text("id,study\nbroken\n")
    with pytest.raises(UserError, match=r"results\.csv, line 2, is damaged"):
        choose("tiny-*")


@pytest.mark.parametrize("name", ["mine", "tiny-convnet32-magic-street-s0"])
def test_a_foreign_id_is_refused_in_a_sentence(name, finished):
    file = paths.RUNS / RUNS[0].id / "metrics.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "id": name}))
    with pytest.raises(UserError, match=f"'{name}' is not the id of a run of this project"):
        by_row(choose(RUNS[0].id))


@pytest.mark.parametrize("patterns", ["pacs-*", "tiny-convnet32-cirl-street-s9", "latest"])
def test_a_pattern_without_matches_is_refused(patterns, workspace):
    with pytest.raises(UserError, match="matches no finished run"):
        choose(patterns)
    with pytest.raises(UserError, match="runs is empty"):
        choose(" ")


def test_a_row_holds_targets_and_seeds_and_is_named_by_what_not_all_rows_have():
    assert {row: len(runs) for row, runs in by_row(RUNS).items()} == {"DeepAll": 4, "CIRL": 4}
    more = [Run(epochs=9), Run(epochs=9, tau=3.0, seed=1), Run(epochs=9, method="mixup+alpha=0.4")]
    assert list(by_row(more)) == ["CIRL", "CIRL, tau3", "Mixup+alpha=0.4"]
    other = [Run(), Run("digits_dg", "svhn")]
    assert list(by_row(other)) == ["CIRL, tiny, convnet32", "CIRL, digits_dg, convnet"]


def test_runs_of_a_folder_that_is_gone_stand_in_the_table(folder):
    run = short(folder)
    result = train(run)
    shutil.rmtree(folder)
    table = records.load_runs(by_row(choose("latest")))
    assert [*table["accuracy"]] == [result["source_val"]["target"]] and table.attrs["other_code"] == []
    assert saved_run(paths.RUNS / result["id"]).sources == ("clay", "ink")


def test_pooled_seeds_and_averages_are_those_of_each_data_set(finished):
    table = records.load_runs(by_row(choose("tiny-*")))
    pooled = compare.pooled(table).set_index(["row", "column"])
    assert pooled.loc[("DeepAll", "street"), ["mean", "n"]].tolist() == [71, 2]
    assert pooled.loc[("DeepAll", "avg"), "mean"] == 66.5  # of 65 and 68
    both = pd.concat([table, table.assign(dataset="other", target=table["target"] + "2", row=table["row"] + "2")])
    averages = compare.pooled(both).set_index(["row", "column"]).loc[[("CIRL", "avg"), ("CIRL2", "avg")], "mean"]
    assert averages.tolist() == [71.75, 71.75]


def test_paired_differences_are_a_paired_t_test(finished):
    table = records.load_runs(by_row(choose("tiny-*")))
    (row,) = compare.paired(table, "DeepAll").to_dict("records")
    differences = np.array(ACCURACIES[4:]) - np.array(ACCURACIES[:4])
    test = stats.ttest_rel(ACCURACIES[4:], ACCURACIES[:4]).confidence_interval()
    assert (row["row"], row["n"], row["mean"]) == ("CIRL", 4, differences.mean())
    np.testing.assert_allclose([row["low"], row["high"]], [test.low, test.high], rtol=1e-9)
    assert row["verdict"] == "above"
    assert compare.paired(table, "CIRL")["verdict"].tolist() == ["below"]
    fewer = table[(table["seed"] == 0) | (table["row"] == "CIRL")]
    fewer = fewer[(fewer["target"] == "street") | (fewer["row"] == "CIRL")]
    (row,) = compare.paired(fewer, "DeepAll").to_dict("records")  # one pair: no interval, no verdict
    assert (row["n"], row["mean"], row["verdict"]) == (1, 5, "undecided") and np.isnan(row["low"])
    assert compare.paired(table[table["row"] == "CIRL"], "CIRL").empty  # nothing to compare with
    with pytest.raises(UserError, match="baseline='FACT' is not possible; allowed: CIRL, DeepAll"):
        compare.paired(table, "FACT")


def test_both_tables_are_text_and_latex(finished):
    table = records.load_runs(by_row(choose("tiny-*")))
    lines = compare.table_lines(compare.pooled(table))
    assert lines[0] == ["", "print", "street", "avg", "95 % CI", "seeds"]
    assert lines[1][:4] == ["CIRL", "67.0 ± 4.2", "76.5 ± 2.1", "71.8 ± 3.2"] and lines[1][-1] == "2"
    lines = compare.difference_lines(compare.paired(table, "DeepAll"), "DeepAll")
    assert lines[1] == ["CIRL", "+5.2", "[+3.7, +6.8]", "4", "above"]
    one = compare.table_lines(compare.pooled(table[table["target"] == "street"]))
    assert one[0] == ["", "street", "95 % CI", "seeds"] and one[1][:2] == ["CIRL", "76.5 ± 2.1"]
    text = tables.latex(lines)
    assert r"95 \% CI" in text and text.count(r"\\") == 2 and r"\toprule" in text and r"\bottomrule" in text
