r"""What the paper's claims rest on: the measures of the audits, one short function each.

code        meaning
r, y        representations, (n, N), and labels, (n,)
r_o, r_a    representations of images, and of the same images with other amplitudes (Eqs. 4-6)
W, b        weights and bias of the classifier h1, (classes, N) and (classes,)

The measures of the true intervention, which is possible on `tiny` alone, are in `properties`.
"""

from collections.abc import Iterable
from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr
from torch import Tensor

from cirl import fourier, losses, metrics, paths
from cirl.analysis.attention import weights_digest
from cirl.analysis.properties import live
from cirl.data.batches import Loaders, loaders
from cirl.data.benchmarks import DATASETS
from cirl.methods.base import Method
from cirl.run.checkpoint import load_model
from cirl.run.config import Run
from cirl.run.files import write
from cirl.run.folder import has_weights
from cirl.study import records


def with_weights(rows: dict[str, list[Run]]) -> tuple[pd.DataFrame, list[tuple[str, Run]]]:
    """The records of an item's runs that have weights, and these runs with their rows; the others count as missing."""
    ready = [(row, run) for row, run in records.pairs(rows) if has_weights(run)]
    return records.load_some(rows, ready), ready


@torch.inference_mode()
def views(method: Method, data: Loaders, part: str = "source_val") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """r_o, r_a and labels of source validation (or the target), with the interventions of `metrics.evaluate`."""
    r_o: list[Tensor] = []
    r_a: list[Tensor] = []
    y: list[Tensor] = []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for x, labels, d in data.evaluation(part):
            lam = fourier.sample_lam(len(x), method.run.eta, x.device)
            x_a = fourier.intervene_among(x, fourier.partners(d, method.run.sampling), lam)
            for kept, new in ((r_o, method.features(x)), (r_a, method.features(x_a)), (y, labels)):
                kept.append(new)
    return torch.cat(r_o).double().numpy(), torch.cat(r_a).double().numpy(), torch.cat(y).numpy()


# recipes


