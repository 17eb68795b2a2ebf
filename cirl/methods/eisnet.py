"""EISNet: Learning from Extrinsic and Intrinsic Supervisions for Domain Generalization (Wang et al., ECCV 2020).

L = l(h1(g(x_p)), y) + jigsaw l(h_jig(g(x_p)), p) + triplet L_tri,
where x_p is x with its 3 x 3 tiles in order p (as for JiGen; p = 0, the whole image, has probability `whole`).
L_tri compares embeddings q = f(g(x_p)) of length 1 with embeddings k = f_m(g_m(x)) of the whole images, where f_m, g_m
are the averages of f, g over the steps. The last `bank` of the k, those of the batch among them, make up the memory.
It is the mean over triplets of [|q_i - k_j|^2 - |q_i - k_n|^2 + margin]_+: (i, j), i < j, are images of the batch of
one class, n are up to K entries of the memory, drawn at random from those of other classes that are hard for the pair,
0 < |q_i - k_j|^2 - |q_i - k_n|^2 + margin < margin.
No gradient passes through k. The average is m <- momentum m + (1 - momentum) parameters, after each step.

From the authors' code and script: jigsaw = 0.7, triplet = 0.5, margin = 2, K = 256, bank = 1024, momentum = 0.999,
whole = 0.9, 30 permutations, 128 dimensions of a linear f, averages in evaluation mode, shuffled images classified too.
Different here: the n are drawn without replacement; the first weights of the average are 1 - 1 / (t + 1) in step t
until `momentum` is reached, as in FACT, since short runs from scratch would otherwise compare with random features; the
running statistics of batch norm are those of g (there: of the pre-training). No tile turns grey. As for JiGen, the
orders are not those of the authors' file. No term is ramped: these values train from scratch as they are.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from cirl.methods.base import Method, detached
from cirl.methods.jigen import GRID, permutations, shuffle
from cirl.run.config import Run

DIMENSIONS = 128  # of the embeddings


class EISNet(Method):
    """Classification, jigsaw puzzles, and triplets whose negatives come from a memory of averaged embeddings."""

    orders: Tensor  # (orders, tiles)
    steps: Tensor
    memory: Tensor  # (bank, DIMENSIONS)
    labels: Tensor  # (bank,)

    def __init__(self, run: Run, classes: int):
        super().__init__(run, classes)
        orders = permutations(int(self.values["permutations"]))
        self.register_buffer("orders", torch.cat([torch.arange(GRID**2)[None], orders]), persistent=False)
        self.jigsaw = nn.Linear(run.dim, len(self.orders))
        self.embedding = nn.Linear(run.dim, DIMENSIONS)
        self.optimizers = self.make_optimizers(self.jigsaw, self.embedding)
        self.average = copy.deepcopy(nn.Sequential(self.encoder, self.embedding)).requires_grad_(False)
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("memory", torch.zeros(int(self.values["bank"]), DIMENSIONS))
        self.register_buffer("labels", torch.full((len(self.memory),), -1))  # -1: still empty

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, Tensor]:
        p = self.draw_orders(len(x), x.device)
        r = self.features(shuffle(x, self.orders[p]))
        q, k = normalize(self.embedding(r), dim=1), self.averaged(x)
        self.remember(k, y)
        L_cls, L_jig = cross_entropy(self.h1(r), y), cross_entropy(self.jigsaw(r), p)
        L_tri = self.triplet(q, k, y)
        loss = L_cls + self.values["jigsaw"] * L_jig + self.values["triplet"] * L_tri
        self.step(self.optimizers[0], loss, epoch)
        self.follow()
        return detached(loss=loss, L_cls=L_cls, L_jig=L_jig, L_tri=L_tri)

    def draw_orders(self, count: int, device: torch.device) -> Tensor:
        shuffled = torch.rand(count, device=device) >= self.values["whole"]
        return torch.where(shuffled, torch.randint(1, len(self.orders), (count,), device=device), 0)

    @torch.no_grad()
    def averaged(self, x: Tensor) -> Tensor:
        """k: embeddings of the averaged network, in evaluation mode."""
        return normalize(self.average.eval()(x), dim=1)

    def remember(self, k: Tensor, y: Tensor) -> None:
        """Add the newest embeddings and drop the oldest."""
        self.memory = torch.cat([self.memory, k])[-len(self.memory) :]
        self.labels = torch.cat([self.labels, y])[-len(self.labels) :]

    def triplet(self, q: Tensor, k: Tensor, y: Tensor) -> Tensor:
        """L_tri: mean over all pairs and their hard negatives; 0 if there are none."""
        i, j = (y[:, None] == y[None]).triu(1).nonzero().T
        near, far = (q[i] - k[j]).square().sum(1, keepdim=True), 2 - 2 * q @ self.memory.T  # (pairs, 1), (B, bank)
        losses = near - far[i] + self.values["margin"]  # (pairs, bank)
        negative = (self.labels != y[i, None]) & (self.labels >= 0)
        hard = negative & (losses > 0) & (losses < self.values["margin"])
        chosen = losses[some_of(hard, int(self.values["K"]))]
        return chosen.mean() if len(chosen) else q.sum() * 0

    @torch.no_grad()
    def follow(self) -> None:
        """Move the averages towards the parameters; copy the running statistics."""
        self.steps += 1
        momentum = (1 - 1 / (self.steps.double() + 1)).clamp(max=self.values["momentum"])
        current = nn.Sequential(self.encoder, self.embedding)
        for mean, value in zip(self.average.parameters(), current.parameters(), strict=True):
            mean.lerp_(value, (1 - momentum).float())
        for mean, value in zip(self.average.buffers(), current.buffers(), strict=True):  # type: ignore[assignment]
            mean.copy_(value)


def some_of(mask: Tensor, count: int) -> Tensor:
    """The mask with at most `count` entries of each row kept, drawn at random."""
    scores = torch.where(mask, torch.rand(mask.shape, device=mask.device), float("-inf"))
    kept = torch.zeros_like(mask).scatter(1, scores.topk(min(count, mask.shape[1]), 1).indices, True)
    return mask & kept
