import os
import resource
import signal
import struct
import subprocess
import sys
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from cirl import paths
from cirl.data import batches, cache, layouts
from cirl.errors import UserError
from cirl.run.config import Run


def small(folder, **more):
    return Run(f"folder:{folder}", "wool", "deepall", weights="none", image_size=32, batch_size=4, **more)


def test_a_folder_is_a_data_set(folder):
    table = layouts.index(f"folder:{folder}")
    assert len(table) == 72 and table.attrs["classes"] == ["cat", "dog"]
    assert set(table.columns) == {"path", "label", "domain", "split"}
    assert (table.groupby(["domain", "label"])["split"].value_counts().unstack()["val"] == 1).all()


def test_the_split_is_the_same_every_time(folder):
    assert layouts.index(f"folder:{folder}").equals(layouts.index(f"folder:{folder}"))


def test_one_domain_is_left_out(folder):
    loaders = batches.loaders(small(folder))
    domains = {part: set(loaders.table.domains[rows]) for part, rows in loaders.parts.items()}
    assert domains == {"train": {0, 1}, "source_val": {0, 1}, "target": {2}}
    assert [len(loaders.parts[part]) for part in ("train", "source_val", "target")] == [44, 4, 24]


def test_an_epoch_shows_every_training_image_as_often_as_the_recipe_says():
    for recipe, originals in (("paper", 1), ("released+partner=any", 2)):
        loaders = batches.loaders(Run(batch_size=30, recipe=recipe))
        drawn = [y for _, y, _ in loaders.train(0)]
        seen = np.concatenate(drawn)
        assert loaders.steps == len(drawn) == 2100 // 30
        assert len(seen) == originals * 2100
        assert (np.bincount(seen) == originals * 210).all()


def names(images):
    """Images of a batch, or rows of the cache, as hashable bytes."""
    if isinstance(images, torch.Tensor):
        images = (255 * images).round().byte().permute(0, 2, 3, 1).numpy()
    return [image.tobytes() for image in images]


def test_with_pairs_the_first_halves_of_an_epoch_show_every_training_image_once():
    loaders = batches.loaders(Run(batch_size=30, recipe="released"))
    drawn = list(loaders.train(0))
    assert len(drawn) == loaders.steps == 2100 // 30 and all(len(x) == 60 for x, _, _ in drawn)
    first = [name for x, _, _ in drawn for name in names(x[:30])]
    train = names(loaders.table.images[loaders.parts["train"]])
    assert sorted(first) == sorted(train)
    assert (np.bincount(np.concatenate([y[:30] for _, y, _ in drawn])) == 210).all()
    assert {name for x, _, _ in drawn for name in names(x[30:])} < set(train)


def unbalanced(**more):
    """tiny with 700, 350 and 70 training images of its source domains, in pairs."""
    loaders = batches.loaders(Run(batch_size=16, recipe="released", **more))
    train, domains = loaders.parts["train"], loaders.table.domains
    kept = [train[domains[train] == domain][:count] for domain, count in ((0, 700), (1, 350), (3, 70))]
    return replace(loaders, parts={**loaders.parts, "train": np.concatenate(kept)})


def domains_of_halves(loaders, epochs=1):
    d = np.stack([d.numpy() for epoch in range(epochs) for _, _, d in loaders.train(epoch)])
    return d[:, :16].ravel(), d[:, 16:].ravel()


def test_a_random_partner_is_of_each_source_domain_equally_often_however_large_the_domains():
    first, second = domains_of_halves(unbalanced(), epochs=2)
    shares = {domain: (second == domain).mean() for domain in np.unique(second)}
    assert shares == pytest.approx({0: 1 / 3, 1: 1 / 3, 3: 1 / 3}, abs=0.04)
    assert np.bincount(first).tolist() == [1400, 700, 0, 140]
    assert 0.25 < (first == second).mean() < 0.42  # its own domain among them


def test_an_intra_partner_is_of_the_images_domain_and_an_inter_partner_of_the_others():
    first, second = domains_of_halves(unbalanced(sampling="intra"))
    assert (first == second).all()
    first, second = domains_of_halves(unbalanced(sampling="inter"), epochs=2)
    assert (first != second).all()
    others = second[first == 0]
    assert (others == 1).mean() == pytest.approx(0.5, abs=0.05)  # the others equally often


