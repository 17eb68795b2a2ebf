"""Leave one domain out: from a run to the batches of its source domains, augmented, and the images to evaluate on."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from cirl.data.augment import JITTER, augmentation, colour_jitter
from cirl.data.cache import pixels
from cirl.data.layouts import index
from cirl.errors import invalid
from cirl.run.config import Run

Batch = tuple[Tensor, Tensor, Tensor]  # images x, labels y, domains d


class ImageTable(Dataset):
    """Rows of the index as whole batches: `table[seed, rows]` is x (uint8, BCHW), y, d.

    The seed makes a batch's augmentation a function of (run, epoch, batch), whichever worker computes it."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, domains: np.ndarray, transform: Callable | None):
        self.images, self.labels, self.domains, self.transform = images, labels, domains, transform

    def __getitem__(self, batch: tuple[int, np.ndarray]) -> Batch:
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
        """Steps per epoch; each training image is drawn once."""
        return len(self.parts["train"]) // self.run.batch_size

    def train(self, epoch: int) -> Iterator[Batch]:
        """The batches of an epoch, a function of (seed, epoch) alone.

        With two originals per step, the epoch either uses each image twice or, with partner=pair, the second half of
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
        return self._training.batches(batches, rng.integers(2**62, size=self.steps))

    @cached_property
    def _training(self):
        return Stream(self.table, self.device, self.workers)

    @cached_property
    def _evaluation(self):
        table = ImageTable(self.table.images, self.table.labels, self.table.domains, transform=None)
        return Stream(table, self.device, self.workers)

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

    def batch(self, rows: np.ndarray, seed: int) -> Batch:
        """Any rows, augmented as in training: crop, flip and colours follow from the seed."""
        return on_device(self.table[seed, rows], seed, self.device, jitter=self.table.transform is not None)

    def evaluation(self, part: str, size: int = 128) -> Iterator[Batch]:
        """The images of a part, each once, not augmented, in a fixed order that mixes the domains."""
        rows = np.random.default_rng(0).permutation(self.parts[part])
        batches = [rows[i : i + size] for i in range(0, len(rows), size)]
        return self._evaluation.batches(batches, np.zeros(len(batches), int))


class Plan(Sampler):
    """The upcoming batches, each a seed and its rows."""

    batches: Sequence[tuple[int, np.ndarray]] = ()

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


class Stream:
    """A table's batches on the device. The workers that load them live as long as the stream."""

    def __init__(self, table: ImageTable, device: torch.device, workers: int):
        self.table, self.device, self.plan = table, device, Plan()
        options: dict[str, Any] = dict(
            num_workers=workers, persistent_workers=workers > 0, pin_memory=device.type == "cuda"
        )
        self.loader = DataLoader(table, None, sampler=self.plan, **options)

    def batches(self, batches: list[np.ndarray], seeds: np.ndarray) -> Iterator[Batch]:
        """Batches of rows as x in [0, 1], y, d; each batch's augmentation follows from its seed."""
        self.plan.batches = [*zip(seeds.tolist(), batches, strict=True)]
        for batch, seed in zip(self.loader, seeds.tolist(), strict=True):
            yield on_device(batch, seed, self.device, jitter=self.table.transform is not None)


def on_device(batch: Batch, seed: int, device: torch.device, jitter: bool) -> Batch:
    """A batch of uint8 images as x in [0, 1] on the device, the colours jittered there if asked."""
    x, y, d = (tensor.to(device, non_blocking=True) for tensor in batch)
    x = x.float().div_(255)
    return (colour_jitter(x, JITTER, seed) if jitter else x), y, d


def loaders(run: Run, device: torch.device | str = "cpu", workers: int = 0) -> Loaders:
    """Index, cache and loaders of a run."""
    table = index(run.dataset)
    images: Any = pixels(run.dataset, table, run.image_size)
    domain = table["domain"].map({name: i for i, name in enumerate(run.settings.domains)}).to_numpy(np.int64)
    source = (table["domain"] != run.target).to_numpy()
    parts = {
        "train": np.flatnonzero(source & (table["split"] == "train")),
        "source_val": np.flatnonzero(source & (table["split"] == "val")),
        "target": np.flatnonzero(~source),
    }
    if run.batch_size > len(parts["train"]):
        raise invalid("batch_size", run.batch_size, f"at most the {len(parts['train'])} training images of the sources")
    transform = augmentation(run.image_size) if run.augment else None
    images = ImageTable(images, table["label"].to_numpy(np.int64), domain, transform)
    return Loaders(run, images, parts, table.attrs["classes"], torch.device(device), workers)
