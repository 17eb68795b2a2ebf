"""Images are decoded once into `data/cache` (uint8, memory-mapped) and read from there afterwards.

A cache ends with the digest of its pixels. A small file beside it holds its identity (size, times, inode) when it was
written or last read in full. While the identity is unchanged, the cache is not read in full again. Every write through
the file system updates the change time, which no program can set back: a cache damaged in this way is noticed when it
is opened, and decoded again. Damage that changes no time, as by a failing disk, is found by `01_data`, which reads all
caches of a data set in full.
"""

import hashlib
import json
import os
import platform
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
from filelock import FileLock
from PIL import Image, ImageOps
from tqdm.auto import tqdm

from cirl import paths
from cirl.data.layouts import root
from cirl.errors import UserError, reason
from cirl.run.files import read_json, write

FORMATS = ("JPEG", "PNG")  # by content, not by name: other decoders may run programs, as the one for EPS does
LARGEST = 50_000_000  # pixels; a larger image is taken for an attempt to exhaust memory
DIGEST = 16  # hex digits at the end of a cache


def pixels(dataset: str, table: pd.DataFrame, size: int) -> np.ndarray:
    """All images of the index, (n, size, size, 3) uint8, memory-mapped; decoded on the first call."""
    file = paths.CACHE / f"{_stem(dataset)}-{size}-{_digest(dataset, table, size)}.npy"
    try:
        if not is_intact(file):
            _decode_once(dataset, table, size, file)
        return np.load(file, mmap_mode="r")
    except OSError as error:
        raise UserError(
            f"The cache {file} cannot be made or read ({reason(error)}); free space there, or make the folder writable."
        ) from None


def caches(dataset: str) -> list[Path]:
    """The caches of a data set, one per image size and version of its files; all `folder:` data sets share a prefix."""
    return sorted(paths.CACHE.glob(f"{_stem(dataset)}-*.npy"))


def is_intact(file: Path, in_full: bool = False) -> bool:
    """Whether a cache holds the pixels that were written; read in full if asked, or if its identity has changed."""
    try:
        identity = _identity(file)
        if not in_full and _known_identity(file) == identity:
            return True
        intact = content_digest(np.load(file, mmap_mode="r")) == identity["digest"]
    except (OSError, ValueError):
        return False
    with suppress(OSError, UserError):  # in a read-only folder, a cache is read in full each time
        write(_beside(file), json.dumps(identity)) if intact else _beside(file).unlink(missing_ok=True)
    return intact


def _beside(file):
    return file.with_suffix(".json")


def _known_identity(file):
    """The identity at the last check in full; None if there was none."""
    try:
        return read_json(_beside(file))
    except (OSError, UserError):
        return None


def _identity(file):
    """What changes when a file is written to, replaced or copied, with the digest at its end."""
    with open(file, "rb") as cache:
        cache.seek(-DIGEST, os.SEEK_END)
        digest, known = cache.read().decode("ascii", "replace"), os.fstat(cache.fileno())
    times = {"mtime_ns": known.st_mtime_ns, "ctime_ns": known.st_ctime_ns}
    return {"digest": digest, "size": known.st_size, "inode": known.st_ino, **times}


def data_digest(images: np.ndarray) -> str:
    """The digest of the pixels of an open cache, as checked when it was opened."""
    return _identity(images.filename)["digest"]  # type: ignore[attr-defined]  # `pixels` is a memory map


def content_digest(images: np.ndarray) -> str:
    """A digest of the pixels themselves, the same on every machine."""
    digest = hashlib.sha256()
    for start in range(0, len(images), 256):
        digest.update(np.ascontiguousarray(images[start : start + 256]).data)
    return digest.hexdigest()[:DIGEST]


def _stem(dataset):
    return dataset if dataset.isidentifier() else "folder"