def test_within_its_domain_a_partner_is_any_training_image():
    loaders = unbalanced()
    train, domains = loaders.parts["train"], loaders.table.domains
    rows = np.repeat(train[:1], 20_000)
    drawn = loaders.partners(rows, np.random.default_rng(3))
    small = train[domains[train] == 3]
    counts = [(drawn == row).sum() for row in small]
    assert set(drawn) == set(train) and rows[0] in drawn  # as released, the image itself among them
    assert min(counts) > 50 and max(counts) < 150  # 20,000 / 3 / 70 = 95


@pytest.mark.parametrize("sampling", ["random", "intra", "inter"])
def test_pairs_are_a_function_of_seed_and_epoch(sampling):
    def epoch_of(seed, epoch):
        torch.manual_seed(epoch + 50 * seed)  # other randomness does not matter
        return torch.cat([x for x, _, _ in unbalanced(sampling=sampling, seed=seed).train(epoch)])

    first, other_epoch, other_seed = epoch_of(0, 3), epoch_of(0, 4), epoch_of(1, 3)
    torch.manual_seed(1)
    assert torch.equal(first, epoch_of(0, 3))
    assert not torch.equal(first, other_epoch) and not torch.equal(first, other_seed)


def test_batches_are_a_function_of_seed_and_epoch(folder):
    loaders = batches.loaders(small(folder))
    first, again, other = (torch.cat([x for x, _, _ in loaders.train(epoch)]) for epoch in (3, 3, 4))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_workers_and_other_randomness_do_not_change_a_batch(folder):
    alone = torch.cat([x for x, _, _ in batches.loaders(small(folder)).train(1)])
    torch.manual_seed(99)
    helped = torch.cat([x for x, _, _ in batches.loaders(small(folder), workers=2).train(1)])
    assert torch.equal(alone, helped)


def test_workers_serve_every_epoch_and_an_epoch_that_was_left(folder):
    alone, helped = batches.loaders(small(folder)), batches.loaders(small(folder), workers=2)
    next(helped.train(0))  # left after one batch
    for epoch in (1, 2):
        expected = [x for x, _, _ in alone.train(epoch)]
        assert all(map(torch.equal, expected, [x for x, _, _ in helped.train(epoch)]))


def test_two_epochs_can_be_read_side_by_side(folder):
    loaders = batches.loaders(small(folder))
    apart = [[x for x, _, _ in loaders.train(epoch)] for epoch in (1, 2)]
    together = zip(*((x for x, _, _ in loaders.train(epoch)) for epoch in (1, 2)), strict=True)
    for (first, second), one, two in zip(together, *apart, strict=True):
        assert torch.equal(first, one) and torch.equal(second, two)


def test_folders_are_augmented_and_digits_are_not(folder):
    loaders = batches.loaders(small(folder))
    x, _, _ = next(loaders.train(0))
    assert x.shape == (4 * 2, 3, 32, 32) and x.min() >= 0 and x.max() <= 1
    cached = {image.tobytes() for image in loaders.table.images}
    as_bytes = [(255 * image).round().byte().permute(1, 2, 0).numpy().tobytes() for image in x]
    assert not cached & set(as_bytes)
    x, _, _ = next(batches.loaders(Run()).train(0))
    cached = {image.tobytes() for image in batches.loaders(Run()).table.images}
    assert all((255 * image).round().byte().permute(1, 2, 0).numpy().tobytes() in cached for image in x)


def test_evaluation_shows_each_image_once_and_as_it_is(folder):
    loaders = batches.loaders(small(folder))
    x = torch.cat([x for x, _, _ in loaders.evaluation("target", size=7)])
    expected = torch.from_numpy(loaders.table.images[loaders.parts["target"]]).permute(0, 3, 1, 2) / 255
    assert sorted(x.sum((1, 2, 3)).tolist()) == pytest.approx(sorted(expected.sum((1, 2, 3)).tolist()))


def test_the_cache_is_reused_until_a_file_changes(folder):
    name, table = f"folder:{folder}", layouts.index(f"folder:{folder}")
    cache.pixels(name, table, 16)
    (cached,) = paths.CACHE.glob("*.npy")
    made = cached.stat().st_mtime_ns
    cache.pixels(name, table, 16)
    assert cached.stat().st_mtime_ns == made and len(list(paths.CACHE.glob("*.npy"))) == 1
    Image.new("RGB", (50, 50), "red").save(folder / "clay" / "cat" / "01.png")
    again = cache.pixels(name, table, 16)
    row = table.index[table["path"] == "clay/cat/01.png"][0]
    assert (again[row] == [255, 0, 0]).all() and len(list(paths.CACHE.glob("*.npy"))) == 2


