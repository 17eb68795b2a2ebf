import numpy as np
import pytest

from cirl.data import layouts, tiny

table = tiny.table()


def test_every_domain_has_the_same_number_of_images_of_each_digit_and_split():
    counts = table.groupby(["domain", "label", "split"]).size().unstack()
    assert len(counts) == 40
    assert (counts["val"] == tiny.VAL).all() and (counts["train"] == tiny.PER_CLASS - tiny.VAL).all()


def test_the_index_lists_the_same_images_without_drawing_them():
    index = layouts.index("tiny")
    assert index.equals(table[["path", "label", "domain", "split"]])
    assert index.attrs["classes"] == [str(digit) for digit in range(10)]


def test_no_shape_is_both_in_train_and_in_validation():
    shapes = table.groupby("split")["shape"].agg(set)
    assert not shapes["train"] & shapes["val"]
    fonts = {split: {s.source for s in shapes[split] if isinstance(s.source, str)} for split in ("train", "val")}
    assert not fonts["train"] & fonts["val"]


def test_a_handwritten_shape_is_in_one_domain_only():
    hands = table[table["domain"].isin(["plain", "photo"])]
    assert hands["shape"].is_unique


def test_the_label_is_the_shapes_digit_and_nothing_of_the_style():
    assert (table["label"] == [shape.digit for shape in table["shape"]]).all()


def test_the_benchmark_is_the_same_every_time_and_another_for_another_seed():
    again = tiny.table()
    assert (again["style"] == table["style"]).all() and (again["shape"] == table["shape"]).all()
    row = table.iloc[-1]
    assert np.array_equal(tiny.render(row["shape"], row["style"]), tiny.render(row["shape"], row["style"]))
    assert not (tiny.table(seed=1)["style"] == table["style"]).any()


@pytest.mark.parametrize("domain", tiny.DOMAINS)
def test_images_are_small_colour_pictures_with_contrast(domain):
    for row in table[table["domain"] == domain].sample(20, random_state=0).itertuples():
        image = tiny.render(row.shape, row.style)
        assert image.shape == (32, 32, 3) and image.dtype == np.uint8 and image.std() > 5


def test_the_same_shape_can_be_rendered_under_every_domains_style():
    """do(U): the strokes stay, all else changes."""
    shape = table.iloc[0]["shape"]
    rng = np.random.default_rng(0)
    images = [tiny.render(shape, tiny.sample_style(domain, rng)) for domain in tiny.DOMAINS]
    assert len({image.tobytes() for image in images}) == 4


def test_the_stroke_is_where_the_shape_is_and_the_rest_is_ground():
    style = tiny.Style("plain", (1.0, 1.0, 1.0), (0.0, 0.0, 0.0))
    image = tiny.render(tiny.Shape(0, "DejaVuSans-Bold"), style)[..., 0]
    assert image[16, 16] == 0 and image.max() > 250  # a zero has a hole
    assert image[:4].max() == 0 and image[-4:].max() == 0
    covered = tiny.render(tiny.Shape(0, "DejaVuSans-Bold"), tiny.Style("plain", (1.0,) * 3, (1.0,) * 3))
    assert covered.min() == 255


def test_a_style_that_inverts_its_ground_shows_the_stroke_on_light_and_on_dark():
    for ground in (0.0, 1.0):
        style = tiny.Style("photo", (0.0,) * 3, (ground,) * 3, invert=True)
        assert tiny.render(tiny.Shape(1, "cmb10"), style).std() > 20
