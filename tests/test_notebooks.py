"""Notebook lint, and the notebooks executed as a user would."""

import ast
import json
import os
import re
import shutil
import signal
import time
from dataclasses import fields
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from helpers import papermill, record

from cirl import paths
from cirl.data import tiny
from cirl.data.batches import loaders
from cirl.methods import build
from cirl.run import files
from cirl.run.checkpoint import serialized
from cirl.run.config import Run
from cirl.show import save
from cirl.study import catalog

NOTEBOOKS = sorted(paths.NOTEBOOKS.glob("*.ipynb"))
NOT_FIELDS = {"threads", "workers", "device", "again", "study"}


def cells(path, kind="code"):
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == kind]


def parameters(path):
    (cell,) = [cell for cell in cells(path) if "parameters" in cell.metadata.get("tags", [])]
    return ast.parse(cell.source).body, cell.source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
class TestLint:
    def test_a_notebook_is_short(self, path):
        assert len(nbformat.read(path, 4).cells) <= 12
        assert all(
            len(cell.source.splitlines()) <= 25 for cell in cells(path) if "parameters" not in str(cell.metadata)
        )

    def test_it_has_no_output_and_no_class(self, path):
        for cell in cells(path):
            assert not cell.outputs and cell.execution_count is None
            assert not re.search(r"^\s*class ", cell.source, re.M)

    def test_it_begins_with_a_title_and_ends_with_what_to_see(self, path):
        notes = cells(path, "markdown")
        assert notes[0].source.startswith("# ") and notes[-1].source.startswith("## What to see")

    def test_its_parameters_are_annotated_literals_with_a_help_comment(self, path):
        nodes, source = parameters(path)
        assert all(isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant) for node in nodes)
        assert all("#" in line and line.count("=") == 1 for line in source.splitlines())


OWNERS = [notebook for notebook in catalog.NOTEBOOKS if notebook != "00_tour"]


@pytest.mark.parametrize("notebook", OWNERS)
def test_every_parameter_decides_where_a_notebook_writes(notebook):
    """Otherwise other parameters would overwrite the committed figures."""
    path = paths.NOTEBOOKS / f"{notebook}.ipynb"
    given = {node.target.id: node.value.value for node in parameters(path)[0] if node.target.id != "study"}
    assert given.items() <= save.DEFAULTS.items()
    code = "\n".join(cell.source for cell in cells(path))
    handed = "".join(f", {name}={name}" for name in given)
    assert f"Output(study{handed})" in code


def test_the_training_notebooks_parameters_are_the_fields_of_run():
    nodes, _ = parameters(paths.NOTEBOOKS / "02_train.ipynb")
    given = {node.target.id: node.value.value for node in nodes}
    assert [name for name in given if name not in NOT_FIELDS] == [field.name for field in fields(Run)]
    assert all(given[field.name] == field.default for field in fields(Run))


SHORT = [("dataset", "tiny"), ("target", "street"), ("seed", 0), ("epochs", 1), ("batch_size", 64)]
ID = "tiny-convnet32-deepall-street-s0-epochs1-batch_size64"


@pytest.mark.slow
def test_the_papermill_line_of_the_readme_trains_and_the_second_time_touches_nothing(tmp_path):
    first = papermill("02_train", tmp_path / "out.ipynb", tmp_path, *SHORT, ("method", "deepall"))
    assert first.wait() == 0, first.stdout.read()
    folder = tmp_path / "data" / "runs" / ID
    before = {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in folder.iterdir()}
    assert max(before, key=lambda name: before[name][0]) == "metrics.json"
    assert papermill("02_train", tmp_path / "again.ipynb", tmp_path, *SHORT, ("method", "deepall")).wait() == 0
    assert {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in folder.iterdir()} == before
    assert f"{ID}: finished" in (tmp_path / "again.ipynb").read_text()


@pytest.mark.slow
def test_a_killed_training_notebook_ends_with_the_same_metrics(folder, tmp_path):
    line = [("dataset", f"folder:{folder}"), ("target", "wool"), ("backbone", "convnet32"), ("image_size", 32)]
    line += [("batch_size", 4), ("epochs", 6), ("lr", 0.01)]
    killed, whole = folder.parent / "killed", folder.parent / "whole"
    process = papermill("02_train", tmp_path / "a.ipynb", killed, *line, start_new_session=True)
    while process.poll() is None and not list(killed.glob("data/runs/*/last.pt")):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not list(killed.glob("data/runs/*/metrics.json"))
    for root in (killed, whole):
        assert papermill("02_train", tmp_path / f"{root.name}.ipynb", root, *line).wait() == 0
    results = [json.loads(next(root.glob("data/runs/*/metrics.json")).read_text()) for root in (killed, whole)]
    for result in results:
        result.pop("seconds")
    assert results[0] == results[1]
    assert re.search(r"[1-5] of 6 epochs done", (tmp_path / "killed.ipynb").read_text())


