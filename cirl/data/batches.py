"""From a data set's index to batches: decoded cache, augmentation, leave-one-domain-out loaders.

An image is decoded once into `data/cache` (uint8, memory-mapped) and from then on read from there.
"""

import hashlib
import json
import os
import platform
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from filelock import FileLock
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from tqdm.auto import tqdm

from cirl import paths
from cirl.data import tiny
from cirl.data.jitter import colour_jitter
from cirl.data.layouts import index, root
from cirl.errors import UserError, reason, refuse
from cirl.run.config import Run

LARGEST = 50_000_000  # pixels of an image file; what is larger was made to exhaust the memory
JITTER = 0.4  # of brightness, contrast, saturation and hue


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


def augmentation(size: int) -> Callable[[Tensor], Tensor]:
    """PACS, Office-Home, mini-DomainNet and folders: random resized crop and flip; colours follow on the device."""
    from torchvision.transforms import v2  # late: it takes seconds, and digits are not augmented

    return v2.Compose([v2.RandomResizedCrop(size, scale=(0.8, 1.0), antialias=True), v2.RandomHorizontalFlip()])


class ImageTable(Dataset):
    """Rows of the index as whole batches: `table[seed, rows]` is x (uint8, BCHW), y, d.

    The seed makes a batch's augmentation a function of (run, epoch, batch), whichever worker does it."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, domains: np.ndarray, transform: Callable | None):
        self.images, self.labels, self.domains, self.transform = images, labels, domains, transform

    def __getitem__(self, batch: tuple[int, np.ndarray]) -> tuple[Tensor, Tensor, Tensor]:
        seed, rows = batch
        x = torch.from_numpy(self.images[rows]).permute(0, 3, 1, 2)
        if self.transform:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                x = torch.stack([self.transform(image) for image in x])
        return x, torch.from_numpy(self.labels[rows]), torch.from_numpy(self.domains[rows])


@dataclass(frozen=True)
class Loaders:
    """Leave one domain out: the sources' train and val parts, and the whole target."""

    run: Run
    table: ImageTable
    parts: dict[str, np.ndarray]  # train, source_val, target -> rows
    classes: list[str]
    device: torch.device
    workers: int

    @property
    def steps(self) -> int:
        """Steps of an epoch: each image of the sources is once an image of the batch."""
        return len(self.parts["train"]) // self.run.batch_size

    def train(self, epoch: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The batches of an epoch, a function of (seed, epoch) alone.

        With two originals a step, either the epoch goes through the images twice, or (partner=pair) the second half of
        each batch holds the partners of the first."""
        rng = np.random.default_rng((self.run.seed, epoch))
        choices, size = self.run.choices, self.run.batch_size
        if choices.partner == "pair":
            first = rng.permutation(self.parts["train"])
            rows = np.stack([first, self.partners(first, rng)])
            batches = [rows[:, i * size : (i + 1) * size].ravel() for i in range(self.steps)]
        else:
            rows = np.concatenate([rng.permutation(self.parts["train"]) for _ in range(choices.originals)])
            size *= choices.originals
            batches = [rows[i * size : (i + 1) * size] for i in range(self.steps)]
        return batches_of(self.table, batches, rng.integers(2**62, size=self.steps), self.device, self.workers)

    def partners(self, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """For each row a training image that lends its amplitude: a domain first, then an image of it (Table 9).

        As released, `random` may draw any domain and any image of it, the image itself included."""
        train = self.parts["train"]
        domains = np.unique(self.table.domains[train])
        own = np.searchsorted(domains, self.table.domains[rows])
        if self.run.sampling == "random":
            drawn = rng.integers(len(domains), size=len(rows))
        elif self.run.sampling == "intra":
            drawn = own
        else:
            drawn = (own + rng.integers(1, len(domains), size=len(rows))) % len(domains)
        images = [train[self.table.domains[train] == domain] for domain in domains]
        share = rng.random(len(rows))
        return np.array([images[i][int(u * len(images[i]))] for i, u in zip(drawn, share, strict=True)])

    def batch(self, rows: np.ndarray, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Any rows, augmented as in training: crop, flip and colours follow from the seed."""
        return on_device(self.table[seed, rows], seed, self.device, jitter=self.table.transform is not None)

    def evaluation(self, part: str, size: int = 128) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The images of a part, each once, not augmented, in a fixed order in which the domains are mixed."""
        rows = np.random.default_rng(0).permutation(self.parts[part])
        plain = ImageTable(self.table.images, self.table.labels, self.table.domains, transform=None)
        batches = [rows[i : i + size] for i in range(0, len(rows), size)]
        return batches_of(plain, batches, np.zeros(len(batches), int), self.device, self.workers)


def batches_of(
    table: ImageTable, batches: list[np.ndarray], seeds: np.ndarray, device: torch.device, workers: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Batches of rows as x in [0, 1], y, d on the device; each batch's augmentation follows from its seed."""
    sampler = list(zip(seeds.tolist(), batches, strict=True))
    pinned = device.type == "cuda"
    loader = DataLoader(table, None, sampler=sampler, num_workers=workers, pin_memory=pinned)
    for batch, seed in zip(loader, seeds.tolist(), strict=True):
        yield on_device(batch, seed, device, jitter=table.transform is not None)


def on_device(
    batch: tuple[Tensor, Tensor, Tensor], seed: int, device: torch.device, jitter: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """A batch of uint8 images as x in [0, 1] on the device, the colours jittered there where asked."""
    x, y, d = (tensor.to(device, non_blocking=True) for tensor in batch)
    x = x.float().div_(255)
    return (colour_jitter(x, JITTER, seed) if jitter else x), y, d


def loaders(run: Run, device: torch.device | str = "cpu", workers: int = 0) -> Loaders:
    """Index, cache and loaders of a run."""
    table = index(run.dataset)
    images = pixels(run.dataset, table, run.image_size)
    domain = table["domain"].map({name: i for i, name in enumerate(run.settings.domains)}).to_numpy(np.int64)
    source = (table["domain"] != run.target).to_numpy()
    parts = {
        "train": np.flatnonzero(source & (table["split"] == "train")),
        "source_val": np.flatnonzero(source & (table["split"] == "val")),
        "target": np.flatnonzero(~source),
    }
    if run.batch_size > len(parts["train"]):
        raise refuse("batch_size", run.batch_size, f"at most the {len(parts['train'])} training images of the sources")
    transform = augmentation(run.image_size) if run.augment else None
    images = ImageTable(images, table["label"].to_numpy(np.int64), domain, transform)
    return Loaders(run, images, parts, table.attrs["classes"], torch.device(device), workers)
