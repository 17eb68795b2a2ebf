"""The four layouts on miniature trees, and the errors for malformed trees."""

import shutil

import numpy as np
import pytest
from PIL import Image

from cirl import paths
from cirl.data import batches, fetch
from cirl.data.layouts import index
from cirl.errors import UserError
from cirl.run.config import SETTINGS, Run

CLASSES = ("ant", "bee", "cow")


def put(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(names):
        Image.fromarray(np.full((20, 24, 3), 10 * i, np.uint8)).save(folder / name)


def names(domain, n):
    return [f"{domain}_{i}.jpg" for i in range(n)]


@pytest.fixture
def digits(workspace):
    root = workspace / "data" / "raw" / "digits_dg"
    for domain in SETTINGS["digits_dg"].domains:
        for digit in "01":
            put(root / domain / "train" / digit, *names(domain, 4))
            put(root / domain / "val" / digit, *names(domain, 2))
    return root


def listed(root, dataset, train, val):
    """<domain>/<class>/* and the lists of both parts; labels in the lists begin at 1 and must be ignored."""
    for domain in SETTINGS[dataset].domains:
        for split, pattern in (("train", train), ("val", val)):
            lines = []
            for i, name in enumerate(CLASSES):
                files = names(f"{split}_{domain}", 3 if split == "train" else 2)
                put(root / domain / name, *files)
                lines += [f"{domain}/{name}/{file} {len(CLASSES) - i}" for file in files]
            (root / pattern.format(domain)).parent.mkdir(exist_ok=True)
            (root / pattern.format(domain)).write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture
def pacs(workspace):
    root = workspace / "data" / "raw" / "pacs"
    return listed(root, "pacs", "splits/{}_train_kfold.txt", "splits/{}_crossval_kfold.txt")


@pytest.fixture
def mini(workspace):
    root = workspace / "data" / "raw" / "minidomainnet"
    listed(root, "minidomainnet", "splits_mini/{}_train.txt", "splits_mini/{}_test.txt")
    put(root / "clipart" / "zebra", *names("clipart", 5))  # of DomainNet, but not of the lists
    put(root / "quickdraw" / "ant", *names("quickdraw", 5))
    return root


@pytest.fixture
def office(workspace):
    root = workspace / "data" / "raw" / "officehome"
    for domain in ("Art", "Clipart", "Product", "Real World"):
        for name in CLASSES:
            put(root / domain / name, *names("x", 20))
    return root


def split_counts(dataset):
    table = index(dataset)
    assert set(table.columns) == {"path", "label", "domain", "split"}
    assert all((paths.RAW / dataset / path).is_file() for path in table["path"])
    return {tuple(table[table["domain"] == d]["split"].value_counts()[["train", "val"]]) for d in set(table["domain"])}


def test_digits_have_their_split_in_folders(digits):
    assert split_counts("digits_dg") == {(8, 4)}
    assert index("digits_dg").attrs["classes"] == ["0", "1"]


def test_pacs_is_split_by_its_lists(pacs):
    assert split_counts("pacs") == {(9, 6)}
    table = index("pacs")
    assert table["path"].str.contains("train_").eq(table["split"] == "train").all()


def test_the_label_is_that_of_the_class_folder_and_begins_at_zero(pacs):
    table = index("pacs")
    folders = [path.split("/")[-2] for path in table["path"]]
    assert [CLASSES[label] for label in table["label"]] == folders and table.attrs["classes"] == list(CLASSES)


def test_pacs_in_the_folder_images_of_other_toolkits(pacs):
    before = index("pacs")
    (pacs / "images").mkdir()
    for domain in SETTINGS["pacs"].domains:
        shutil.move(pacs / domain, pacs / "images" / domain)
    after = index("pacs")
    assert ("images/" + before["path"]).tolist() == after["path"].tolist()
    assert before.drop(columns="path").equals(after.drop(columns="path"))


def test_pacs_without_lists_is_split_by_ourselves_and_says_so(pacs):
    shutil.rmtree(pacs / "splits")
    with pytest.warns(UserWarning, match="split 90/10 at random"):
        table = index("pacs")
    assert len(table) == 60 and (table["split"] == "val").sum() == 12
    with pytest.warns(UserWarning):
        assert table.equals(index("pacs"))


@pytest.mark.parametrize("spelling", ["Real World", "RealWorld", "real_world", "Real_World"])
def test_office_home_as_it_is_distributed(office, spelling):
    (office / "Real World").rename(office / spelling)
    assert split_counts("officehome") == {(54, 6)}
    assert set(index("officehome")["domain"]) == set(SETTINGS["officehome"].domains)


def test_office_home_with_another_toolkits_split(office):
    for domain in ("Art", "Clipart", "Product", "Real World"):
        for split in ("train", "val"):
            for name in CLASSES:
                put(office / "x" / domain / split / name, *names("x", 4 if split == "train" else 2))
        shutil.rmtree(office / domain)
        shutil.move(office / "x" / domain, office / domain)
    assert split_counts("officehome") == {(12, 6)}


def test_mini_domainnet_is_what_its_lists_name(mini):
    assert split_counts("minidomainnet") == {(9, 6)}
    assert index("minidomainnet").attrs["classes"] == list(CLASSES)


@pytest.mark.parametrize("dataset", ["digits_dg", "pacs", "officehome", "minidomainnet"])
def test_every_layout_becomes_batches(request, dataset):
    request.getfixturevalue(
        {"digits_dg": "digits", "officehome": "office", "minidomainnet": "mini"}.get(dataset, dataset)
    )
    target = SETTINGS[dataset].domains[0]
    run = Run(dataset, target, "deepall", weights="none", image_size=32, batch_size=4)
    x, y, d = next(batches.loaders(run).train(0))
    assert x.shape[1:] == (3, 32, 32) and len(x) == len(y) == len(d) and (d != 0).all()


@pytest.mark.parametrize("dataset", ["digits_dg", "pacs", "officehome", "minidomainnet"])
def test_a_missing_domain_is_named(request, dataset):
    fixture = {"digits_dg": "digits", "officehome": "office", "minidomainnet": "mini"}.get(dataset, dataset)
    root = request.getfixturevalue(fixture)
    gone = {"officehome": "Product"}.get(dataset, SETTINGS[dataset].domains[2])
    shutil.rmtree(root / gone)
    with pytest.raises(UserError, match=f"lacks the domain '{gone.lower()}'"):
        index(dataset)


def test_a_missing_class_is_named(digits, office):
    shutil.rmtree(digits / "svhn" / "val" / "1")
    with pytest.raises(UserError, match="digits_dg/svhn/val/1 needs at least two images"):
        index("digits_dg")
    shutil.rmtree(office / "Art" / "bee")
    with pytest.raises(UserError, match="officehome/Art/bee needs at least two images"):
        index("officehome")


def test_a_missing_part_of_the_digits_is_named(digits):
    shutil.rmtree(digits / "syn" / "val")
    with pytest.raises(UserError, match="digits_dg/syn/val is missing"):
        index("digits_dg")


def test_a_list_that_names_an_absent_file_says_list_line_and_file(pacs, mini):
    (pacs / "photo" / "bee" / "train_photo_1.jpg").unlink()
    with pytest.raises(
        UserError, match=r"photo_train_kfold.txt, line 5 names photo/bee/train_photo_1.jpg, and there is"
    ):
        index("pacs")
    (mini / "real" / "ant" / "val_real_0.jpg").unlink()
    with pytest.raises(UserError, match=r"real_test.txt, line 1 names real/ant/val_real_0.jpg"):
        index("minidomainnet")


@pytest.mark.parametrize("line", ["photo.jpg 1", "../../etc/passwd 1", "photo/bee 1", "photo/../x.jpg 2"])
def test_an_invalid_line_of_a_list_is_quoted(pacs, line):
    file = pacs / "splits" / "photo_train_kfold.txt"
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(UserError, match=r"photo_train_kfold.txt, line 10: .* is not '<domain>/<class>/<name> <label>'"):
        index("pacs")


def test_a_missing_list_is_named(pacs, mini):
    (pacs / "splits" / "sketch_crossval_kfold.txt").unlink()
    with pytest.raises(UserError, match=r"splits/sketch_crossval_kfold.txt is missing"):
        index("pacs")
    (mini / "splits_mini" / "real_train.txt").unlink()
    with pytest.raises(UserError, match=r"splits_mini/real_train.txt is missing"):
        index("minidomainnet")


def test_an_image_on_two_lists_is_refused(pacs):
    train, val = (pacs / "splits" / f"photo_{part}_kfold.txt" for part in ("train", "crossval"))
    val.write_text(val.read_text() + train.read_text().splitlines()[0] + "\n")
    with pytest.raises(UserError, match=r"photo/ant/train_photo_0.jpg is named twice"):
        index("pacs")


@pytest.mark.parametrize("names_", [("site_11", "site_1_1", "z"), ("Photo", "photo", "z"), ("a b", "a_b", "ab")])
def test_folders_whose_names_are_alike_are_different_domains(workspace, names_):
    """The target must never be trained on: each domain of `folder:` reads the folder of exactly its name."""
    for domain in names_:
        for name in CLASSES:
            put(workspace / "mine" / domain / name, *names(domain.replace(" ", "-"), 4))
    table = index(f"folder:{workspace / 'mine'}")
    assert set(table["domain"]) == set(names_)
    assert (table["path"].str.split("/").str[0] == table["domain"]).all() and not table["path"].duplicated().any()


def test_a_benchmark_with_two_folders_of_one_domain_is_refused(office):
    shutil.copytree(office / "Real World", office / "real_world")
    with pytest.raises(UserError, match=r"holds the domain 'real_world' more than once \(.*Real World, .*real_world\)"):
        index("officehome")


def test_a_domain_both_inside_and_outside_of_a_wrapper_is_refused(pacs):
    shutil.copytree(pacs / "photo", pacs / "images" / "photo")
    with pytest.raises(UserError, match="'photo' more than once"):
        index("pacs")


def test_two_domains_that_are_one_folder_by_a_link_are_refused(workspace):
    for domain in ("one", "two"):
        for name in CLASSES:
            put(workspace / "mine" / domain / name, *names(domain, 4))
    (workspace / "mine" / "three").symlink_to("one")
    with pytest.raises(UserError, match="the domains 'one' and 'three' are the same folder"):
        index(f"folder:{workspace / 'mine'}")


def test_a_list_that_names_an_image_of_another_domain_is_refused(pacs):
    file = pacs / "splits" / "photo_train_kfold.txt"
    file.write_text(file.read_text() + "sketch/bee/train_sketch_0.jpg 1\n")
    with pytest.raises(
        UserError, match=r"line 10 names sketch/bee/train_sketch_0.jpg, which is not in the folder photo"
    ):
        index("pacs")


def test_the_counts_say_whether_they_are_the_published_ones(pacs, office):
    assert (fetch.counts("pacs")["counts agree"] == "✗").all()
    assert fetch.counts("officehome")["images"].tolist() == [60, 60, 60, 60]


REAL = {  # as in data/README.md
    "pacs": {"art_painting": (1840, 208), "cartoon": (2107, 237), "photo": (1499, 171), "sketch": (3531, 398)},
    "digits_dg": {domain: (4800, 1200) for domain in ("mnist", "mnist_m", "svhn", "syn")},
}


@pytest.mark.parametrize("dataset", REAL)
def test_the_real_data_have_the_published_counts(dataset):
    if not (paths.RAW / dataset).is_dir():
        pytest.skip(f"{paths.RAW / dataset} is not there: only where the real data are unpacked")
    table = index(dataset)
    found = {d: tuple(own["split"].value_counts()[["train", "val"]]) for d, own in table.groupby("domain")}
    assert found == REAL[dataset]
