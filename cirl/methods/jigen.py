"""JiGen: Domain Generalization by Solving Jigsaw Puzzles (Carlucci et al., CVPR 2019).

L = mean over whole images l(h1(g(x)), y) + weight * mean over all images l(h_jig(g(x_p)), p),
where x_p is x with its 3 x 3 tiles in order p of P + 1. p = 0, the whole image, has probability `whole`; the P other
orders are equally likely.

Only whole images are classified. The authors' code does so with its flag classify_only_sane; as its README runs it, it
classifies shuffled images too. There the whole image has probability whole + (1 - whole) / (P + 1), and a tile turns
grey with probability 0.1. The permutations there come from a file; here they are chosen greedily, far apart in Hamming
distance. Pixels at the edges that do not fit into three tiles stay in place.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cirl.methods.base import Method, detached
from cirl.run.config import Run

GRID = 3


class JiGen(Method):
    """A second head predicts which permutation was applied to the tiles of an image."""

    orders: Tensor  # (orders, tiles)

    def __init__(self, run: Run, classes: int):
        super().__init__(run, classes)
        orders = permutations(int(run.values["permutations"]))
        self.register_buffer("orders", torch.cat([torch.arange(GRID**2)[None], orders]), persistent=False)
        self.jigsaw = nn.Linear(run.dim, len(self.orders))
        self.optimizers = self.make_optimizers(self.jigsaw)

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, Tensor]:
        shuffled = torch.rand(len(x), device=x.device) >= self.values["whole"]
        p = torch.where(shuffled, torch.randint(1, len(self.orders), (len(x),), device=x.device), 0)
        r = self.features(shuffle(x, self.orders[p]))
        L_cls = cross_entropy(self.h1(r[p == 0]), y[p == 0]) if (p == 0).any() else r.sum() * 0
        L_jig = cross_entropy(self.jigsaw(r), p)
        loss = L_cls + self.values["weight"] * L_jig
        self.step(self.optimizers[0], loss, epoch)
        return detached(loss=loss, L_cls=L_cls, L_jig=L_jig)


def permutations(count: int) -> Tensor:
    """Distinct orders of nine tiles, far apart: repeatedly the random candidate that differs most from those chosen."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.arange(GRID**2)[None]
    while len(chosen) <= count:
        candidates = torch.stack([torch.randperm(GRID**2, generator=generator) for _ in range(200)])
        nearest = (candidates[:, None] != chosen[None]).sum(2).amin(1)  # Hamming distance to those chosen so far
        chosen = torch.cat([chosen, candidates[nearest.argmax()][None]])
    return chosen[1:]


def shuffle(x: Tensor, orders: Tensor) -> Tensor:
    """Tile i of each image becomes its tile orders[i]; pixels beyond the grid stay in place."""
    B, C, H, W = x.shape
    h, w = H // GRID, W // GRID
    tiles = x[..., : GRID * h, : GRID * w].reshape(B, C, GRID, h, GRID, w).permute(0, 2, 4, 1, 3, 5)
    tiles = tiles.reshape(B, GRID**2, C, h, w)[torch.arange(B, device=x.device)[:, None], orders]
    tiles = tiles.reshape(B, GRID, GRID, C, h, w).permute(0, 3, 1, 4, 2, 5).reshape(B, C, GRID * h, GRID * w)
    x = x.clone()
    x[..., : GRID * h, : GRID * w] = tiles
    return x
