"""Own images, end to end and offline: make a folder, train, look, compare, use; the commands of the README."""

import json

import pandas as pd
import pytest
from helpers import papermill
from PIL import Image

import cirl
from cirl import paths
from cirl.data.example import write_example
from cirl.data.layouts import index
from cirl.errors import UserError

SMALL = [("target", "photo"), ("backbone", "convnet32"), ("image_size", 32), ("epochs", 20), ("lr", 0.01)]


def run_notebook(name, root, *parameters):
    process = papermill(name, root / "out.ipynb", root, *parameters)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return (root / "out.ipynb").read_text()


def test_the_example_is_three_domains_of_three_classes_of_twelve_images(workspace):
    place = write_example(workspace / "my_images")
    table = index(f"folder:{place}")
    assert table.attrs["classes"] == ["one", "two", "zero"]
    assert (
        (table.groupby(["domain", "label"]).size() == 12).all() and table["domain"].nunique() == 3 and len(table) == 108
    )
    assert len({Image.open(place / path).tobytes() for path in table["path"]}) == 108
    with pytest.raises(UserError, match="not empty"):
        write_example(place)


@pytest.mark.slow
def test_a_folder_of_ones_own_is_trained_looked_at_and_compared_without_network(workspace, monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nothing listens there
    place = write_example(workspace / "my_images")
    for method in ("deepall", "cirl"):
        run_notebook("02_train", workspace, ("dataset", f"folder:{place}"), ("method", method), *SMALL)
    records = {json.loads(file.read_text())["id"]: file for file in (workspace / "data/runs").glob("*/metrics.json")}
    accuracy = {name: json.loads(file.read_text())["source_val"]["target"] for name, file in records.items()}
    assert len(accuracy) == 2 and min(accuracy.values()) > 45  # chance: 33

    run_notebook("03_look", workspace, ("runs", "my_images*"))
    for name in records:
        looks = workspace / "figures" / "looks" / name
        pictures = {file.stem for file in looks.glob("*.png")}
        assert pictures == {"accuracy", "confusion", "attention", "tsne", "mistakes"}
        table = pd.read_csv(looks / "accuracy.csv", index_col=0)
        assert [*table.columns] == ["plain", "print", "photo", "all"]
        assert table.loc["all", "photo"] == pytest.approx(accuracy[name], abs=0.01)

    shown = run_notebook("04_compare", workspace, ("runs", "my_images*"), ("name", "mine"))
    assert "2 of 2 runs (2 trained here), 2 rows, compared with DeepAll" in shown
    compared = workspace / "figures" / "comparisons" / "mine"
    kinds = {file.name for file in compared.iterdir()}
    assert kinds == {"table.csv", "table.tex", "differences.csv", "differences.tex", "differences.png", "curves.png"}
    (difference,) = pd.read_csv(compared / "differences.csv")["mean"]
    by_method = {name.split("-")[2]: value for name, value in accuracy.items()}
    assert difference == pytest.approx(by_method["cirl"] - by_method["deepall"], abs=1e-3)

    images = sorted((place / "photo").glob("*/*.png"))
    predicted = cirl.load(next(name for name in records if "cirl" in name)).predict(images)
    right = predicted["class"].to_numpy() == [file.parent.name for file in images]
    assert 100 * right.mean() == pytest.approx(by_method["cirl"], abs=0.01)


@pytest.mark.slow
def test_compare_runs_on_the_committed_records_by_default(workspace):
    (workspace / "data").mkdir(exist_ok=True)
    for name in ("results.csv", "history.csv"):
        (workspace / "data" / name).write_bytes((paths.ROOT / "data" / name).read_bytes())
    shown = run_notebook("04_compare", workspace)
    assert "3 rows, compared with DeepAll" in shown
    table = pd.read_csv(workspace / "figures" / "comparisons" / "comparison" / "table.csv")
    assert set(table["row"]) == {"DeepAll", "Mix", "CIRL"} and (table["n"] >= 1).all()


@pytest.mark.slow
def test_look_reports_that_there_is_no_run(workspace):
    process = papermill("03_look", workspace / "out.ipynb", workspace)
    said, _ = process.communicate()
    assert process.returncode != 0 and "UserError: runs='latest' matches no finished run" in said
