"""Images are decoded once into `data/cache` (uint8, memory-mapped) and from then on read from there."""

import hashlib
import json
import os
import platform
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
from filelock import FileLock
from PIL import Image, UnidentifiedImageError
from tqdm.auto import tqdm

from cirl import paths
from cirl.data import tiny
from cirl.data.layouts import root
from cirl.errors import UserError, reason

LARGEST = 50_000_000  # pixels of an image file; what is larger was made to exhaust the memory


def pixels(dataset: str, table: pd.DataFrame, size: int) -> np.ndarray:
    """All images of the index, (n, size, size, 3) uint8, memory-mapped; decoded on the first call.

    Of several processes that want the same cache, one decodes and the others wait for it."""
    name = dataset if dataset.isidentifier() else "folder"
    file = paths.CACHE / f"{name}-{size}-{_digest(dataset, table, size)}.npy"
    try:
        if not _is_whole(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(file.with_suffix(".lock")) as lock:
                try:
                    if not _is_whole(file):
                        if file.exists():
                            warnings.warn(
                                f"The cache {file} is damaged (its checksum does not hold); it is made anew.",
                                stacklevel=2,
                            )
                        _decode_all(dataset, table, size, file)
                finally:
                    Path(lock.lock_file).unlink(missing_ok=True)  # at worst a third process decodes as well
        return np.load(file, mmap_mode="r")
    except OSError as error:
        raise UserError(
            f"The cache {file} cannot be made or read ({reason(error)}); free space there, or make the folder writable."
        ) from None


def _is_whole(file):
    """Whether the cache is there and its last bytes are the digest of its pixels."""
    try:
        with open(file, "rb") as cache:
            cache.seek(-16, os.SEEK_END)
            written = cache.read()
        return content_digest(np.load(file, mmap_mode="r")).encode() == written
    except (OSError, ValueError):
        return False


def content_digest(images: np.ndarray) -> str:
    """A digest of the pixels themselves, the same on every machine."""
    digest = hashlib.sha256()
    for start in range(0, len(images), 256):
        digest.update(np.ascontiguousarray(images[start : start + 256]))
    return digest.hexdigest()[:16]


def _digest(dataset, table, size):
    """Changes when a file does: names, sizes and times of the files, or the rendering code of `tiny`."""
    if dataset == "tiny":
        what = Path(tiny.__file__).read_bytes()
    else:
        folder = root(dataset)
        stats = [(path, (folder / path).stat()) for path in table["path"]]
        what = json.dumps([str(folder.resolve()), [(p, s.st_size, s.st_mtime_ns) for p, s in stats]]).encode()
    return hashlib.sha256(what + str(size).encode()).hexdigest()[:16]


def _decode_all(dataset, table, size, file):
    """Write the cache image by image, in bounded memory, under another name until it is whole.

    Plain writes, not a memory map: a full disk is then an error that can be told and not the end of the process."""
    unfinished = file.with_suffix(f".{platform.node()}.{os.getpid()}.tmp")
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(table), size, size, 3)}
    for leftover in file.parent.glob(f"{file.stem}.*.tmp"):  # of a process that was killed while it wrote
        leftover.unlink(missing_ok=True)
    rows = list(table.itertuples(index=False))
    digest = hashlib.sha256()
    progress = tqdm(total=len(rows), desc=f"decoding {dataset}", unit="image", leave=False, disable=None)
    try:
        with open(unfinished, "wb") as out, ThreadPoolExecutor(os.cpu_count()) as threads, progress:
            np.lib.format.write_array_header_1_0(out, header)
            for start in range(0, len(rows), 256):
                for image in threads.map(lambda row: _image(dataset, row, size), rows[start : start + 256]):
                    out.write(np.ascontiguousarray(image))
                    digest.update(np.ascontiguousarray(image))
                    progress.update()
            out.write(digest.hexdigest()[:16].encode())
        os.replace(unfinished, file)
    finally:
        unfinished.unlink(missing_ok=True)


def _image(dataset, row, size):
    if dataset == "tiny":
        return _resized(Image.fromarray(tiny.render(row.shape, row.style)), size)
    return decode(root(dataset) / row.path, size)


def decode(path: Path, size: int) -> np.ndarray:
    """An image file as RGB, (size, size, 3) uint8."""
    try:
        with Image.open(path) as image:
            if image.width * image.height > LARGEST:
                raise OSError(f"{image.width} x {image.height} pixels, more than {LARGEST:,}")
            return _resized(image.convert("RGB"), size)
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} cannot be read as an image ({error}); remove or replace it.") from None


def _resized(image, size):
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR) if image.size != (size, size) else image)
