"""Attention maps (`Trained.attention`) and two measures: how much lies on the object, and how much it matters.

What a run attends to is kept in `data/attention/<run id>.npz`, because weights are not committed: a few maps and the
measures of each image. It counts only for the weights from which it was made (`model_sha256` in results.csv).
"""

import hashlib
import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cirl import paths
from cirl.data import tiny
from cirl.data.cache import pixels
from cirl.methods.base import Method
from cirl.run import checkpoint
from cirl.run.config import Run
from cirl.run.files import write
from cirl.run.folder import folder, has_weights
from cirl.run.trained import Trained
from cirl.show.tables import half_width
from cirl.study import records

BATCH = 128
PER_CLASS, LIMIT = 1, 2000  # what is kept: maps of the first image of each class, measures of so many images


@dataclass(frozen=True)
class Look:
    """What a run attends to on its target."""

    images: np.ndarray  # rows of the index whose maps are kept
    maps: np.ndarray  # of the true class, (n, H, W) in steps from 0 to 255
    predicted: np.ndarray  # labels
    values: pd.DataFrame  # one line per measured image: right (%), top, random, deletion; on tiny on_strokes, chance


def look(run: Run, index: pd.DataFrame, per_class: int = PER_CLASS, limit: int = LIMIT) -> Look | None:
    """What a run attends to: as kept for its weights, otherwise computed from them; None if there is neither.

    With the default numbers of images the result is kept."""
    usual, weights = (per_class, limit) == (PER_CLASS, LIMIT), weights_digest(run)
    found = _read(run, weights) if usual else None
    if found is None and has_weights(run):
        found = measure(run, index, per_class, limit)
        if usual:
            _write(run, found, weights)
    return found


def with_looks(rows: dict[str, list[Run]], seeds: Sequence[int]) -> dict[str, list[Run]]:
    """The rows with, for each target, the first seed of which every row has weights or a kept look.

    A target without such a seed keeps its runs. Weights are not committed, so the first seed may be gone for good."""
    chosen = []
    for runs in zip(*rows.values(), strict=True):  # of one target
        others = ([replace(run, seed=seed) for run in runs] for seed in seeds)
        chosen.append(next((other for other in others if all(map(_has_look, other))), runs))
    return {row: [*runs] for row, runs in zip(rows, zip(*chosen, strict=True), strict=True)}


def _has_look(run):
    return has_weights(run) or _read(run, weights_digest(run)) is not None


def measure(run: Run, index: pd.DataFrame, per_class: int, limit: int) -> Look:
    """Maps of the first images of each class of the target, and measures of `limit` evenly spaced ones (0: of all)."""
    part = index[index["domain"] == run.target]
    first = part.groupby("label").head(per_class).sort_values("label", kind="stable")
    spaced = part.iloc[np.linspace(0, len(part) - 1, min(limit or len(part), len(part))).astype(int)]
    names, chosen = index.attrs["classes"], pd.concat([first, spaced])
    x = torch.from_numpy(pixels(run.dataset, index, run.image_size)[chosen.index]).permute(0, 3, 1, 2) / 255
    y = torch.tensor(chosen["label"].to_numpy())
    method = checkpoint.load_model(run, len(names))
    maps = Trained(method, names).attention(x, y.tolist())
    with torch.inference_mode():
        predicted = torch.cat([method.predict(some).argmax(1) for some in x.split(BATCH)]).numpy()
    n = len(first)
    values = deletion(method, x[n:], y[n:], maps[n:]).assign(right=100.0 * (predicted[n:] == y[n:].numpy()))
    if run.dataset == "tiny":
        inside = np.stack([strokes(image) for _, image in tiny.table().loc[spaced.index].iterrows()])
        values["on_strokes"], values["chance"] = share_inside(maps[n:], inside), inside.mean((1, 2))
    return Look(first.index.to_numpy(), np.round(255 * maps[:n]).astype(np.uint8), predicted[:n], values)


