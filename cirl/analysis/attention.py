"""Two measures of attention maps (`Trained.attention`): how much lies on the object, and how much it matters."""

from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cirl.data import tiny
from cirl.methods.base import Method
from cirl.show.tables import half_width

BATCH = 128


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
