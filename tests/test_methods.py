import io

import pytest
import torch

from cirl.config import Run
from cirl.methods import METHODS
from cirl.methods.cirl import ramp
from cirl.runs import serialized

CLASSES = 4
x, y, d = torch.rand(12, 3, 32, 32), torch.arange(12) % CLASSES, torch.tensor([0, 1, 3] * 4)


def make(method="cirl", **more):
    return METHODS[method](Run(method=method, **more), CLASSES)


def snapshot(method):
    return {name: value.clone() for name, value in method.named_parameters()}


def moved(before, method):
    """The parts (first word of the parameter's name) that a step has moved."""
    return {name.split(".")[0] for name, value in method.named_parameters() if not torch.equal(before[name], value)}


@pytest.mark.parametrize("method", METHODS)
def test_a_method_keeps_its_contract(method):
    learner = make(method)
    terms = learner.update(x, y, d, epoch=0)
    assert all(isinstance(value, float) for value in terms.values()) and "loss" in terms
    assert learner.features(x).shape == (12, 128) and learner.predict(x).shape == (12, CLASSES)


@pytest.mark.parametrize(
    ("method", "recipe"), [("cirl", "paper"), ("cirl", "released"), *((method, None) for method in METHODS)]
)
def test_a_method_learns_to_classify_a_batch(method, recipe):
    learner = make(method, recipe=recipe, lr=0.05 if recipe == "paper" else 0.02, tau=0.0, eta=0.0)
    patterns = torch.rand(CLASSES, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    images = 0.2 * x + 0.8 * patterns[y]
    losses = [learner.update(images, y, d, epoch=learner.epochs - learner.run.epochs)["loss"] for _ in range(60)]
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])


@pytest.mark.parametrize("method", [name for name in METHODS if name != "mtl"])
def test_inference_uses_the_whole_representation_and_h1(method):
    learner = make(method).eval()
    torch.testing.assert_close(learner.predict(x), learner.h1(learner.features(x)))


@pytest.mark.parametrize("recipe", ["paper", "released"])
def test_each_step_of_equation_14_moves_only_its_own_parameters(recipe, monkeypatch):
    learner = make(recipe=recipe)
    steps = []
    step = learner.step

    def watched(optimizer, loss, epoch):
        before = snapshot(learner)
        step(optimizer, loss, epoch)
        steps.append(moved(before, learner))

    monkeypatch.setattr(learner, "step", watched)
    learner.update(x, y, d, epoch=9)
    assert steps == [{"encoder", "h1", "h2"}, {"masker"}]


def test_the_encoder_runs_once_forward_and_once_backward_a_step():
    learner, forward, backward = make(), [], []
    learner.encoder.register_forward_hook(lambda *_: forward.append(1))
    learner.encoder.backbone[3].register_full_backward_hook(lambda *_: backward.append(1))
    learner.update(x, y, d, epoch=9)
    assert (len(forward), len(backward)) == (1, 1)


def test_the_masker_works_against_the_generator():
    """Its own step lowers L_sup - L_inf on the same noise."""
    learner = make(recipe="paper", lr=0.01)
    r_o, r_a = learner.represent(x, d)
    r_o, r_a = r_o.detach(), r_a.detach()

    def adversary():
        torch.manual_seed(5)
        m_o, m_a = learner.masker(torch.cat([r_o, r_a])).chunk(2)
        L_sup, L_inf = learner.masked(r_o, r_a, m_o, m_a, y)
        return L_sup - L_inf

    before = adversary().item()
    for _ in range(10):
        learner.step(learner.optimizers[1], adversary(), epoch=0)
    assert adversary().item() < before


def test_released_masks_are_all_ones_at_first():
    learner = make(recipe="released", epochs=50)
    before = snapshot(learner)
    terms = learner.update(x, y, d, epoch=5)
    assert moved(before, learner) == {"encoder", "h1", "h2"}
    learner.update(x, y, d, epoch=6)
    assert "masker" in moved(before, learner) and "mask" in terms


