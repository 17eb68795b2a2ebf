"""The data sets on disk: one function per layout, from a folder to the index of its images.

    tiny             nothing
    digits_dg        <domain>/{train,val}/<class>/*
    pacs             <domain>/<class>/*, split by splits/<domain>_{train,crossval}_kfold.txt
    officehome       <domain>/<class>/*, or <domain>/{train,val}/<class>/*
    minidomainnet    <domain>/<class>/*, chosen and split by splits_mini/<domain>_{train,test}.txt
    folder:<path>    <domain>/<class>/*

The index has one row per image: path, label, domain, split (train or val); `attrs` holds the class names.
"""

import os
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from cirl import paths
from cirl.data.benchmarks import PER_CLASS, VAL
from cirl.errors import UserError
from cirl.run.config import settings

EXTENSIONS = {".jpg", ".jpeg", ".png"}
NOT_READ = {".webp", ".gif", ".bmp", ".tif", ".tiff", ".heic", ".avif"}
SPLIT_SEED = 0  # the split belongs to the data set, not to the run
VALIDATION = 0.1
INSIDE = ("", "images", "kfold")  # where toolkits unpack the domains


def index(dataset: str) -> pd.DataFrame:
    """The index of a data set; raises UserError naming what is missing."""
    if dataset == "tiny":
        return embedded()
    folder, domains = root(dataset), settings(dataset).domains
    places = domain_folders(folder, domains, exact=dataset.startswith("folder:"))
    return LAYOUTS.get(dataset, by_folders)(folder, places)


def embedded() -> pd.DataFrame:
    """The rows of `tiny.table` without shape and style. To draw those takes scikit-learn, which is slow to import."""
    rows = [
        (f"{domain}/{split}/{digit}/{i:03d}", digit, domain, split)
        for domain in settings("tiny").domains
        for split, count in (("train", PER_CLASS - VAL), ("val", VAL))
        for digit in range(10)
        for i in range(count)
    ]
    table = pd.DataFrame(rows, columns=["path", "label", "domain", "split"])
    table.attrs["classes"] = [str(digit) for digit in range(10)]
    return table


def root(dataset: str) -> Path:
    """The folder of a data set's files."""
    if dataset.startswith("folder:"):
        return Path(dataset.removeprefix("folder:")).expanduser()
    folder = paths.RAW / dataset
    if not folder.is_dir():
        raise UserError(
            f"dataset={dataset!r}: its images are expected in {folder}, and there is no such folder "
            "(notebooks/01_data.ipynb fetches them or says which file to put where)."
        )
    return folder


def by_folders(folder: Path, places: dict[str, Path]) -> pd.DataFrame:
    """`<domain>/<class>/*` with a seeded split, or `<domain>/{train,val}/<class>/*`."""
    if all(_is_split(place) for place in places.values()):
        return by_split_folders(folder, places)
    rows = [(file, file.parent.name, domain) for domain, place in places.items() for file in images(place)]
    table = labelled(folder, rows, _classes(places.values()), places)
    table["split"] = seeded_split(table, VALIDATION)
    return table


def by_split_folders(folder: Path, places: dict[str, Path]) -> pd.DataFrame:
    """`<domain>/{train,val}/<class>/*`."""
    parts = {}
    for split in ("train", "val"):
        inside = {domain: place / split for domain, place in places.items()}
        missing = [place for place in inside.values() if not place.is_dir()]
        if missing:
            raise UserError(f"{missing[0]} is missing: {folder} needs train and val in every domain.")
        rows = [(file, file.parent.name, domain) for domain, place in inside.items() for file in images(place)]
        classes = _classes(place / part for place in places.values() for part in ("train", "val"))
        parts[split] = labelled(folder, rows, classes, inside).assign(split=split)
    table = pd.concat(parts.values(), ignore_index=True)
    table.attrs["classes"] = parts["train"].attrs["classes"]
    return table


def pacs(folder: Path, places: dict[str, Path]) -> pd.DataFrame:
    """The official lists; without them a seeded split, with a warning."""
    if (folder / "splits").is_dir():
        return by_lists(folder, places, {"train": "splits/{}_train_kfold.txt", "val": "splits/{}_crossval_kfold.txt"})
    warnings.warn(
        f"{folder / 'splits'} is missing: PACS is split 90/10 at random (seeded), not by the official lists.",
        stacklevel=3,
    )
    return by_folders(folder, places)


def mini_domainnet(folder: Path, places: dict[str, Path]) -> pd.DataFrame:
    """The images of DomainNet that the authors' lists name; their test lists are our validation."""
    return by_lists(folder, places, {"train": "splits_mini/{}_train.txt", "val": "splits_mini/{}_test.txt"})


def by_lists(folder: Path, places: dict[str, Path], lists: dict[str, str]) -> pd.DataFrame:
    """Lists of `<domain>/<class>/<name> <label>`; the label is taken from the class folder."""
    rows, splits = [], []
    for domain, place in places.items():
        for split, pattern in lists.items():
            listed = _read_list(folder / pattern.format(domain), place)
            rows += [(file, file.parent.name, domain) for file in listed]
            splits += [split] * len(listed)
    table = labelled(folder, rows, sorted({name for _, name, _ in rows}), places)
    twice = table.loc[table["path"].duplicated(), "path"]
    if len(twice):
        raise UserError(f"{folder}: {twice.iloc[0]} is named twice in the lists.")
    return table.assign(split=splits)


