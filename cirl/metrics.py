r"""Accuracy and the two measures of Sec. 4.4.

code     paper
C        correlation matrix of Eq. 9, (N, N)
W        weights of the classifier h1, (classes, N)
"""

import torch
from torch import Tensor

from cirl import fourier, losses

READINGS = ("class", "dimension", "matrix", "magnitude")


def accuracy(logits: Tensor, y: Tensor) -> float:
    """Share of the images whose largest logit is their label's, in per cent."""
    return 100 * (logits.argmax(1) == y).float().mean().item()


def independence_degree(C: Tensor) -> float:
    """||C||_F^2 - ||diag C||_2^2, the sum of squared correlations of different dimensions; smaller is better."""
    return (C.square().sum() - C.diagonal().square().sum()).item()


def independence_floor(N: int, B: int) -> float:
    """The degree that independent dimensions show on average in a sample of B images."""
    return N * (N - 1) / (B - 1)


def representation_importance(W: Tensor, reading: str = "class") -> Tensor:
    """Importance of each dimension, (N,): min-max scaled weights, summed over classes.

    The paper does not say over what the minimum and maximum are taken. `class`: over the dimensions, for each class
    (the reading whose spread agrees with Table 6). `dimension`: over the classes, for each dimension. `matrix`:
    over all weights. `magnitude`: of |W|, over the dimensions, for each class."""
    if reading not in READINGS:
        raise ValueError(f"reading={reading!r}; allowed: {', '.join(READINGS)}")
    W = W.abs() if reading == "magnitude" else W
    over = {"class": (1,), "magnitude": (1,), "dimension": (0,), "matrix": (0, 1)}[reading]
    low, high = W.amin(over, keepdim=True), W.amax(over, keepdim=True)
    return ((W - low) / (high - low)).sum(0)


@torch.inference_mode()
def evaluate(method, data) -> dict[str, float]:
    """One row of a run's history: accuracies, and how invariant and independent the dimensions are.

    C is computed on the whole source-validation set in evaluation mode, with the same interventions in every epoch."""
    method.eval()
    logits, labels, r_o, r_a = [], [], [], []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for x, y, d in data.evaluation("source_val"):
            lam = fourier.sample_lam(len(x), method.run.eta, x.device)
            x_a = fourier.intervene_among(x, fourier.partners(d, method.run.sampling), lam)
            r_o.append(method.features(x))
            r_a.append(method.features(x_a))
            logits.append(method.classify(r_o[-1]))
            labels.append(y)
    C = losses.correlation_matrix(torch.cat(r_o), torch.cat(r_a))
    seen = [(method.predict(x), y) for x, y, _ in data.evaluation("target")]
    method.train()
    return {
        "source_val": accuracy(torch.cat(logits), torch.cat(labels)),
        "target": accuracy(*map(torch.cat, zip(*seen, strict=True))),
        "invariance": losses.invariance(C).item(),
        "independence": independence_degree(C),
        "floor": independence_floor(len(C), len(torch.cat(labels))),
        "spread": torch.cat(r_o).std(0).mean().item(),
    }