def test_the_weight_of_the_factorization_loss_ramps_up_as_released():
    assert ramp(0, 5) == pytest.approx(2.718281828**-5)
    assert ramp(5, 5) == ramp(40, 5) == 1 and ramp(0, 0) == 1
    values = [ramp(t, 5) for t in range(6)]
    assert values == sorted(values)


@pytest.mark.parametrize(
    ("switches", "terms", "parts"),
    [
        (dict(cint=True, cfac=False, advm=False), {"L_cls"}, {"encoder", "h1"}),  # variant 1
        (dict(cint=False, cfac=True, advm=False), {"L_cls"}, {"encoder", "h1"}),  # variant 2
        (dict(cint=True, cfac=True, advm=False), {"L_cls"}, {"encoder", "h1"}),  # variant 3
        (dict(cint=False, cfac=True, advm=True), {"L_sup", "L_inf"}, {"encoder", "h1", "h2", "masker"}),  # variant 4
    ],
)
def test_the_variants_of_table_5_do_what_they_are_called(switches, terms, parts):
    learner = make(recipe="paper", **switches)
    seen = []
    learner.encoder.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    before = snapshot(learner)
    assert terms < set(learner.update(x, y, d, epoch=3))
    assert moved(before, learner) == parts
    assert seen == [24 if switches["cint"] else 12]  # mixed images only with the intervention


def test_the_factorization_loss_asks_for_the_modules_that_are_switched_on():
    r_o, r_a = torch.randn(2, 12, 128)
    full = make(recipe="paper")
    invariance_only = make(recipe="paper", cfac=False)
    independence_only = make(recipe="paper", cint=False)
    total = full.factorization(r_o, r_a)
    diagonal = 0.5 * (full.C.diagonal() - 1).square().sum()
    torch.testing.assert_close(invariance_only.factorization(r_o, r_a), diagonal)
    torch.testing.assert_close(independence_only.factorization(r_o, r_a), total - diagonal)


def test_mean_and_sum_of_cross_entropies_differ_by_their_number():
    for recipe, masked, whole in (("paper", 1, 1), ("released", 0.25, 0.5)):
        learner = make(recipe=recipe)
        assert (learner.weight(2), learner.weight(1)) == (masked, whole)


def test_rates_of_encoder_heads_and_masker_follow_the_recipe():
    def rates(learner, epoch):
        learner.update(x, y, d, epoch)
        return [group["lr"] for optimizer in learner.optimizers for group in optimizer.param_groups]

    pacs = dict(dataset="pacs", target="photo", weights="none", image_size=32, epochs=10)
    assert rates(make(recipe="paper", **pacs), 9) == pytest.approx([1e-4] * 4)
    assert rates(make(recipe="released", **pacs), 9) == pytest.approx([1e-4, 1e-3, 1e-2, 1e-2])
    assert rates(make("deepall", **pacs), 0) == pytest.approx([1e-3, 1e-3])
    assert rates(make("deepall", recipe="released", **pacs), 0) == pytest.approx([1e-3, 1e-2])


def test_clipping_bounds_the_gradient():
    learner = make("deepall", recipe="paper+clip=0.001")
    learner.update(x, y, d, 0)
    norm = torch.stack([p.grad.norm() for p in learner.parameters()]).norm()
    assert norm == pytest.approx(0.001, rel=0.01)


@pytest.mark.parametrize("method", METHODS)
def test_a_restored_method_goes_on_as_if_nothing_had_happened(method):
    learner, other = make(method), make(method, seed=1)
    learner.update(x, y, d, 5)
    other.restore(torch.load(io.BytesIO(serialized(learner.state())), weights_only=True))
    for each in (learner, other):
        torch.manual_seed(7)
        each.update(x, y, d, 6)
    assert all(torch.equal(a, b) for a, b in zip(learner.parameters(), other.parameters(), strict=True))


def test_the_seed_decides_the_first_weights():
    assert torch.equal(make().h1.weight, make().h1.weight)
    assert not torch.equal(make().h1.weight, make(seed=1).h1.weight)
