"""`cirl.CIRLLoss` in a foreign loop is the method `cirl`: the same losses, gradients and steps."""

import copy

import pytest
import torch
from helpers import CLASSES, batch, before, make, steps_of

import cirl
import cirl.methods.criterion
from cirl.errors import UserError
from cirl.run.config import Settings, mask_draws
from cirl.run.recipe import parse_recipe

x, y, d = batch()


def criterion_of(learner):
    """A criterion with the weights of a method."""
    run = learner.run
    criterion = cirl.CIRLLoss(run.dim, CLASSES, run.kappa, run.tau, run.epochs, run.recipe)
    for mine, theirs in ((criterion.heads[0], learner.h1), (criterion.heads[1], learner.h2)):
        mine.load_state_dict(theirs.state_dict())
    criterion.masker.load_state_dict(learner.masker.state_dict())
    return criterion


def optimizers_of(learner, twin, criterion):
    """The method's own optimizers over the parameters of the loop: its encoder, heads and masker."""
    theirs = [*learner.encoder.parameters(), *learner.h1.parameters(), *learner.h2.parameters()]
    ours = [*twin.encoder.parameters(), *criterion.heads.parameters()]
    same = dict(zip(map(id, theirs), ours, strict=True))
    same |= dict(zip(map(id, learner.masker.parameters()), criterion.masker.parameters(), strict=True))
    return [
        torch.optim.SGD(
            [{**group, "params": [same[id(p)] for p in group["params"]]} for group in optimizer.param_groups]
        )
        for optimizer in learner.optimizers
    ]


LOSSES = ("paper", "released", "released+loss=barlow+k=floor", "paper+draws=recursive")
CASES = [(recipe, 50, epoch) for recipe in LOSSES for epoch in (0, 2.6, 5.9, 6, 40)]


@pytest.mark.parametrize("recipe, epochs, epoch", [*CASES, ("released", 500, 59), ("released", 500, 60)])
def test_losses_gradients_and_the_steps_are_those_of_the_method(recipe, epochs, epoch):
    learner = make(recipe=f"{recipe}+clip=0", epochs=epochs, kappa=0.7, schedule="constant")
    twin, criterion = before(learner), criterion_of(learner)
    optimizers = optimizers_of(learner, twin, criterion)
    terms, steps = steps_of(learner, (x, y, d), epoch)
    torch.manual_seed(3)  # that of steps_of
    r_o, r_a = twin.encoder(torch.cat([x, twin.intervened(x, d)])).chunk(2)
    for name, step, optimizer, objective in zip(
        ("loss", "adversary"), steps, optimizers, criterion(r_o, r_a, y, epoch), strict=True
    ):
        optimizer.zero_grad()
        objective.backward()
        assert objective.item() == pytest.approx(terms[name], rel=1e-5, abs=1e-6)
        mine = [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]
        for gradient, expected in zip(mine, step.gradients.values(), strict=True):
            torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)
        for group, own in zip(optimizer.param_groups, learner.optimizers[step.optimizer].param_groups, strict=True):
            group["lr"] = own["lr"]
        optimizer.step()
    for mine, theirs in (
        (twin.encoder, learner.encoder),
        (criterion.heads[0], learner.h1),
        (criterion.heads[1], learner.h2),
        (criterion.masker, learner.masker),
    ):
        for name, value in theirs.state_dict().items():
            torch.testing.assert_close(mine.state_dict()[name], value, rtol=1e-4, atol=1e-6, msg=name)


def test_each_objective_reaches_its_own_parameters_alone():
    learner = make(recipe="released", epochs=50)
    criterion = criterion_of(learner)
    r = learner.encoder(torch.cat([x, x.flip(0)]))
    loss, adversary = criterion(*r.chunk(2), y, epoch=40)
    loss.backward(retain_graph=True)
    assert all(p.grad is None for p in criterion.masker.parameters())
    assert all(p.grad.abs().sum() > 0 for p in criterion.heads.parameters())
    held = copy.deepcopy([p.grad for p in (*criterion.heads.parameters(), *learner.encoder.parameters())])
    adversary.backward()
    now = [p.grad for p in (*criterion.heads.parameters(), *learner.encoder.parameters())]
    assert all(torch.equal(one, other) for one, other in zip(now, held, strict=True))
    assert any(p.grad.abs().sum() > 0 for p in criterion.masker.parameters())


def test_a_mask_that_was_taken_before_the_step_on_the_classifiers_cannot_be_used_after_it():
    criterion = cirl.CIRLLoss(8, CLASSES)
    r = torch.randn(24, 8, requires_grad=True)
    loss, adversary = criterion(*r.chunk(2), y, epoch=40)  # both at once: the second belongs to the old classifiers
    loss.backward()
    torch.optim.SGD(criterion.heads.parameters(), 0.1).step()
    with pytest.raises(RuntimeError, match="inplace"):
        adversary.backward()


def test_the_lines_of_the_docstring_train_a_foreign_encoder():
    text = (
        cirl.methods.criterion.__doc__.split("\n\n", 1)[1]
        .replace("range(50)", "range(8)")
        .replace("lr=0.001", "lr=0.05")
    )
    text = text.replace("dim=512, classes=7", "dim=16, classes=4, epochs=8")
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(64) % 4
    images = 0.4 * torch.rand(64, 3, 16, 16, generator=generator)
    for i, label in enumerate(labels):  # a bright bar whose place is the class
        images[i, :, 4 * label : 4 * label + 4] += 0.5
    encoder = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 16), torch.nn.ReLU())
    loader = [(images[rows], labels[rows]) for rows in torch.randperm(64, generator=generator).chunk(4)]
    space = {"cirl": cirl, "torch": torch, "encoder": encoder, "loader": loader}
    exec(text, space)
    predicted = space["criterion"].heads[0](encoder(images)).argmax(1)
    assert (predicted == labels).float().mean() > 0.8
    assert len([line for line in text.splitlines() if line.strip()]) <= 11


def test_the_values_that_are_not_given_are_those_of_pacs():
    criterion, run = cirl.CIRLLoss(512, 7), Settings(("a", "b"))
    assert (criterion.tau, criterion.epochs, criterion.recipe) == (run.tau, run.epochs, parse_recipe(run.recipe))
    assert criterion.masker.k == mask_draws(run.kappa, 512, "ceil") == 308


def test_a_share_of_dimensions_out_of_range_is_refused():
    with pytest.raises(UserError, match=r"kappa=1\.2"):
        cirl.CIRLLoss(8, 4, kappa=1.2)
    with pytest.raises(UserError, match="recipe='draft'"):
        cirl.CIRLLoss(8, 4, recipe="draft")
