"""Fetch a benchmark: download what is missing, unpack it safely, count its images. Used by `01_data` alone."""

import hashlib
import lzma
import os
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import gdown
import pandas as pd
from PIL import Image
from tqdm.auto import tqdm

from cirl import paths
from cirl.data.benchmarks import DATASETS, Archive
from cirl.data.cache import FORMATS
from cirl.data.layouts import INSIDE, index, plain, root
from cirl.data.pretrained import sha256
from cirl.errors import UserError, invalid, reason
from cirl.run.config import settings

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz")
DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    EOFError,
    lzma.LZMAError,
    zlib.error,
    OSError,
    RuntimeError,  # zipfile: encrypted, or (NotImplementedError) an unknown compression
)
KEPT = {"splits", "splits_mini", *filter(None, INSIDE)}  # folders that belong to a layout, beside the domains
SMALL, RATIO = 100_000_000, 20  # any archive may unpack to SMALL bytes, larger ones to RATIO times their size


def fetch(dataset: str, from_network: bool = True) -> Path:
    """Bring a benchmark to `data/raw/<dataset>`: archives in `data/raw` are used, others downloaded."""
    if dataset not in DATASETS:
        raise invalid("dataset", dataset, DATASETS)
    folder, wanted = paths.RAW / dataset, missing(dataset)
    files = {archive: local_archive(dataset, archive) for archive in wanted}
    absent = [archive for archive in wanted if files[archive] is None]
    if absent and not from_network:
        how = "; ".join(by_hand(archive.mirrors, paths.RAW / archive.name) for archive in absent)
        raise UserError(f"{problem(dataset)} Run 01_data with -p fetch True, or {how}; then run 01_data again.")
    for archive in wanted:
        file = files[archive] or download(archive.mirrors, paths.RAW / archive.name, archive.sha256)
        unpack(file, folder, {*settings(dataset).domains, *KEPT})
    return folder


def missing(dataset: str) -> list[Archive]:
    """The archives that are still needed: all of an incomplete data set, or those whose folder is missing."""
    archives, folder = DATASETS[dataset].archives, paths.RAW / dataset
    if len(archives) == 1:
        return [*archives] if problem(dataset) else []
    return [archive for archive in archives if not (folder / archive.name.removesuffix(".zip")).is_dir()]


def problem(dataset: str) -> str | None:
    """What is wrong with the folder; None if it can be indexed."""
    try:
        index(dataset)
    except UserError as error:
        return str(error)
    return None


def local_archive(dataset: str, archive: Archive) -> Path | None:
    """An archive that the user has put into `data/raw`, under its own name or that of the data set."""
    stems = {archive.name.removesuffix(".zip").lower()}
    stems |= {dataset} if len(DATASETS[dataset].archives) == 1 else set()
    for file in sorted(paths.RAW.iterdir()) if paths.RAW.is_dir() else []:
        if file.name.lower() in {stem + suffix for stem in stems for suffix in SUFFIXES}:
            check(file, archive.sha256)
            return file
    return None


def download(mirrors: tuple[str, ...], file: Path, sha: str | None = None) -> Path:
    """Download from the first mirror that answers; an interrupted download is resumed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    reasons = []
    for number, url in enumerate(mirrors):
        part = file.with_name(f"{file.stem}.mirror{number}{file.suffix}")  # never mix the bytes of two mirrors
        try:
            gdown.download(url, str(part), resume=True, retries=2, use_cookies=False)
            if not is_archive(part):
                part.unlink()
                raise ValueError("the download is not an archive")
            check(part, sha)
            os.replace(part, file)
            return file
        except UserError as error:
            reasons.append(f"{url}: {error}")
            part.unlink(missing_ok=True)
        except Exception as error:
            reasons.append(f"{url}: {reason(error)}")
    raise UserError(
        f"{file.name} could not be fetched ({'; '.join(reasons)}); {by_hand(mirrors, file)} and run 01_data again."
    )


def by_hand(mirrors: tuple[str, ...], file: Path) -> str:
    """Instructions: which file to download, and where to put it."""
    return f"get {file.name} in a browser from {' or '.join(mirrors)}, put it at {file}"


def check(file: Path, sha: str | None) -> None:
    """Compare a file with its published checksum."""
    if sha and sha256(file) != sha:
        raise UserError(f"{file} does not have the published SHA-256 ({sha}); delete it and fetch it again.")


def is_archive(file: Path) -> bool:
    return zipfile.is_zipfile(file) or tarfile.is_tarfile(file)


def unpack(file: Path, folder: Path, kept: set[str]) -> None:
    """Unpack beside `folder`, then move into it what it lacks, each domain as a whole.

    Only plain files inside the target are accepted: if one path leads out of it, or is a link, nothing is unpacked."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.unpacking.", dir=folder.parent) as place:
        try:
            _extract(file, Path(place))
        except DAMAGED as error:
            raise UserError(
                f"{file} cannot be unpacked ({reason(error)}); if it is truncated or damaged, delete it."
            ) from None
        entries = list(_inner(Path(place), kept).iterdir())
        folder.mkdir(exist_ok=True)
        for entry in entries:
            if entry.name != "__MACOSX" and not (folder / entry.name).exists():
                shutil.move(entry, folder / entry.name)


