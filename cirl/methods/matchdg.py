"""MatchDG: Domain Generalization using Causal Matching (Mahajan et al., ICML 2021).

Phase 1 trains a separate network phi, the matcher, on images a and their matches m (same class, other domain):
  L = w(t) mean over both of a, m of -log [e^{s(a, m) / 0.05} / (e^{s(a, m) / 0.05} + sum over n of e^{s(a, n) / 0.05})]
with s the cosine similarity of phi and n the images of other classes. Matches are random at first and inferred again
every five epochs (of 50): the nearest neighbour by s in each other source domain.
Phase 2 trains encoder and classifier with the matches of the end of phase 1:
  L = l(x, y) + l(a and m, y) + lambda w(t) mean |logits(a) - logits(m)|^2
w(t) = (t + 1) / (T + 1) in epoch t of the phase's T, as in the authors' code, which also has phi at a constant learning
rate of 0.01. Differences: in their code the matcher is always a ResNet-50 and trains for 50 epochs, of which the best
is kept (here: the run's backbone, half of the run's epochs, the last of them); a match is a tuple of one image of each
domain around an image of the domain with most images of the class (here: pairs, around any image, half as many as the
batch has images); neighbours are nearest by Euclidean distance.
"""

from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from cirl.data.batches import Loaders
from cirl.methods.base import TwoPhases, detached
from cirl.run.config import Run


class MatchDG(TwoPhases):
    """Two phases: the first takes half as many epochs as the run has and comes before them."""

    data: Loaders
    matches: Tensor  # (training images, domains): the row of each one's match

    def __init__(self, run: Run, classes: int):
        super().__init__(run, classes)
        self.matcher = self.network()
        self.optimizers = [*self.make_optimizers(), self.sgd((self.matcher, self.values["matcher_lr"] / run.lr, False))]
        self.matches, self.data = None, None  # type: ignore[assignment]  # until the first epoch

    def begin_epoch(self, data: Loaders, epoch: int) -> None:
        """Infer the matches when due: at random at first, for the last time at the end of phase 1."""
        self.data, every = data, max(1, round(self.epochs_of(self.values["every"])))
        if epoch == 0:
            self.matches = self.infer(None)
        elif epoch <= self.first_phase and (epoch % every == 0 or epoch == self.first_phase):
            self.matches = self.infer(self.represent_all())

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, Tensor]:
        a, m, labels = self.pairs(max(2, len(x) // 2)) if self.data else random_pairs(x, y, d)
        if epoch < self.first_phase:
            phi = normalize(self.matcher(torch.cat([a, m])), dim=1)
            L_match = contrastive(phi, labels.repeat(2), self.values["temperature"])
            loss = grown(epoch, self.first_phase) * L_match
            self.step(self.optimizers[1], loss, epoch)
            return detached(loss=loss, L_match=L_match)
        t = epoch - self.first_phase
        logits, matched = self.predict(torch.cat([x, a, m])).split([len(x), 2 * len(a)])
        L_cls, L_matched = cross_entropy(logits, y), cross_entropy(matched, labels.repeat(2))
        L_match = (matched[: len(a)] - matched[len(a) :]).square().sum(1).mean()
        loss = L_cls + L_matched + self.values["weight"] * grown(t, self.run.epochs) * L_match
        self.step(self.optimizers[0], loss, t)
        return detached(loss=loss, L_cls=L_cls, L_matched=L_matched, L_match=L_match)

    def pairs(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Images drawn at random, the match of each in another domain, and their labels."""
        rows = torch.from_numpy(self.data.parts["train"])
        anchors = torch.randint(len(rows), (count,))
        candidates = self.matches[anchors]
        other = (candidates >= 0) & (candidates != rows[anchors, None])
        matches = candidates.gather(1, torch.multinomial(other.float(), 1)).squeeze(1)
        both = torch.cat([rows[anchors], matches]).numpy()
        x, y, _ = self.data.batch(both, int(torch.randint(2**62, ())))
        return *x.chunk(2), y[:count]  # type: ignore[return-value]  # two chunks

    @torch.inference_mode()
    def represent_all(self) -> Tensor:
        """phi of every training image, not augmented."""
        images = torch.from_numpy(self.data.table.images[self.data.parts["train"]]).permute(0, 3, 1, 2)
        self.matcher.eval()
        chunks = images.split(256)  # mutant: any size gives the same
        parts = [self.matcher(part.to(self.data.device).float() / 255).cpu() for part in chunks]
        self.matcher.train()
        return normalize(torch.cat(parts), dim=1)

    def infer(self, phi: Tensor | None) -> Tensor:
        """For each training image and each source domain the row of its match; -1 for domains that are not sources."""
        table, rows = self.data.table, torch.from_numpy(self.data.parts["train"])
        y, d = torch.from_numpy(table.labels[rows]), torch.from_numpy(table.domains[rows])
        matches = torch.full((len(rows), int(d.max()) + 1), -1)
        for label, domain in product(y.unique(), d.unique()):
            own, there = torch.nonzero(y == label)[:, 0], torch.nonzero((y == label) & (d == domain))[:, 0]
            scores = torch.rand(len(own), len(there)) if phi is None else phi[own] @ phi[there].T
            matches[own, domain] = rows[there[scores.argmax(1)]]
        matches[torch.arange(len(rows)), d] = rows  # in its own domain, each image is its own match
        return matches

    def get_extra_state(self) -> Tensor:
        return torch.empty(0, dtype=torch.long) if self.matches is None else self.matches

    def set_extra_state(self, state: Tensor) -> None:
        self.matches = state if state.numel() else None  # type: ignore[assignment]


def grown(epoch: float, epochs: int) -> float:
    """Linear in the epoch, from 1 / (epochs + 1)."""
    return (int(epoch) + 1) / (epochs + 1)


def random_pairs(x: Tensor, y: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Without the data set: each image with one of its class in another domain, or with itself if there is none."""
    fits = (y[:, None] == y[None]) & (d[:, None] != d[None])
    chosen = torch.multinomial(fits + 1e-12 * torch.eye(len(x), device=x.device), 1).squeeze(1)
    return x, x[chosen], y


def contrastive(phi: Tensor, y: Tensor, temperature: float) -> Tensor:
    """NT-Xent of phi, (2B, N) of length one, whose halves are each other's matches; other classes are the negatives."""
    similarity = phi @ phi.T / temperature
    positive = torch.cat([similarity.diagonal(len(phi) // 2)] * 2)
    negatives = similarity.masked_fill(y[:, None] == y[None], float("-inf")).logsumexp(1)
    return (torch.logaddexp(positive, negatives) - positive).mean()