@pytest.mark.slow
def test_a_users_mistake_shows_a_message_and_no_traceback(tmp_path):
    process = papermill("02_train", tmp_path / "out.ipynb", tmp_path, ("kappa", 2))
    output, _ = process.communicate()
    assert process.returncode != 0
    assert "UserError: kappa=2.0 is not possible; allowed: a number between 0 and 1" in output
    assert "cirl/run/config.py" not in output and not (tmp_path / "data" / "runs").exists()


@pytest.mark.slow
def test_a_misspelt_parameter_does_not_train(tmp_path):
    process = papermill("02_train", tmp_path / "out.ipynb", tmp_path, ("epoch", 2))
    output, _ = process.communicate()
    assert process.returncode != 0 and not (tmp_path / "data" / "runs").exists()
    assert "UserError: The notebook has no parameter 'epoch'; did you mean 'epochs'?" in output


@pytest.fixture
def half_a_grid(workspace):
    """The published tables, and a record for every second run of the study tiny."""
    shutil.copytree(paths.ROOT / "data" / "paper", workspace / "data" / "paper")
    for number, run in enumerate(catalog.all_runs("tiny")):
        if number % 2:
            record(run, 60 + number % 7)
    return workspace


@pytest.mark.slow
@pytest.mark.parametrize("notebook", [name for name in OWNERS if name not in ("report", "benchmark")])
def test_an_item_renders_from_a_partial_grid_and_says_what_is_missing(notebook, half_a_grid):
    process = papermill(notebook, half_a_grid / "out.ipynb", half_a_grid)
    assert process.wait() == 0, process.stdout.read()
    for item in catalog.notebooks("tiny")[notebook]:
        file = half_a_grid / "figures" / "tiny" / f"{item}.md"
        if notebook == "figure4_figure6_gradcam":  # no weights: nothing is drawn
            assert not file.exists()
        elif item not in ("figure1", "figure2", "figure3", "audit_rank"):
            assert re.search(r"Missing runs \(\d+\)</summary>\n\n- `tiny-", file.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("notebook", catalog.AUDITS)
def test_an_audit_renders_where_some_runs_have_weights_and_some_networks_are_dead(notebook, half_a_grid):
    for number, run in enumerate(
        run for item in catalog.NOTEBOOKS[notebook] for run in catalog.expected(item, "tiny")[:12]
    ):
        record(run, 60 + number % 7, weights=None)
        weights = build(run, 10).state_dict()
        if number == 0:
            weights = {name: value * 0 for name, value in weights.items()}
        if number % 5 != 4:
            files.write(half_a_grid / "data" / "runs" / run.id / "model.pt", serialized(weights))
    process = papermill(notebook, half_a_grid / "out.ipynb", half_a_grid)
    assert process.wait() == 0, process.stdout.read()
    for item in catalog.NOTEBOOKS[notebook]:
        for kind in catalog.ITEMS[item].kinds:
            assert (half_a_grid / "figures" / "tiny" / f"{item}.{kind}").stat().st_size
        text = (half_a_grid / "figures" / "tiny" / f"{item}.md").read_text()
        assert len([line for line in text.splitlines() if line.startswith(save.FINDING)]) <= 1
        assert not re.search(r"\bnan\b", text)


@pytest.mark.slow
def test_the_weight_of_eq_10_is_drawn_without_weights_beside_cirl_as_released_and_deepall(half_a_grid):
    for run in catalog.core("tiny"):
        record(run, 60)
    process = papermill("audit_tau", half_a_grid / "out.ipynb", half_a_grid)
    assert process.wait() == 0, process.stdout.read()
    text = (half_a_grid / "figures" / "tiny" / "audit_tau.md").read_text(encoding="utf-8")
    assert all(f"| {row} | 60.0 |" in text for row in ("CIRL as released", "DeepAll"))


@pytest.mark.slow
def test_the_audit_of_selection_is_drawn_without_any_run(half_a_grid):
    process = papermill("audit_selection", half_a_grid / "out.ipynb", half_a_grid, ("study", "digits"))
    assert process.wait() == 0, process.stdout.read()
    text = (half_a_grid / "figures" / "digits" / "audit_selection.md").read_text(encoding="utf-8")
    assert f"0 of {len(catalog.expected('audit_selection', 'digits'))} runs" in text


@pytest.mark.slow
def test_attention_is_drawn_and_measured_on_all_images_of_the_target(half_a_grid):
    for run in catalog.expected("figure4", "tiny"):
        record(run, 60, weights=None)
        files.write(half_a_grid / "data" / "runs" / run.id / "model.pt", serialized(build(run, 10).state_dict()))
    process = papermill("figure4_figure6_gradcam", half_a_grid / "out.ipynb", half_a_grid)
    assert process.wait() == 0, process.stdout.read()
    place = half_a_grid / "figures" / "tiny"
    for item, targets in (("figure4", 1), ("figure6", 3)):
        assert all((place / f"{item}.{kind}").stat().st_size for kind in catalog.ITEMS[item].kinds)
        table = pd.read_csv(place / f"{item}.csv")
        assert len(table) == 3 * targets and set(table["images"]) == {10 * tiny.PER_CLASS}
        text = (place / f"{item}.md").read_text(encoding="utf-8")
        assert "HiResCAM" in text and "CIRL attends to the object more than DeepAll: " in text and "n = 4" in text


@pytest.mark.slow
def test_the_report_has_every_stem_rendered_or_not(half_a_grid):
    files.write(half_a_grid / "figures" / "tiny" / "table05.md", "**Table 5.** A caption.\n\n| a |\n| --- |\n| 1 |\n")
    process = papermill("report", half_a_grid / "out.ipynb", half_a_grid)
    assert process.wait() == 0, process.stdout.read()
    html = (half_a_grid / "figures" / "tiny" / "report.html").read_text(encoding="utf-8")
    assert "undecided" in (half_a_grid / "figures" / "tiny" / "claims.md").read_text(encoding="utf-8")
    assert (half_a_grid / "figures" / "report.html").exists()
    for items in catalog.notebooks("tiny").values():
        for item in items:
            assert (f'<section id="{item}">' in html and f'href="#{item}"' in html) or f'<li id="{item}">' in html
    assert "A caption." in html and "<table>" in html and "not rendered yet" in html
    assert not re.search(r'(src|href)="(?!data:|#)', html)  # nothing is fetched from elsewhere


@pytest.mark.slow
def test_the_tour_runs_and_draws_its_pictures(tmp_path):
    process = papermill("00_tour", tmp_path / "out.ipynb", tmp_path)
    assert process.wait() == 0, process.stdout.read()
    drawn = {file.stem for file in (tmp_path / "figures" / "tiny").glob("*.png")}
    assert drawn == {"tour_intervention", "tour_fourier", "tour_correlation", "tour_masks"}
    shown = (tmp_path / "out.ipynb").read_text()
    assert all(f"Eq. {number}: $$" in shown for number in range(4, 17)) and "cirl.methods.cirl" in shown


@pytest.mark.slow
def test_the_data_notebook_verifies_what_is_on_disk(folder, tmp_path):
    place = folder.parent / "data" / "raw" / "officehome"
    place.mkdir(parents=True)
    for domain in ("Art", "Clipart", "Product", "Real World"):
        shutil.copytree(folder / "clay", place / domain)
    assert papermill("01_data", tmp_path / "out.ipynb", folder.parent).wait() == 0
    shown = (tmp_path / "out.ipynb").read_text()
    assert "**officehome** ✗ 96 images, 2 classes" in shown  # there, but not as many as published
    assert "**pacs** ✗ dataset='pacs': its images are expected in" in shown and "pacs.zip" in shown
    assert shown.count('"image/png"') == 2


@pytest.mark.slow
def test_the_data_notebook_shows_an_own_folder_and_its_caches(folder, tmp_path):
    run = Run(f"folder:{folder}", "wool", "deepall", weights="none", image_size=32, batch_size=4)
    (file,) = [Path(loaders(run).table.images.filename)]
    process = papermill("01_data", tmp_path / "out.ipynb", folder.parent, ("dataset", f"folder:{folder}"))
    assert process.wait() == 0, process.stdout.read()
    shown = (tmp_path / "out.ipynb").read_text()
    assert "✓ 72 images, 2 classes" in shown and f"`{file.name}` ✓ intact" in shown
    assert shown.count('"image/png"') == 2


@pytest.mark.slow
def test_the_data_notebook_fails_where_one_benchmark_is_asked_for_and_missing(workspace, tmp_path):
    process = papermill("01_data", tmp_path / "out.ipynb", workspace, ("dataset", "pacs"))
    said = process.communicate()[0]
    assert process.returncode != 0 and "UserError: dataset='pacs': its images are expected in" in said


@pytest.mark.slow
def test_the_benchmark_measures_every_group(workspace, tmp_path):
    line = (("repetitions", 1), ("large", False))
    assert papermill("benchmark", tmp_path / "out.ipynb", workspace, *line).wait() == 0
    assert not (workspace / "figures" / "tiny").exists()  # other parameters write beside
    shown = (workspace / "figures" / "looks" / "tiny" / "repetitions=1,large=False" / "benchmark.csv").read_text()
    groups = ("step", "profile", "mask", "memory of the mask", "amplitude mix", "method", "loading", "growth")
    assert all(f"\n{group}," in shown for group in groups)