def _digest(dataset, table, size):
    """Changes with the files: a hash of their names, sizes and times, or of the rendering code of `tiny`."""
    if dataset == "tiny":
        what = Path(__file__).with_name("tiny.py").read_bytes() + "".join(table["path"]).encode()
    else:
        folder = root(dataset)
        stats = [(path, _stat(folder / path)) for path in table["path"]]
        what = json.dumps([str(folder.resolve()), [(p, s.st_size, s.st_mtime_ns) for p, s in stats]]).encode()
        what += b"upright" if _is_own(dataset) else b""
    return hashlib.sha256(what + str(size).encode()).hexdigest()[:DIGEST]


def _stat(file):
    try:
        return file.stat()
    except OSError as error:
        raise UserError(f"{file} cannot be read ({reason(error)}); remove or replace it.") from None


def _is_own(dataset):
    return dataset.startswith("folder:")


def _decode_once(dataset, table, size, file):
    """Of several processes that want the same cache, one decodes and the others wait for it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_suffix(".lock")) as lock:
        try:
            if not is_intact(file):
                if file.exists():
                    warnings.warn(f"The cache {file} is damaged (wrong checksum); decoding it again.", stacklevel=4)
                _decode_all(dataset, table, size, file)
                write(_beside(file), json.dumps(_identity(file)))
        finally:
            Path(lock.lock_file).unlink(missing_ok=True)  # at worst another process decodes as well


def _decode_all(dataset, table, size, file):
    """Write the cache image by image, in bounded memory, under a temporary name until it is complete.

    Plain writes, not a memory map: a full disk then raises OSError instead of killing the process."""
    unfinished = file.with_suffix(f".{platform.node()}.{os.getpid()}.tmp")
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(table), size, size, 3)}
    for leftover in file.parent.glob(f"{file.stem}.*.tmp"):  # of a process that was killed while writing
        leftover.unlink(missing_ok=True)
    rows = _rows(dataset, table)
    digest = hashlib.sha256()
    progress = tqdm(total=len(rows), desc=f"decoding {dataset}", unit="image", leave=False, disable=None)
    try:
        with open(unfinished, "wb") as out, ThreadPoolExecutor(os.cpu_count()) as threads, progress:
            np.lib.format.write_array_header_1_0(out, header)
            for start in range(0, len(rows), 256):
                for image in threads.map(lambda row: _image(dataset, row, size), rows[start : start + 256]):
                    content = np.ascontiguousarray(image).data
                    out.write(content)
                    digest.update(content)
                    progress.update()
            out.write(digest.hexdigest()[:DIGEST].encode())
        os.replace(unfinished, file)
    finally:
        unfinished.unlink(missing_ok=True)


def _rows(dataset, table):
    """The rows with all that `_image` needs of them."""
    if dataset == "tiny":
        from cirl.data import tiny  # late: it takes seconds, and most runs find the images in the cache

        table = tiny.table()
    return list(table.itertuples(index=False))


def _image(dataset, row, size):
    if dataset == "tiny":
        from cirl.data import tiny

        return resized(Image.fromarray(tiny.render(row.shape, row.style)), size)
    return decode(root(dataset) / row.path, size, upright=_is_own(dataset))


def decode(path: Path, size: int, upright: bool = True) -> np.ndarray:
    """A JPEG or PNG file as RGB, (size, size, 3) uint8; `upright` rotates it according to its EXIF data.

    The benchmarks are read without rotation, as in the released code."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > LARGEST:
                raise OSError(f"{image.width} x {image.height} pixels, more than {LARGEST:,}")
            return resized(_as_rgb(ImageOps.exif_transpose(image) if upright else image), size)
    except Exception as error:  # a decoder may raise anything on a file that was made to break it
        raise UserError(f"{path} cannot be read as an image ({reason(error)}); remove or replace it.") from None


def _as_rgb(image):
    """RGB with 8 bits; 16 bits of grey are scaled, which Pillow would clip."""
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image) / 257).round().clip(0, 255).astype(np.uint8))
    return image.convert("RGB")


def resized(image: Image.Image, size: int) -> np.ndarray:
    """An image as (size, size, channels) uint8; its aspect ratio is not kept."""
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR) if image.size != (size, size) else image)
