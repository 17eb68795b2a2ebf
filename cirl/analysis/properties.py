r"""The three properties of Figure 2, measured where both factors are known: the true intervention do(U) on `tiny`.

code    meaning
R       representations of the same shapes under every domain's style, (shapes, domains, N)
r, y    representations, (n, N), and what is predicted from them, (n,)
W       weights of the classifier h1, (classes, N)

A dimension that does not change ("dead") has no correlation: it is left out, or its value is NaN.
"""

from itertools import permutations

import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from cirl import fourier, losses
from cirl.data import tiny
from cirl.methods.base import Method

MEASURES = ("do_U", "unseen", "mix", "live", "domain", "digit", "inferior half", "one dimension", "linear", "distance")
DEAD = losses.EPSILON**0.5  # standard deviation under which the epsilon of Eq. 15 outweighs a dimension's variance


def restyled(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """do(U): every validation shape of `tiny` under a style of every domain, (shapes, domains, H, W, 3), and digits."""
    table, rng = tiny.table(), np.random.default_rng(seed)
    shapes = list(dict.fromkeys(table[table["split"] == "val"]["shape"]))
    images = [[tiny.render(shape, tiny.sample_style(domain, rng)) for domain in tiny.DOMAINS] for shape in shapes]
    return np.array(images), np.array([shape.digit for shape in shapes])


@torch.inference_mode()
def features(method: Method, images: np.ndarray) -> np.ndarray:
    """r of images (n, H, W, 3) uint8, as float64."""
    x = torch.from_numpy(images).permute(0, 3, 1, 2)
    return torch.cat([method.features(part.float() / 255) for part in x.split(128)]).double().numpy()


def measure(method: Method, images: np.ndarray, digits: np.ndarray, target: int) -> tuple[dict, pd.DataFrame]:
    """All measures of a trained method on `restyled` images, and the two invariances dimension by dimension."""
    shapes, domains = images.shape[:2]
    shape, domain = np.divmod(np.arange(shapes * domains), domains)
    digit, sources = digits[shape], [i for i in range(domains) if i != target]
    seen = images[:, sources].reshape(-1, *images.shape[2:])
    r = features(method, images.reshape(-1, *images.shape[2:]))
    R, half = r.reshape(shapes, domains, -1), inferior_half(r, method.h1.weight.detach().numpy())
    each = pd.DataFrame({"do_U": invariance(R[:, sources]), "unseen": invariance(R, into=target)})
    each["mix"] = correlations(features(method, seen), features(method, amplitude_mixed(seen)))
    return each.mean().to_dict() | {
        "live": len(live(r)),
        "domain": probe(r, domain, shape),
        "digit": probe(r, digit, shape),
        "inferior half": probe(r[:, half], digit, shape),
        "one dimension": pd.Series(single_dimensions(r, digit, shape)).mean(),
        "linear": linear_dependence(r),
        "distance": distance_dependence(r),
        "ranks": each["mix"].corr(each["do_U"], method="spearman"),
    }, each


def invariance(R: np.ndarray, into: int | None = None) -> np.ndarray:
    """Correlation of each dimension before and after do(U), over the ordered pairs of styles, (N,).

    `into` keeps the pairs that end in one style. The measure is 1 if the style changes nothing, 0 for noise, and
    -1 / (domains - 1) for the domain alone."""
    pairs = [pair for pair in permutations(range(R.shape[1]), 2) if into in (None, pair[1])]
    before, after = (np.concatenate([R[:, pair[side]] for pair in pairs]) for side in (0, 1))
    return correlations(before, after)


def correlations(r_o: np.ndarray, r_a: np.ndarray) -> np.ndarray:
    """Correlation of each dimension of r_o with the same of r_a, (N,); NaN for dead ones."""
    z_o, z_a = (r - r.mean(0) for r in (r_o, r_a))
    norms = np.sqrt((z_o**2).mean(0) * (z_a**2).mean(0))
    return np.divide((z_o * z_a).mean(0), norms, out=np.full(norms.shape, np.nan), where=norms > DEAD**2)


def amplitude_mixed(images: np.ndarray, seed: int = 0) -> np.ndarray:
    """The stand-in for do(U): images (n, H, W, 3) uint8 with the amplitude of others mixed in, lambda ~ U(0, 1)."""
    x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        mixed = fourier.intervene_among(x, torch.randperm(len(x)), fourier.sample_lam(len(x), 1.0))
    return (255 * mixed).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()


def probe(r: np.ndarray, y: np.ndarray, groups: np.ndarray, folds: int = 3) -> float:
    """Accuracy (%) of a linear classifier that predicts y from r, on groups (shapes) it has not seen."""
    reader = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=300))
    return 100 * cross_val_score(reader, r, y, groups=groups, cv=GroupKFold(folds)).mean()


def single_dimensions(r: np.ndarray, y: np.ndarray, groups: np.ndarray, folds: int = 3) -> np.ndarray:
    """Accuracy (%) of predicting y from each dimension alone (a tree with one leaf per class)."""
    reader = DecisionTreeClassifier(max_leaf_nodes=len(np.unique(y)), random_state=0)
    right = np.zeros(r.shape)
    for seen, asked in GroupKFold(folds).split(r, y, groups):
        for i in live(r):
            right[asked, i] = reader.fit(r[seen][:, [i]], y[seen]).predict(r[asked][:, [i]]) == y[asked]
    return 100 * right[:, live(r)].mean(0)


def strength(r: np.ndarray, W: np.ndarray) -> np.ndarray:
    """How much of the logits goes through each dimension: the norm of its weights times its deviation, (N,)."""
    return np.linalg.norm(W, axis=0) * r.std(0)


def inferior_half(r: np.ndarray, W: np.ndarray) -> np.ndarray:
    """The half of the dimensions with the least strength."""
    return np.sort(np.argsort(strength(r, W), kind="stable")[: r.shape[1] // 2])


def live(r: np.ndarray) -> np.ndarray:
    """The dimensions that change."""
    return np.flatnonzero(r.std(0) > DEAD)


def linear_dependence(r: np.ndarray) -> float:
    """Mean |correlation| of two different live dimensions."""
    return float("nan") if len(live(r)) < 2 else _mean_off_diagonal(np.abs(np.corrcoef(r[:, live(r)].T)))


def distance_dependence(r: np.ndarray, sample: int = 300, seed: int = 0) -> float:
    """Mean squared distance correlation of two different live dimensions, on a sample of images.

    It detects any dependence, linear or not; unbiased (Szekely and Rizzo 2014): independence gives 0 on average."""
    rows = np.random.default_rng(seed).permutation(len(r))[:sample]
    r = r[rows]
    if len(live(r)) < 2:
        return float("nan")
    centred = np.array([_u_centred(np.abs(column[:, None] - column)).ravel() for column in r[:, live(r)].T])
    covariance = centred @ centred.T
    # without dimensions in which a single image stands out
    kept = np.flatnonzero(covariance.diagonal() > 1e-12 * covariance.diagonal().max())
    scale = np.sqrt(covariance.diagonal()[kept])
    return _mean_off_diagonal(covariance[np.ix_(kept, kept)] / np.outer(scale, scale))


def _u_centred(distances):
    n = len(distances)
    rows, total = distances.sum(1) / (n - 2), distances.sum() / ((n - 1) * (n - 2))
    centred = distances - rows[:, None] - rows + total
    np.fill_diagonal(centred, 0)
    return centred


def _mean_off_diagonal(matrix):
    n = len(matrix)
    return float((matrix.sum() - np.trace(matrix)) / (n * (n - 1)))
