"""`make` compares the runs of the core with the committed records."""

import pandas as pd
import pytest
from helpers import record

from cirl import paths
from cirl.run.config import Run
from cirl.show import reproduce
from cirl.study import catalog, records

CORE = catalog.core("tiny")


def keep(runs, accuracy, **more):
    """Records of the runs in results.csv, and no folders."""
    for run in runs:
        record(run, accuracy, **more)
    records.collect(runs, "tiny")
    paths.RUNS.rename(paths.DATA / "elsewhere")


def test_the_core_is_the_main_methods_everywhere():
    assert len(CORE) == 12 and {run.seed for run in CORE} == {0}
    assert {(run.method, run.target) for run in CORE} == {
        (method, target) for method in ("deepall", "mix", "cirl") for target in ("plain", "photo", "street", "print")
    }
    assert {run.id for run in CORE} <= {run.id for run in catalog.all_runs("tiny")}


def test_agreement_counts_runs_within_the_tolerance_and_equal_weights(workspace):
    keep(CORE[:4], 80.0, weights="a")
    for run, accuracy, weights in zip(CORE, (80.0, 80.9, 81.2, 80.0), "abab", strict=False):
        record(run, accuracy, weights=weights)
    table = reproduce.agreement(CORE)
    assert table["difference"].tolist() == pytest.approx([0, 0.9, 1.2, 0])
    assert table["identical"].tolist() == [True, False, True, False]
    assert reproduce.sentence(table, 4) == (
        "3 of 4 runs agree with the records within 1 point, 2 bit for bit; largest difference 1.2 points."
    )
    assert "8 without a record" in reproduce.write_agreement("tiny")
    text = (paths.FIGURES / "tiny" / "reproduced.md").read_text(encoding="utf-8")
    assert f"| `{CORE[2].id}` | 81.2 | 80.0 | +1.2 | yes |" in text


def test_a_record_without_a_checksum_is_never_bit_for_bit(workspace):
    keep(CORE[:1], 80.0, weights=None)
    record(CORE[0], 80.0, weights=None)
    assert not reproduce.agreement(CORE)["identical"].any()


def test_records_of_before_the_machine_was_recorded_are_compared_too(workspace):
    keep(CORE[:1], 80.0)
    file = paths.DATA / "results.csv"
    pd.read_csv(file).drop(columns=["cpu", "threads", "model_sha256", "data_digest"]).to_csv(file, index=False)
    record(CORE[0], 80.0)
    assert reproduce.agreement(CORE)["difference"].tolist() == [0]
    assert "1 of 12 runs agree" in reproduce.write_agreement("tiny")


def test_the_time_left_follows_from_the_records_and_from_how_fast_this_machine_was(workspace):
    keep(CORE[:4], 80.0, seconds=60.0)
    assert reproduce.progress(CORE[:4], 2) == "0 of 4 runs done, about 2 min left"  # 4 x 66 s on 2 cores
    record(CORE[0], 80.0, seconds=180.0)
    assert reproduce.progress(CORE[:4], 1) == "1 of 4 runs done, about 9 min left"  # 3 x (3 x 60 + 6) s
    assert reproduce.progress([*CORE[:4], Run(seed=7)], 1) == "1 of 5 runs done"  # no record to estimate from


def test_an_item_says_how_many_of_its_runs_were_trained_here(workspace):
    keep(CORE[:2], 80.0)
    record(CORE[0], 81.0)
    assert records.coverage(records.load_runs({"DeepAll": CORE[:2]})) == "2 of 2 runs (1 trained here)"