def inside(rows: dict[str, list[Run]], rule: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The records of an item's runs, and a row per run: accuracy, diagonal and off-diagonal of C, the number of live
    dimensions and how well the mask follows the masker's logits (NaN if `measured_inside` lacks the run)."""
    found = records.load_runs(rows, rule)
    kept = ["row", "seed", "recipe", "accuracy", "source_val", "invariance", "independence"]
    numbers = found.reindex(columns=kept).rename(columns={"invariance": "diagonal"})
    sizes = found["dim"].astype(float)
    numbers["off-diagonal"] = np.sqrt(numbers["independence"].astype(float) / (sizes * (sizes - 1)))
    pairs = records.pairs(rows)
    measured = measured_inside([run for _, run in pairs])
    seen = {(row, run.seed): measured.loc[run.id, ["live", "mask"]] for row, run in pairs if run.id in measured.index}
    values = [seen.get(key, (np.nan, np.nan)) for key in zip(numbers["row"], numbers["seed"], strict=True)]
    numbers[["live", "mask"]] = np.array(values, dtype=float).reshape(-1, 2)
    return found, numbers


def measured_inside(runs: list[Run]) -> pd.DataFrame:
    """`live` and `mask` of the runs, by id: as kept in data/inside.csv for their weights, otherwise from these.

    Weights are not committed; what was measured from them is kept with their digest."""
    digests = {run.id: weights_digest(run) for run in runs}
    kept = _kept_inside()
    known = kept[kept["model_sha256"] == kept["id"].map(digests)]
    new = [_measure(run, digests[run.id]) for run in runs if run.id not in {*known["id"]} and has_weights(run)]
    if new:
        table = pd.DataFrame(new)
        with records.collecting():
            kept = _kept_inside()
            kept = pd.concat([kept[~kept["id"].isin(table["id"])], table]).sort_values("id")
            write(paths.DATA / "inside.csv", kept.to_csv(index=False, float_format="%.6g"))
        known = pd.concat([known, table])
    return known.set_index("id")


def _kept_inside():
    return records.read_collected("inside.csv").reindex(columns=["id", "model_sha256", "live", "mask"])


def _measure(run, weights):
    data = loaders(run)
    method = load_model(run, len(data.classes))
    r_o = views(method, data)[0]
    return {"id": run.id, "model_sha256": weights, "live": len(live(r_o)), "mask": mask_follows_logits(method, r_o)}


def chance(run: Run) -> float:
    """The accuracy of guessing, in per cent; a benchmark need not be here."""
    return 100 / (DATASETS[run.dataset].classes if run.dataset in DATASETS else len(loaders(run).classes))


@torch.inference_mode()
def mask_follows_logits(method: Method, r: np.ndarray, masks: int = 20, images: int = 100) -> float:
    """Rank correlation over dimensions of the masker's logits and the mean of several masks, averaged over images."""
    masker: Any = method.masker
    some = torch.from_numpy(r[:images]).float()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        mask = torch.stack([masker(some) for _ in range(masks)]).mean(0)
    pairs = zip(masker.log_z(some).numpy(), mask.numpy(), strict=True)
    return float(pd.Series([rank_correlation(*pair) for pair in pairs]).mean())


def best_diagonal(N: int, B: int, weight: float) -> float:
    """The mean diagonal of the C that minimises sum (C_ii - 1)^2 + weight sum C_ij^2 over a batch of B.

    C has rank m = min(B - 1, N), so ||C||^2 >= (tr C)^2 / m, and for weight <= 1 the sum is at least
    (1 - weight) t^2 / N - 2 t + N + weight t^2 / m with t = tr C: least at t / N = 1 / (1 + weight (N - m) / m)."""
    m = min(B - 1, N)
    return 1 / (1 + weight * (N - m) / m)


def off_diagonal_weight(loss: str, N: int) -> float:
    """The weight of an off-diagonal element of C relative to a diagonal one in a form of L_Fac."""
    return {"frobenius": 1.0, "barlow": 0.005, "released": 0.005 / (N - 1)}[loss]


def found_diagonal(N: int, B: int, loss: str, steps: int = 1000, seed: int = 0) -> float:
    """The mean diagonal that gradient descent on free representations reaches, with the losses of `cirl.losses`."""
    generator = torch.Generator().manual_seed(seed)
    r_o = torch.randn(B, N, generator=generator)
    r_a = r_o + 0.5 * torch.randn(B, N, generator=generator)
    optimizer = torch.optim.Adam([r_o.requires_grad_(), r_a.requires_grad_()], 0.03)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        losses.FACTORIZATION[loss](losses.correlation_matrix(r_o, r_a)).backward()
        optimizer.step()
        schedule.step()
    return losses.invariance(losses.correlation_matrix(r_o, r_a)).item()


def optima(N: int, sizes: Iterable[int], forms: Iterable[str], steps: int = 500) -> pd.DataFrame:
    """The best mean diagonal for batches of several sizes under forms of L_Fac, by the rank argument and as found."""
    cells = list(product(forms, sizes))
    theory = [best_diagonal(N, B, off_diagonal_weight(form, N)) for form, B in cells]
    found = [found_diagonal(N, B, form, steps) for form, B in cells]
    return pd.DataFrame(cells, columns=["loss", "B"]).assign(theory=theory, found=found)


# selection


def changed_pairs(one: pd.Series, other: pd.Series) -> int:
    """How many pairs of methods are ordered differently in the other column."""
    pairs = combinations(range(len(one)), 2)
    one, other = one.to_numpy(), other.to_numpy()
    return sum((one[i] - one[j]) * (other[i] - other[j]) < 0 for i, j in pairs)


# importance


def zeroing_cost(r: np.ndarray, y: np.ndarray, W: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Accuracy (in points) that h1 loses when a dimension is set to zero, one dimension at a time, (N,)."""
    logits = r @ W.T + b
    whole = (logits.argmax(1) == y).mean()
    without = [((logits - r[:, [i]] * W[:, i]).argmax(1) == y).mean() for i in range(r.shape[1])]
    return 100 * (whole - np.array(without))


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's rank correlation; NaN if either is constant."""
    return float("nan") if np.ptp(one) == 0 or np.ptp(other) == 0 else float(spearmanr(one, other).statistic)


# independence


def squared_correlation(observed: np.ndarray, B: int, terms: int = 40) -> np.ndarray:
    """Olkin and Pratt's unbiased estimate (1958) from the squared correlations of B normal samples; may be below 0.

    1 - (B - 3) / (B - 2) x F(1, 1; B / 2; x) with x = 1 - observed; scipy's F is slow here and sometimes NaN."""
    x = 1 - observed.clip(0, 1)
    term, F = np.ones_like(x), np.ones_like(x)
    for k in range(terms):
        term = term * x * (k + 1) / (B / 2 + k)
        F += term
    return 1 - (B - 3) / (B - 2) * x * F


def degrees(r_o: np.ndarray, r_a: np.ndarray) -> dict[str, float]:
    """The independence degree of a sample, its floor, and debiased, of the dimensions that are live in the sample.

    A squared correlation of B images is too large on average, by 1 / (B - 1) for independent dimensions."""
    kept = np.intersect1d(live(r_o), live(r_a))
    if len(kept) < 2:
        return {"live": len(kept), "degree": 0.0, "floor": 0.0, "debiased": float("nan")}
    C = losses.correlation_matrix(torch.from_numpy(r_o[:, kept]), torch.from_numpy(r_a[:, kept]))
    B, N = len(r_o), len(kept)
    squares = squared_correlation(C.numpy() ** 2, B)
    debiased = float(squares.sum() - np.trace(squares))
    degree, floor = metrics.independence_degree(C), metrics.independence_floor(N, B)
    return {"live": N, "degree": degree, "floor": floor, "debiased": debiased}


def degrees_by_size(r_o: np.ndarray, r_a: np.ndarray, sizes: list[int], draws: int = 10, seed: int = 0) -> pd.DataFrame:
    """`degrees` of random samples of each size, one row per sample; a sample of everything is taken once."""
    rng, lines = np.random.default_rng(seed), []
    for size in sizes:
        for _ in range(draws if size < len(r_o) else 1):
            rows = rng.permutation(len(r_o))[:size]
            lines.append({"B": size, **degrees(r_o[rows], r_a[rows])})
    return pd.DataFrame(lines)