def test_the_cache_is_memory_mapped_and_equal_to_the_decoded_file(folder):
    table = layouts.index(f"folder:{folder}")
    images = cache.pixels(f"folder:{folder}", table, 32)
    assert isinstance(images, np.memmap)
    row = table.index[table["path"] == "ink/dog/05.png"][0]
    with Image.open(folder / "ink/dog/05.png") as image:
        assert np.array_equal(images[row], np.asarray(image.resize((32, 32), Image.Resampling.BILINEAR)))


def test_an_unreadable_image_is_named_and_leaves_no_cache(folder):
    (folder / "ink" / "cat" / "03.PNG").write_bytes(b"not an image")
    with pytest.raises(UserError, match=r"ink/cat/03\.PNG cannot be read as an image"):
        batches.loaders(small(folder))
    assert not list(paths.CACHE.iterdir())


def test_a_truncated_image_is_named(folder):
    file = folder / "wool" / "dog" / "04.jpg"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(UserError, match=r"wool/dog/04\.jpg cannot be read"):
        batches.loaders(small(folder))


@pytest.mark.parametrize("low", [0, 30_000])
def test_sixteen_bits_of_grey_are_scaled_and_not_clipped(tmp_path, low):
    values = (np.linspace(low, 65535, 64 * 64).reshape(64, 64)).astype(np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    decoded = cache.decode(tmp_path / "deep.png", 64)
    assert np.abs(decoded - (values / 257.0)[..., None]).max() <= 0.51
    with Image.open(tmp_path / "deep.png") as image:  # it is a file of 16 bits, which Pillow clips
        assert image.mode.startswith("I") and (np.asarray(image.convert("RGB")) == 255).mean() > 0.9


def test_an_own_photograph_is_turned_as_its_camera_says_and_a_benchmarks_is_not(tmp_path):
    half = np.zeros((40, 40, 3), np.uint8)
    half[:20] = 255  # bright above
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    Image.fromarray(half).save(tmp_path / "turned.jpg", exif=exif)
    assert cache.decode(tmp_path / "turned.jpg", 40)[:15].mean() < 5
    assert cache.decode(tmp_path / "turned.jpg", 40, upright=False)[:15].mean() > 250


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(*chunks):
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes(8 * 25)))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + pixels + chunk(b"IEND", b"")


BOMB = zlib.compress(bytes(80_000_000))
HOSTILE = {
    "a text bomb": png(chunk(b"zTXt", b"Comment\0\0" + BOMB)),
    "a profile bomb": png(chunk(b"iCCP", b"icc\0\0" + BOMB)),
    "a header cut short": png()[:20],
    "a chunk without content": png(chunk(b"pHYs", b"")),
    "an EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n",
    "a GIF": b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff!\xf9\x04\x01",
    "nothing": b"",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_image_is_named_and_starts_no_program(folder, name):
    """Pillow would give an EPS to Ghostscript, whatever the file is called."""
    (folder / "ink" / "cat" / "03.PNG").write_bytes(HOSTILE[name])
    with pytest.raises(
        UserError, match=r"ink/cat/03\.PNG cannot be read as an image \(.*\); remove or replace"
    ) as error:
        batches.loaders(small(folder))
    assert "\n" not in str(error.value) and "Ghostscript" not in str(error.value)


def test_a_broken_link_is_named(folder):
    (folder / "ink" / "cat" / "99.png").symlink_to("nowhere.png")
    with pytest.raises(UserError, match=r"ink/cat/99\.png cannot be read \(No such file or directory\)"):
        batches.loaders(small(folder))


@pytest.mark.parametrize("name", ["cat/a.webp", "cat/a.TIFF", "loose.png", "cat/deeper/a.png"])
def test_images_that_are_not_read_are_warned_of(folder, name):
    file = folder / "ink" / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"")
    with pytest.warns(UserWarning, match=rf"1 images in .*ink are not read, such as {name}: only <class>/\*"):
        assert len(layouts.index(f"folder:{folder}")) == 72


