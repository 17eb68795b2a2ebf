"""What a model does on its data set, image by image."""

import numpy as np
import pandas as pd
import pytest
from helpers import short, train

import cirl
from cirl.analysis import look
from cirl.errors import UserError
from cirl.run import checkpoint


@pytest.fixture
def trained(folder):
    run = short(folder, "deepall", epochs=6)
    result = train(run)
    return cirl.load(run.id), result


def test_the_table_has_every_held_out_image_and_the_accuracies_of_the_record(trained):
    model, result = trained
    data = look.data_of(model)
    table, r = look.read(model, data)
    assert sorted(table["row"]) == sorted([*data.parts["source_val"], *data.parts["target"]])
    assert r.shape == (len(table), model.run.dim)
    unseen = table[table["unseen"]]
    assert set(unseen["domain"]) == {"wool"} and len(unseen) == 24
    chosen = result["source_val"]
    assert 100 * unseen["right"].mean() == pytest.approx(chosen["target"])
    assert 100 * table[~table["unseen"]]["right"].mean() == pytest.approx(chosen["source_val"])
    again = model.predict(look.tensors(data, table["row"].to_numpy()))
    assert [*again["class"]] == [*table["predicted"]]
    np.testing.assert_allclose(again["probability"], table["probability"], rtol=1e-5)
    accuracy = look.accuracy(table, model)
    assert [*accuracy.columns] == ["clay", "ink", "wool", "all"] and [*accuracy.index] == ["cat", "dog", "all"]
    assert accuracy.loc["all", "wool"] == pytest.approx(chosen["target"])
    dogs = unseen[unseen["class"] == "dog"]
    assert accuracy.loc["dog", "wool"] == pytest.approx(100 * dogs["right"].mean())


def test_images_that_have_moved_are_found_where_the_user_says(trained, folder):
    model, _ = trained
    before, _ = look.read(model, look.data_of(model))
    moved = folder.rename(folder.parent / "moved")
    with pytest.raises(UserError, match="there is no folder"):
        look.data_of(model)
    after, _ = look.read(model, look.data_of(model, str(moved)))
    pd.testing.assert_frame_equal(before, after)
    assert model.run.dataset == f"folder:{folder}"  # the run stays as it is
    for domain in ("clay", "ink", "wool"):
        (moved / domain / "dog").rename(moved / domain / "wolf")
    with pytest.raises(UserError, match="has the classes cat, wolf; the run knows cat, dog"):
        look.data_of(model, str(moved))


LINES = pd.DataFrame(
    {
        "row": [7, 3, 5, 1, 2],
        "domain": ["a", "a", "b", "b", "b"],
        "class": ["x", "x", "y", "y", "x"],
        "predicted": ["x", "y", "x", "y", "y"],
        "probability": [0.9, 0.6, 0.8, 0.7, 0.95],
        "right": [True, False, False, True, False],
    }
)


class Model:
    classes = ("x", "y", "z")


def test_confusion_counts_true_classes_by_row_and_knows_classes_that_never_came():
    counts = look.confusion(LINES, Model)
    assert counts.to_numpy().tolist() == [[1, 2, 0], [1, 1, 0], [0, 0, 0]]


def test_mistakes_are_sorted_by_their_confidence():
    assert look.mistakes(LINES, 2)["row"].tolist() == [2, 5]
    assert look.mistakes(LINES[LINES["right"]], 2).empty


def test_the_first_image_of_each_class_is_first_in_the_data_set_not_in_the_table():
    first = look.first_of_each(LINES, ["y", "x", "z"])
    assert first["class"].tolist() == ["y", "x"] and first["row"].tolist() == [1, 2]


def test_the_plane_keeps_clusters_together_and_as_many_of_each_domain():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"domain": ["a"] * 60 + ["b"] * 20, "class": ["x", "y"] * 40}, index=range(100, 180))
    r = rng.normal(size=(80, 5)) + 50 * (table["class"] == "x").to_numpy()[:, None]
    points = look.plane(r, table, most=40)
    assert points["domain"].value_counts().to_dict() == {"a": 20, "b": 20}
    middle = points.groupby("class")[["x", "y"]].mean()
    own = points[["x", "y"]] - middle.loc[points["class"]].to_numpy()
    other = points[["x", "y"]] - middle.loc[np.where(points["class"] == "x", "y", "x")].to_numpy()
    assert ((own**2).sum(axis=1) < (other**2).sum(axis=1)).all()
    pd.testing.assert_frame_equal(points, look.plane(r, table, most=40))
    with pytest.raises(UserError, match="four images"):
        look.plane(r[:3], table[:3])


def test_the_moved_run_can_be_looked_at_by_its_path(trained, folder):
    model, _ = trained
    place = checkpoint.folder(model.run).rename(folder.parent / "elsewhere")
    table, _ = look.read(cirl.load(place), look.data_of(cirl.load(place)))
    assert len(table) == 24 + 4