def _extract(file, place):
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            members = [info for info in archive.infolist() if not info.is_dir()]
            plain = [(info.filename, (info.external_attr >> 16) & 0o170000 in (0, 0o100000)) for info in members]
            _refuse_unsafe(file, plain)
            _refuse_bomb(file, sum(info.file_size for info in members))
            archive.extractall(place, _progress(file, members))
        return
    with tarfile.open(file) as tar:
        entries = [info for info in tar.getmembers() if not info.isdir()]
        _refuse_unsafe(file, [(info.name, info.isfile()) for info in entries])
        _refuse_bomb(file, sum(info.size for info in entries))
        safe: dict = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # not before Python 3.11.4
        tar.extractall(place, _progress(file, entries), **safe)
        while tar.fileobj and tar.fileobj.read(1 << 20):  # to the end, where a compressed stream has its checksum
            pass


def _progress(file, members):
    return tqdm(members, f"unpacking {file.name}", unit="file", leave=False, disable=None)


def _refuse_bomb(file, total):
    """Refuse an archive that unpacks to many times its size: images hardly compress."""
    packed, free = file.stat().st_size, shutil.disk_usage(file.parent).free
    if total > max(SMALL, RATIO * packed):
        raise UserError(
            f"{file} ({packed / 1e6:.0f} MB) would unpack to {total / 1e9:.1f} GB, far more than images do; nothing "
            "was unpacked. If that is right, unpack it yourself."
        )
    if total > free:
        raise UserError(f"{file} unpacks to {total / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free; free space first.")


def _refuse_unsafe(file, members):
    for name, is_plain_file in members:
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
            raise UserError(f"{file} holds {name!r}, which leads out of the target folder; nothing was unpacked.")
        if not is_plain_file:
            raise UserError(f"{file} holds {name!r}, which is not a plain file but a link; nothing was unpacked.")


def _inner(place, kept):
    """The folder that holds the data, inside wrappers such as `PACS/` or `OfficeHomeDataset_10072016/`."""
    known = {plain(name) for name in kept}
    while True:
        inside = [entry for entry in place.iterdir() if entry.is_dir() and entry.name != "__MACOSX"]
        if len(inside) != 1 or plain(inside[0].name) in known:
            return place
        place = inside[0]


def counts(dataset: str) -> pd.DataFrame:
    """Per domain: images, train, val, the published number, and whether numbers and contents agree with it."""
    table, known = index(dataset), DATASETS.get(dataset)
    table.attrs = {}
    rows = []
    for domain in settings(dataset).domains:
        own = table[table["domain"] == domain]
        parts = (int((own["split"] == "train").sum()), int((own["split"] == "val").sum()))
        published = known.counts.get(domain) if known else None
        total = sum(published) if isinstance(published, tuple) else published
        agrees = "–" if published is None else "✓" if published in (parts, sum(parts)) else "✗"
        rows.append((domain, *parts, sum(parts), total, agrees, _content(dataset, own, known, domain)))
    columns = ["domain", "train", "val", "images", "published", "counts agree", "contents agree"]
    return pd.DataFrame(rows, columns=columns).set_index("domain").astype({"published": "Int64"})


def _content(dataset, own, known, domain):
    published = known.sums.get(domain) if known else None
    return "–" if published is None else "✓" if content_sum(root(dataset), own["path"]) == published else "✗"


def content_sum(folder: Path, files: Iterable[str]) -> str:
    """A checksum of images, the same however a PNG is compressed: bytes of JPEG files, pixels of PNG files."""
    digest = hashlib.sha256()
    for path in sorted(files, key=lambda path: path.split("/")[-3:]):
        digest.update("/".join(path.split("/")[-3:]).encode())
        if path.lower().endswith(".png"):
            with Image.open(folder / path, formats=FORMATS) as image:
                digest.update(image.convert("RGB").tobytes())
        else:
            digest.update((folder / path).read_bytes())
    return digest.hexdigest()[:16]
