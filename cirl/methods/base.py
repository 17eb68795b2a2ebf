"""What every method shares: encoder, classifier h1, optimizer, schedule and state."""

import math

import torch
from torch import Tensor, nn

from cirl.config import Run
from cirl.model import Network


class Method(nn.Module):
    """One encoder g, one classifier h1, stochastic gradient descent. A method adds its `update`."""

    def __init__(self, run: Run, classes: int):
        super().__init__()
        torch.manual_seed(run.seed)
        self.run, self.recipe = run, run.choices
        self.encoder = Network(run.backbone, run.dim, run.weights)
        self.h1 = nn.Linear(run.dim, classes)
        self.optimizers = self.make_optimizers()

    def make_optimizers(self) -> list[torch.optim.Optimizer]:
        return [self.sgd((self.encoder, 1.0, True), (self.h1, self.recipe.head_lr, True))]

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: int) -> dict[str, float]:
        """One step on images x in [0, 1], labels y and domains d; what it minimised, term by term."""
        raise NotImplementedError

    def features(self, x: Tensor) -> Tensor:
        """The whole representation r, (B, N)."""
        return self.encoder(x)

    def predict(self, x: Tensor) -> Tensor:
        """Logits of the whole representation under h1, no mask (Sec. 3.2.3)."""
        return self.h1(self.features(x))

    def sgd(self, *parts: tuple[nn.Module, float, bool]) -> torch.optim.SGD:
        """SGD over parts (module, its learning rate over the run's, whether the schedule decays it)."""
        groups = [
            {"params": [*module.parameters()], "base_lr": rate * self.run.lr, "decays": decays}
            for module, rate, decays in parts
        ]
        return torch.optim.SGD(groups, self.run.lr, momentum=0.9, nesterov=True, weight_decay=self.run.weight_decay)

    def step(self, optimizer: torch.optim.Optimizer, loss: Tensor, epoch: int) -> None:
        """Move the optimizer's own parameters, and compute no gradient for any other."""
        for group in optimizer.param_groups:
            group["lr"] = group["base_lr"] * (decay(self.run, epoch) if group["decays"] else 1.0)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        if self.recipe.clip:
            nn.utils.clip_grad_norm_(parameters, self.recipe.clip)
        optimizer.step()

    def state(self) -> dict:
        """All that a resumed run needs; tensors and numbers only."""
        return {"modules": self.state_dict(), "optimizers": [o.state_dict() for o in self.optimizers]}

    def restore(self, state: dict) -> None:
        self.load_state_dict(state["modules"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)


def decay(run: Run, epoch: int) -> float:
    """The schedule's factor of the learning rate in an epoch (counted from 0)."""
    if run.settings.decay == "cosine":
        return 0.5 * (1 + math.cos(math.pi * epoch / run.epochs))
    early = 1 if run.choices.decay == "encoder" else 0  # released: stepped before the epoch (ledger, row 11)
    return 0.1 ** sum(epoch + early >= share * run.epochs for share in run.settings.decay)


def floats(**terms: Tensor) -> dict[str, float]:
    """The terms as numbers, brought from the device at once."""
    return dict(zip(terms, torch.stack([term.detach() for term in terms.values()]).tolist(), strict=True))