def weights_digest(run: Run) -> str | None:
    """The digest of a run's weights: of those in its folder, otherwise of those that were recorded."""
    if has_weights(run):
        return hashlib.sha256((folder(run) / "model.pt").read_bytes()).hexdigest()
    record = records.collected_records([run])[0].get(run.id, {})
    return record.get("model_sha256")


def _file(run) -> Path:
    return paths.ATTENTION / f"{run.id}.npz"


def _write(run, found, weights):
    """Keep a look, with the digest of the weights that it was made from."""
    buffer = io.BytesIO()
    values = {f"values.{name}": column.to_numpy(np.float32) for name, column in found.values.items()}
    parts = dict(images=found.images, maps=found.maps, predicted=found.predicted, model_sha256=np.array(weights))
    np.savez_compressed(buffer, **parts, **values)
    write(_file(run), buffer.getvalue())


def _read(run, weights):
    """The kept look; None if there is none, if it is damaged, or if other weights were looked at."""
    try:
        with np.load(_file(run), allow_pickle=False) as kept:
            if kept["model_sha256"] != weights:
                return None
            values = {name.removeprefix("values."): kept[name] for name in kept if name.startswith("values.")}
            return Look(kept["images"], kept["maps"], kept["predicted"], pd.DataFrame(values))
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile):
        return None


def strokes(image: pd.Series) -> np.ndarray:
    """The pixels of `tiny` that the digit's strokes change, (H, W) bool; image: a row of `tiny.table`."""
    alone = replace(image["style"], neighbours=(), noise=0.0)
    drawn, empty = (tiny.render(image["shape"], style).astype(int) for style in (alone, replace(alone, opacity=0.0)))
    return np.abs(drawn - empty).max(2) > 25


def share_inside(attention: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """The share of each map (n, H, W) that falls inside a region (n, H, W); NaN for a blank map."""
    total = attention.sum((1, 2))
    return np.divide((attention * inside).sum((1, 2)), total, out=np.full(len(total), np.nan), where=total > 0)


def blanked(x: Tensor, attention: np.ndarray, share: float = 0.2) -> Tensor:
    """The images with the top share of their maps replaced by the image's mean colour."""
    flat = torch.from_numpy(np.ascontiguousarray(attention)).flatten(1)
    top = flat.topk(round(share * flat.shape[1]), dim=1).indices
    hidden = torch.zeros_like(flat, dtype=torch.bool).scatter(1, top, True).view(len(x), 1, *x.shape[2:])
    return torch.where(hidden, x.mean((2, 3), keepdim=True), x)


@torch.inference_mode()
def deletion(method: Method, x: Tensor, y: Tensor, attention: np.ndarray, seed: int = 0) -> pd.DataFrame:
    """How far the probability of the true class drops if the top 20 % of a map is blanked, and a random 20 %.

    The random region has the map's shape: it is the map shifted at random, so that both remove connected parts."""
    rng = np.random.default_rng(seed)
    noise = 1e-6 * rng.random(attention.shape)  # breaks the ties of a blank map at random
    shifts = rng.integers(0, attention.shape[1:], (len(attention), 2))
    shifted = np.stack([np.roll(one, shift, (0, 1)) for one, shift in zip(attention + noise, shifts, strict=True)])
    views = x, blanked(x, attention + noise), blanked(x, shifted)
    before, top, random = (_probability(method, images, y) for images in views)
    return pd.DataFrame({"top": before - top, "random": before - random, "deletion": random - top})


def summary(images: pd.DataFrame, values: list[str]) -> pd.DataFrame:
    """For each row, target and seed: the mean of each value over the images, its 95 % interval, and their number."""
    groups = images.groupby(["row", "target", "seed"], sort=False)
    out = groups.size().rename("images").to_frame()
    for value in values:
        mean, half = groups[value].mean(), half_width(groups[value].std(), groups[value].count().clip(lower=1))
        out = out.assign(**{value: mean, f"{value}_low": mean - half, f"{value}_high": mean + half})
    return out.reset_index()


def _probability(method, x, y):
    """Of the true class, (n,)."""
    logits = torch.cat([method.predict(some) for some in x.split(BATCH)])
    return logits.softmax(1).gather(1, y[:, None]).squeeze(1).numpy()
