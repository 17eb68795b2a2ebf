"""How the data sets lie on disk: one function per layout, from a folder to the index of its images.

    tiny             nothing on disk
    digits_dg        <domain>/{train,val}/<class>/*
    pacs             <domain>/<class>/*, split by splits/<domain>_{train,crossval}_kfold.txt
    officehome       <domain>/<class>/*, or <domain>/{train,val}/<class>/*
    minidomainnet    <domain>/<class>/*, chosen and split by splits_mini/<domain>_{train,test}.txt
    folder:<path>    <domain>/<class>/*

The index has one row per image: path, label, domain, split (train or val); `attrs` holds the class names.
"""

import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from cirl import paths
from cirl.data import tiny
from cirl.errors import UserError
from cirl.run.config import settings

EXTENSIONS = {".jpg", ".jpeg", ".png"}
SPLIT_SEED = 0  # the split belongs to the data set, not to the run
VALIDATION = 0.1
INSIDE = ("", "images", "kfold")  # where toolkits unpack the domains


def index(dataset: str) -> pd.DataFrame:
    """The index of a data set, or one sentence that says what is missing."""
    if dataset == "tiny":
        table = tiny.table()
        table.attrs["classes"] = [str(digit) for digit in range(10)]
        return table
    folder, domains = root(dataset), settings(dataset).domains
    return LAYOUTS.get(dataset, by_folders)(folder, domains)


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


def by_folders(folder: Path, domains: tuple[str, ...]) -> pd.DataFrame:
    """`<domain>/<class>/*` with a seeded split, or `<domain>/{train,val}/<class>/*`."""
    found = {domain: domain_folder(folder, domain) for domain in domains}
    if all((place / "train").is_dir() and (place / "val").is_dir() for place in found.values()):
        return by_split_folders(folder, domains)
    rows = [(file, file.parent.name, domain) for domain, place in found.items() for file in images(place, "*/*")]
    table = labelled(folder, rows, _classes(place for place in found.values()), found)
    table["split"] = seeded_split(table, VALIDATION)
    return table


def by_split_folders(folder: Path, domains: tuple[str, ...]) -> pd.DataFrame:
    """`<domain>/{train,val}/<class>/*`."""
    found = {domain: domain_folder(folder, domain) for domain in domains}
    parts = {}
    for split in ("train", "val"):
        places = {domain: place / split for domain, place in found.items()}
        missing = [place for place in places.values() if not place.is_dir()]
        if missing:
            raise UserError(f"{missing[0]} is missing: {folder} needs train and val in every domain.")
        rows = [(file, file.parent.name, domain) for domain, place in places.items() for file in images(place, "*/*")]
        classes = _classes(place / part for place in found.values() for part in ("train", "val"))
        parts[split] = labelled(folder, rows, classes, places).assign(split=split)
    table = pd.concat(parts.values(), ignore_index=True)
    table.attrs["classes"] = parts["train"].attrs["classes"]
    return table


def pacs(folder: Path, domains: tuple[str, ...]) -> pd.DataFrame:
    """The official lists, or where there are none a seeded split and a warning."""
    if (folder / "splits").is_dir():
        return by_lists(folder, domains, {"train": "splits/{}_train_kfold.txt", "val": "splits/{}_crossval_kfold.txt"})
    warnings.warn(
        f"{folder / 'splits'} is missing: PACS is split by a seeded 90/10 split of our own, not by the official lists.",
        stacklevel=3,
    )
    return by_folders(folder, domains)


def mini_domainnet(folder: Path, domains: tuple[str, ...]) -> pd.DataFrame:
    """DomainNet's images as far as its authors' lists name them; their test lists are our validation."""
    return by_lists(folder, domains, {"train": "splits_mini/{}_train.txt", "val": "splits_mini/{}_test.txt"})


def by_lists(folder: Path, domains: tuple[str, ...], lists: dict[str, str]) -> pd.DataFrame:
    """Lists of `<domain>/<class>/<name> <label>`; the label is taken from the class folder."""
    rows, splits = [], []
    for domain in domains:
        base = domain_folder(folder, domain).parent
        for split, pattern in lists.items():
            listed = _read_list(folder / pattern.format(domain), base)
            rows += [(file, file.parent.name, domain) for file in listed]
            splits += [split] * len(listed)
    table = labelled(
        folder, rows, sorted({name for _, name, _ in rows}), {d: domain_folder(folder, d) for d in domains}
    )
    twice = table.loc[table["path"].duplicated(), "path"]
    if len(twice):
        raise UserError(f"{folder}: {twice.iloc[0]} is named twice in the lists; each image has one place.")
    return table.assign(split=splits)


def _read_list(file, base):
    """The files that a list names, each of which must be there."""
    if not file.is_file():
        raise UserError(f"The list {file} is missing.")
    listed = []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if not line.strip():
            continue
        parts = line.rsplit(maxsplit=1)[0].split("/")
        if len(parts) != 3 or ".." in parts:
            raise UserError(f"{file}, line {number}: {line!r} is not '<domain>/<class>/<name> <label>'.")
        image = base.joinpath(*parts)
        if not image.is_file():
            raise UserError(f"{file}, line {number} names {'/'.join(parts)}, and there is no such file in {base}.")
        listed.append(image)
    return listed


def labelled(folder: Path, rows: list, classes: list[str], places: dict[str, Path]) -> pd.DataFrame:
    """Rows (file, class, domain) as a table; every class must have two images in every domain."""
    table = pd.DataFrame(rows, columns=["path", "class", "domain"])
    counts = table.groupby(["domain", "class"]).size()
    for domain, place in places.items():
        for name in classes:
            if counts.get((domain, name), 0) < 2:
                raise UserError(f"{place / name} needs two images at least ({', '.join(sorted(EXTENSIONS))}).")
    table["path"] = [str(file.relative_to(folder)) for file in table["path"]]
    table["label"] = table.pop("class").map({name: i for i, name in enumerate(classes)})
    table.attrs["classes"] = classes
    return table


def domain_folder(folder: Path, domain: str) -> Path:
    """A domain's folder, as it is distributed: `Real World`, `RealWorld` and `real_world` are one domain."""
    for inside in INSIDE:
        base = folder / inside
        for place in sorted(base.iterdir()) if base.is_dir() else []:
            if place.is_dir() and plain(place.name) == plain(domain):
                return place
    raise UserError(f"{folder} lacks the domain {domain!r}: there is no folder {folder / domain}.")


def plain(name: str) -> str:
    """A folder's name without the differences of spelling between distributions."""
    return name.lower().replace(" ", "").replace("_", "")


def images(folder: Path, pattern: str) -> list[Path]:
    """The image files of a folder, in the order of their names."""
    return sorted(p for p in folder.glob(pattern) if p.suffix.lower() in EXTENSIONS and not p.name.startswith("."))


def _classes(places):
    return sorted({p.name for place in places for p in place.glob("*") if p.is_dir() and not p.name.startswith(".")})


def seeded_split(table: pd.DataFrame, share: float) -> pd.Series:
    """`train` or `val` for each row: of each class of each domain the same share, one image at least, is `val`."""
    rng = np.random.default_rng(SPLIT_SEED)
    split = pd.Series("train", index=table.index)
    for _, group in table.groupby(["domain", "label"]):
        split[rng.choice(group.index, max(1, round(share * len(group))), replace=False)] = "val"
    return split


LAYOUTS = {"digits_dg": by_split_folders, "pacs": pacs, "minidomainnet": mini_domainnet}
