from dataclasses import replace

import pytest
import yaml

from cirl import paths
from cirl.run.config import Run
from cirl.study import catalog
from cirl.study.resources import DAY, group, resources
from cirl.study.studies import STUDIES

PACS = Run("pacs", "sketch")


def test_the_embedded_data_and_the_digits_ask_for_no_gpu_and_the_paper_s_photographs_for_one():
    assert all(resources(run)["gpu"] == 0 for name in ("tiny", "digits") for run in catalog.all_runs(name))
    photographs = [run for run in catalog.all_runs("paper") if run.dataset not in ("tiny", "digits_dg")]
    assert photographs and all(resources(run)["gpu"] == 1 for run in photographs)


def test_a_folder_of_images_asks_for_what_pacs_does(folder):
    run = Run(f"folder:{folder}", "wool")
    assert run.epochs == PACS.epochs and resources(run) == resources(PACS)


def test_more_epochs_and_a_larger_backbone_ask_for_more_time():
    short = replace(PACS, epochs=10)
    assert resources(short)["runtime"] < resources(replace(short, epochs=20))["runtime"]
    assert resources(short)["runtime"] < resources(Run("pacs", "sketch", backbone="resnet50", epochs=10))["runtime"]


@pytest.mark.parametrize("name", STUDIES)
def test_every_run_of_every_study_asks_for_whole_numbers_within_a_day(name):
    for run in catalog.all_runs(name, with_extras=True):
        asked = resources(run)
        assert all(type(value) is int for value in asked.values()), run.id
        assert 0 < asked["runtime"] <= DAY and asked["mem_mb"] >= 4000, run.id


def test_only_runs_of_minutes_share_a_job_and_eight_of_them_fit_into_a_day():
    grouped = [run for name in STUDIES for run in catalog.all_runs(name) if group(run) is not None]
    assert grouped and {run.dataset for run in grouped} == {"tiny"}
    profile = yaml.safe_load((paths.ROOT / "profiles" / "slurm" / "config.yaml").read_text())
    (components,) = profile["group-components"]
    name, size = components.split("=")
    assert {group(run) for run in grouped} == {name}
    assert int(size) * max(resources(run)["runtime"] for run in grouped) <= DAY
    assert profile["cores"] == 1  # the plugin runs a group one by one; otherwise its time would be that of one run


def test_both_profiles_take_the_same_reasons_to_train_again():
    default, slurm = (
        yaml.safe_load((paths.ROOT / "profiles" / name / "config.yaml").read_text()) for name in ("default", "slurm")
    )
    assert all(slurm[key] == value for key, value in default.items() if key != "cores")