def _read_list(file, place):
    """The files that a domain's list names; each must exist and lie in the domain's folder."""
    if not file.is_file():
        raise UserError(f"The list {file} is missing.")
    listed = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        parts = line.rsplit(maxsplit=1)[0].split("/")
        if len(parts) != 3 or ".." in parts:
            raise UserError(f"{file}, line {number}: {line!r} is not '<domain>/<class>/<name> <label>'.")
        if parts[0] != place.name:
            raise UserError(f"{file}, line {number} names {'/'.join(parts)}, which is not in the folder {place.name}.")
        image = place.joinpath(*parts[1:])
        if not image.is_file():
            raise UserError(
                f"{file}, line {number} names {'/'.join(parts)}, and there is no such file in {place.parent}."
            )
        listed.append(image)
    return listed


def labelled(folder: Path, rows: list, classes: list[str], places: dict[str, Path]) -> pd.DataFrame:
    """Rows (file, class, domain) as a table; every class must have two images in every domain."""
    if not classes:
        raise UserError(f"{folder} holds no classes: images are expected in <domain>/<class>/.")
    table = pd.DataFrame(rows, columns=["path", "class", "domain"])
    counts = table.groupby(["domain", "class"]).size()
    for domain, place in places.items():
        for name in classes:
            if counts.get((domain, name), 0) < 2:
                raise UserError(f"{place / name} needs at least two images ({', '.join(sorted(EXTENSIONS))}).")
    table["path"] = [str(file.relative_to(folder)) for file in table["path"]]
    table["label"] = table.pop("class").map({name: i for i, name in enumerate(classes)})
    table.attrs["classes"] = classes
    return table


def domain_folders(folder: Path, domains: tuple[str, ...], exact: bool) -> dict[str, Path]:
    """The folder of each domain; no two domains may share one, or the target would leak into training."""
    found = {domain: folder / domain if exact else _as_distributed(folder, domain) for domain in domains}
    owners: dict[Path, str] = {}
    for domain, place in found.items():
        other = owners.setdefault(place.resolve(), domain)
        if other != domain:
            raise UserError(f"{folder}: the domains {other!r} and {domain!r} are the same folder, {place.resolve()}.")
    return found


def _as_distributed(folder, domain):
    """The one folder of a benchmark's domain: `Real World`, `RealWorld` and `real_world` are the same domain."""
    bases = [folder / inside for inside in INSIDE if (folder / inside).is_dir()]
    places = [place for base in bases for place in sorted(base.iterdir()) if place.is_dir()]
    found = [place for place in places if plain(place.name) == plain(domain)]
    if not found:
        raise UserError(f"{folder} lacks the domain {domain!r}: there is no folder {folder / domain}.")
    if len(found) > 1:
        raise UserError(
            f"{folder} holds the domain {domain!r} more than once ({', '.join(map(str, found))}); keep one of them."
        )
    return found[0]


def plain(name: str) -> str:
    """A folder's name in a spelling that all distributions share."""
    return name.lower().replace(" ", "").replace("_", "")


def images(folder: Path) -> list[Path]:
    """The image files `<class>/*` of a folder, sorted by name; warns about images that are not read."""
    classes = [entry for entry in _visible(folder) if entry.is_dir()]
    inside = [entry for each in classes for entry in _visible(each)]
    deeper = [entry for each in inside if each.is_dir() for entry in _visible(each)]
    kept = [entry.path for entry in inside if _ending(entry) in EXTENSIONS]
    kinds = EXTENSIONS | NOT_READ
    skipped = {entry.path for entry in (*_visible(folder), *inside, *deeper) if _ending(entry) in kinds}.difference(
        kept
    )
    if skipped:
        warnings.warn(
            f"{len(skipped)} images in {folder} are not read, such as {Path(min(skipped)).relative_to(folder)}: only "
            f"<class>/* with the endings {', '.join(sorted(EXTENSIONS))} are.",
            stacklevel=4,
        )
    return sorted(map(Path, kept))


def _visible(folder):
    with os.scandir(folder) as entries:
        return [entry for entry in entries if not entry.name.startswith(".")]


def _ending(entry):
    return os.path.splitext(entry.name)[1].lower()


def _is_split(place):
    """Whether a domain has train and val folders of classes; if they contain images, they are classes."""
    parts = [place / "train", place / "val"]
    held = [file for part in parts for file in part.glob("*") if file.suffix.lower() in EXTENSIONS and file.is_file()]
    return all(part.is_dir() for part in parts) and not held


def _classes(places):
    return sorted({p.name for place in places for p in place.glob("*") if p.is_dir() and not p.name.startswith(".")})


def seeded_split(table: pd.DataFrame, share: float) -> pd.Series:
    """`train` or `val` for each row: the same share of each class and domain, at least one image, is `val`."""
    rng = np.random.default_rng(SPLIT_SEED)
    split = pd.Series("train", index=table.index)
    for _, group in table.groupby(["domain", "label"]):
        split[rng.choice(group.index, max(1, round(share * len(group))), replace=False)] = "val"
    return split


LAYOUTS = {"digits_dg": by_split_folders, "pacs": pacs, "minidomainnet": mini_domainnet}
