"""What the methods share: encoder, classifier h1, optimizer, schedule, state, domain-wise batches, ramp-up."""

import math
from collections.abc import Callable, Sequence
from itertools import combinations

import torch
from torch import Tensor, nn

from cirl import fourier
from cirl.data.batches import Loaders
from cirl.model import Network
from cirl.run.config import Run


class Method(nn.Module):
    """One encoder g, one classifier h1, stochastic gradient descent. A method adds its `update`."""

    def __init__(self, run: Run, classes: int):
        super().__init__()
        torch.manual_seed(run.seed)
        self.run, self.recipe, self.values = run, run.choices, run.values
        self.encoder = self.network()
        self.h1 = nn.Linear(run.dim, classes)
        self.optimizers = self.make_optimizers()
        # weights of the epoch with the best source validation so far; see run/checkpoint.py
        self.best: dict[str, Tensor] = None  # type: ignore[assignment]  # until the first checkpoint

    def network(self) -> Network:
        """A new network of the run's kind."""
        run = self.run
        network = Network(run.backbone, run.dim, run.weights, run.precision)
        if run.compile:
            network.compile()
        return network

    def make_optimizers(self, *heads: nn.Module) -> list[torch.optim.Optimizer]:
        """One for the encoder, h1 and the heads that a method adds."""
        return [self.sgd((self.encoder, 1.0, True), *((head, self.recipe.head_lr, True) for head in (self.h1, *heads)))]

    @property
    def epochs(self) -> int:
        """Number of epochs of the training loop."""
        return self.run.epochs

    def begin_epoch(self, data: Loaders, epoch: int) -> None:
        """Called before each epoch, for methods that need all source images."""

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, Tensor]:
        """One step on images x in [0, 1], labels y and domains d; returns what it minimised, term by term.

        `epoch` is the time in epochs: 2.5 is in the middle of the third."""
        raise NotImplementedError

    def features(self, x: Tensor) -> Tensor:
        """The whole representation r, (B, N)."""
        return self.encoder(x)

    def predict(self, x: Tensor) -> Tensor:
        """Logits of the whole representation under h1, no mask (Sec. 3.2.3)."""
        return self.classify(self.features(x))

    def classify(self, r: Tensor) -> Tensor:
        """Logits of representations."""
        return self.h1(r)

    def sgd(self, *parts: tuple[nn.Module, float, bool]) -> torch.optim.SGD:
        """SGD over parts (module, its learning rate over the run's, whether the schedule decays it)."""
        groups = [
            {"params": [*module.parameters()], "base_lr": rate * self.run.lr, "decays": decays}
            for module, rate, decays in parts
        ]
        return torch.optim.SGD(
            groups, self.run.lr, momentum=0.9, nesterov=True, weight_decay=self.run.weight_decay, fused=True
        )

    def step(self, optimizer: torch.optim.Optimizer, loss: Tensor, epoch: float) -> None:
        """Update the optimizer's parameters; no gradient is computed for any others."""
        self.move(optimizer, torch.autograd.grad(loss, parameters_of(optimizer), allow_unused=True), epoch)

    def move(self, optimizer: torch.optim.Optimizer, gradients: Sequence[Tensor | None], epoch: float) -> None:
        """Update the optimizer's parameters with the given gradients."""
        for group in optimizer.param_groups:
            group["lr"] = group["base_lr"] * (decay(self.run, int(epoch)) if group["decays"] else 1.0)
        parameters = parameters_of(optimizer)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        if self.recipe.clip:
            nn.utils.clip_grad_norm_(parameters, self.recipe.clip)
        optimizer.step()

    def intervened(self, x: Tensor, d: Tensor) -> Tensor:
        """x_a: the images with the amplitude of others mixed in, according to the recipe (Eqs. 4-6).

        With partner=pair the halves of the batch are each other's partners (`Loaders.train`) and share lambda."""
        if self.recipe.partner == "pair":
            partner = torch.arange(len(x), device=x.device).roll(len(x) // 2)
            lam = fourier.sample_lam(len(x) // 2, self.run.eta, x.device).repeat(2)
        else:
            partner = fourier.partners(d, self.run.sampling)
            lam = fourier.sample_lam(len(x), self.run.eta, x.device)
        x_a = fourier.intervene_among(x, partner, lam)
        return (255 * x_a).floor() / 255 if self.recipe.pixels == "uint8" else x_a

    def ramped(self, epoch: float) -> float:
        """The weight of a penalty: from near 0 to 1, step by step over the first half of the run.

        Trained from scratch, a network that is penalised from the start does not learn."""
        return ramp(epoch, self.run.epochs / 2)

    def epochs_of(self, of_fifty: float) -> float:
        """Convert a length that is given for the paper's 50 epochs to epochs of this run."""
        return of_fifty * self.run.epochs / 50

    def state(self) -> dict:
        """All that a resumed run needs; tensors and numbers only."""
        return {"modules": self.state_dict(), "optimizers": [o.state_dict() for o in self.optimizers]}

    def restore(self, state: dict) -> None:
        self.load_state_dict(state["modules"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)


class TwoPhases(Method):
    """A method with a preparatory phase, half as long as the run, before the run's epochs."""

    @property
    def first_phase(self) -> int:
        return max(1, self.run.epochs // 2)

    @property
    def epochs(self) -> int:
        return self.first_phase + self.run.epochs


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def by_domain(d: Tensor) -> list[Tensor]:
    """The rows of each domain that is in the batch."""
    return [torch.nonzero(d == domain).squeeze(1) for domain in d.unique()]


def over_pairs(distance: Callable[[Tensor, Tensor], Tensor], r: Tensor, d: Tensor) -> Tensor:
    """The mean distance between the features of two domains, over all pairs of domains with at least two images."""
    parts = [r[rows] for rows in by_domain(d) if len(rows) > 1]
    distances = [distance(one, other) for one, other in combinations(parts, 2)]
    return torch.stack(distances).mean() if distances else r.sum() * 0


def distances(a: Tensor, b: Tensor) -> Tensor:
    """|a_i - b_j| for all rows, from the differences: |a|^2 + |b|^2 - 2 ab loses small distances to rounding."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


def sample_beta(alpha: float, count: int, device: torch.device) -> Tensor:
    """lambda ~ Beta(alpha, alpha), one per image."""
    return torch.distributions.Beta(torch.tensor(alpha), torch.tensor(alpha)).sample((count,)).to(device)


def ramp(epoch: float, length: float) -> float:
    """The sigmoid ramp-up exp(-5 (1 - t)^2) of the released code, over `length` epochs."""
    return math.exp(-5 * (1 - min(1.0, epoch / length)) ** 2) if length else 1.0


def decay(run: Run, epoch: int) -> float:
    """The schedule's factor of the learning rate in an epoch (counted from 0)."""
    if run.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * epoch / run.epochs))
    early = 1 if run.choices.decays == "encoder" else 0  # released: stepped before the epoch (ledger, row 11)
    return 0.1 ** sum(epoch + early >= share * run.epochs for share in run.drops)


def detached(**terms: Tensor) -> dict[str, Tensor]:
    """The terms without their graph. They stay on the device; `train_epoch` reads them."""
    return {name: term.detach() for name, term in terms.items()}