@pytest.mark.filterwarnings("error")
def test_hidden_files_and_folders_are_none_of_the_data(folder):
    (folder / "ink" / ".ipynb_checkpoints").mkdir()
    Image.new("RGB", (9, 9)).save(folder / "ink" / ".ipynb_checkpoints" / "a.png")
    (folder / "ink" / "cat" / "._01.png").write_bytes(b"")
    assert len(layouts.index(f"folder:{folder}")) == 72


def test_classes_may_be_called_train_and_val(folder):
    before = layouts.index(f"folder:{folder}")
    for domain in ("clay", "ink", "wool"):
        (folder / domain / "cat").rename(folder / domain / "train")
        (folder / domain / "dog").rename(folder / domain / "val")
    table = layouts.index(f"folder:{folder}")
    assert table.attrs["classes"] == ["train", "val"] and len(table) == 72
    assert table.drop(columns="path").equals(before.drop(columns="path"))


def test_folders_without_classes_are_refused(tmp_path):
    for domain in ("one", "two"):
        for part in ("train", "val"):
            (tmp_path / domain / part).mkdir(parents=True)
    with pytest.raises(UserError, match="holds no classes: images are expected in <domain>/<class>/"):
        layouts.index(f"folder:{tmp_path}")


def test_an_empty_class_is_named(folder):
    for file in (folder / "ink" / "cat").iterdir():
        file.unlink()
    with pytest.raises(UserError, match="ink/cat needs at least two images"):
        layouts.index(f"folder:{folder}")


def test_a_class_missing_in_one_domain_is_named(folder):
    (folder / "clay" / "bird").mkdir()
    Image.new("RGB", (9, 9)).save(folder / "clay" / "bird" / "a.png")
    with pytest.raises(UserError, match="clay/bird needs at least two images"):
        layouts.index(f"folder:{folder}")


def test_a_single_domain_is_refused(tmp_path):
    (tmp_path / "only" / "cat").mkdir(parents=True)
    with pytest.raises(UserError, match="two domains"):
        Run(f"folder:{tmp_path}", "only")


def test_a_batch_larger_than_the_data_is_refused(folder):
    with pytest.raises(UserError, match=r"batch_size=45 .* at most the 44 training images"):
        batches.loaders(Run(f"folder:{folder}", "wool", weights="none", image_size=32, batch_size=45))


def test_a_missing_data_set_says_where_it_should_be(workspace):
    with pytest.raises(UserError, match="data/raw/pacs"):
        layouts.index("pacs")


def test_a_full_disk_raises_user_error_and_leaves_nothing(folder):
    """A limit on the file size stands in for a full disk: both fail in `write`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(UserError, match=r"The cache .*npy cannot be made or read \(File too large\); free space"):
            batches.loaders(small(folder))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert not list(paths.CACHE.iterdir())


def test_a_read_only_cache_folder_raises_user_error(folder, monkeypatch):
    paths.DATA.mkdir()
    (paths.DATA / "cache").write_text("a file where the folder should be")
    with pytest.raises(UserError, match=r"The cache .* cannot be made or read \(.*\)"):
        batches.loaders(small(folder))
    (paths.DATA / "cache").unlink()
    (paths.DATA / "cache").mkdir()
    (paths.DATA / "cache").chmod(0o500)
    if os.access(paths.DATA / "cache", os.W_OK):
        return  # root can write everywhere
    with pytest.raises(UserError, match=r"cannot be made or read \(Permission denied\)"):
        batches.loaders(small(folder))


DECODE = """
import sys
from cirl.data import batches, cache, layouts
table = layouts.index(sys.argv[1])
print(cache.content_digest(cache.pixels(sys.argv[1], table, 48)))
"""


def test_processes_that_start_at_once_make_one_cache(folder):
    env = {**os.environ, "CIRL_ROOT": str(folder.parent)}
    line = [sys.executable, "-c", DECODE, f"folder:{folder}"]
    processes = [subprocess.Popen(line, env=env, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    digests = {process.communicate()[0].strip() for process in processes}
    table = layouts.index(f"folder:{folder}")
    assert digests == {cache.content_digest(cache.pixels(f"folder:{folder}", table, 48))}
    assert sorted(file.suffix for file in paths.CACHE.iterdir()) == [".json", ".npy"]


def test_once_decoded_an_epoch_opens_no_image_file(folder, monkeypatch):
    list(batches.loaders(small(folder)).train(0))
    monkeypatch.setattr(Image, "open", lambda *_: pytest.fail("an image was decoded again"))
    assert len(list(batches.loaders(small(folder)).train(1))) == 11
