"""CIRL's `update` against Eqs. 4-14 written out, for both recipes, and the parts that it is made of."""

import math

import pytest
import torch
from helpers import CLASSES, assert_minimises, batch, before, make, steps_of

from cirl import fourier

x, y, d = batch()
B = len(x)
TERMS = ("loss", "L_sup", "L_inf", "L_fac", "adversary", "diagonal", "mask")


def cross_entropy(logits):
    return -sum(logits[b].log_softmax(0)[y[b]] for b in range(B)) / B


def correlation(r_o, r_a, unbiased):
    """Eqs. 9 and 15: the sum over the batch divided by B and by the two deviations."""
    a, b = r_o - r_o.mean(0), r_a - r_a.mean(0)
    degrees = B - 1 if unbiased else B
    sd_o, sd_a = ((part.square().sum(0) / degrees + 1e-8).sqrt() for part in (a, b))
    return torch.einsum("bi,bj->ij", a, b) / B / sd_o[:, None] / sd_a[None, :]


def factorization(C, loss, diagonal=True, others=True):
    """The double sums of Eq. 10, of the released code and of Barlow Twins."""
    N, own = len(C), torch.eye(len(C)).bool()
    invariance = (C[own] - 1).square().sum() if diagonal else 0.0
    independence = C[~own].square().sum() if others else 0.0
    if loss == "released":
        return invariance / N + 0.005 * independence / (N * N - N)
    return (invariance + independence) / 2 if loss == "frobenius" else invariance + 0.005 * independence


def views(learner, seed=3):
    """The representations of originals and mixed images, with the noise of `steps_of`."""
    choices, eta = learner.recipe, learner.run.eta
    torch.manual_seed(seed)
    if not learner.run.cint:
        return learner.encoder(x), learner.encoder(x)
    if choices.partner == "pair":
        partner, lam = torch.tensor([*range(B // 2, B), *range(B // 2)]), eta * torch.rand(B // 2).repeat(2)
    else:
        partner, lam = fourier.partners(d, learner.run.sampling), eta * torch.rand(B)
    x_a = fourier.intervene(x, x[partner], lam)
    if choices.pixels == "uint8":
        x_a = torch.div(255 * x_a, 1, rounding_mode="trunc") / 255
    return learner.encoder(x), learner.encoder(x_a)


def tau(learner, epoch):
    """Ramped over the first tenth of the run, epoch by epoch."""
    done = min(1, 10 * math.floor(epoch) / learner.run.epochs)
    return learner.run.tau * math.exp(-5 * (1 - done) ** 2)


def by_hand(learner, after, epoch):
    """What generator and masker minimise (Eq. 14): `learner` from before the update, `after` from after it."""
    released = learner.run.recipe.startswith("released")
    r_o, r_a = views(learner)
    C = correlation(r_o, r_a, unbiased=released)
    L_fac = factorization(C, learner.recipe.loss, learner.run.cint, learner.run.cfac)
    m_o, m_a = learner.masker(torch.cat([r_o, r_a]).detach()).chunk(2)
    share = 0.25 if released else 1.0  # 0.5 of the mean over two views, or the sum
    if released and math.floor(epoch) < 6 / 50 * learner.run.epochs:
        L_sup = share * (cross_entropy(learner.h1(r_o)) + cross_entropy(learner.h1(r_a)))
        L_inf = share * (cross_entropy(learner.h2(r_o)) + cross_entropy(learner.h2(r_a)))
    else:
        s_o, s_a = m_o.detach(), m_a.detach()
        L_sup = share * (cross_entropy(learner.h1(s_o * r_o)) + cross_entropy(learner.h1(s_a * r_a)))
        L_inf = share * (cross_entropy(learner.h2(r_o - s_o * r_o)) + cross_entropy(learner.h2(r_a - s_a * r_a)))
    loss = L_sup + L_inf + tau(learner, epoch) * L_fac
    r_o, r_a = r_o.detach(), r_a.detach()
    sup = share * (cross_entropy(after.h1(m_o * r_o)) + cross_entropy(after.h1(m_a * r_a)))
    inf = share * (cross_entropy(after.h2(r_o - m_o * r_o)) + cross_entropy(after.h2(r_a - m_a * r_a)))
    return dict(zip(TERMS, (loss, L_sup, L_inf, L_fac, sup - inf, C.diagonal().mean(), m_o.mean()), strict=True))


def assert_is_equation_14(epoch, **more):
    learner = make("cirl", epochs=50, **more)
    twin = before(learner)
    terms, steps = steps_of(learner, batch(), epoch)
    expected = by_hand(twin, learner, epoch)
    assert terms == pytest.approx({name: value.item() for name, value in expected.items()}, rel=1e-4, abs=1e-6)
    assert [step.optimizer for step in steps] == [0, 1]
    generator, masker = steps
    assert {name.split(".")[0] for name in generator.gradients} == {"encoder", "h1", "h2"}
    assert {name.split(".")[0] for name in masker.gradients} == {"masker"}
    assert_minimises(generator, twin, expected["loss"])
    assert_minimises(masker, twin, expected["adversary"])
    assert all(gradient.abs().max() > 0 for step in steps for gradient in step.gradients.values() if gradient.dim() > 1)


@pytest.mark.parametrize("epoch", [0, 2.6, 5, 5.9, 6, 40])
@pytest.mark.parametrize("recipe", ["paper", "released"])
def test_generator_and_masker_minimise_equation_14_in_and_after_warm_up_and_ramp(recipe, epoch):
    assert_is_equation_14(epoch, recipe=recipe)


@pytest.mark.parametrize("loss", ["released", "barlow", "frobenius"])
def test_the_factorization_loss_of_the_recipe_enters_with_weight_tau(loss):
    assert_is_equation_14(9, recipe=f"released+loss={loss}", tau=70.0)


@pytest.mark.parametrize(
    "more",
    [
        dict(recipe="released+partner=any"),
        dict(recipe="released+pixels=float", eta=0.4),
        dict(recipe="paper+pixels=uint8", sampling="inter"),
        dict(recipe="paper+draws=recursive", sampling="intra", eta=0.2),
        dict(recipe="released+draws=independent", kappa=0.1),
        dict(recipe="released+logits=plain", dim=24),
        dict(recipe="paper+logits=batchnorm", seed=4),
    ],
)
def test_the_choices_of_recipe_and_run_reach_the_objective(more):
    assert_is_equation_14(30, **more)


@pytest.mark.parametrize("recipe", ["paper", "released"])
@pytest.mark.parametrize("epoch", [3, 8])
def test_variant_4_has_masks_but_no_mixed_images_and_no_invariance(recipe, epoch):
    assert_is_equation_14(epoch, recipe=recipe, cint=False)


@pytest.mark.parametrize("cint, cfac", [(True, False), (False, True), (True, True)], ids=["V1", "V2", "V3"])
@pytest.mark.parametrize(("recipe", "share"), [("paper", 1.0), ("released", 0.5)])
def test_variants_1_to_3_minimise_equation_11_and_their_part_of_the_factorization(cint, cfac, recipe, share):
    learner = make(recipe=recipe, epochs=50, cint=cint, cfac=cfac, advm=False, tau=20.0)
    twin, seen = before(learner), []
    learner.encoder.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    r_o, r_a = views(twin)
    C = correlation(r_o, r_a, unbiased=recipe == "released")
    L_cls = share * (cross_entropy(twin.h1(r_o)) + cross_entropy(twin.h1(r_a)))
    L_fac = factorization(C, twin.recipe.loss, cint, cfac)
    loss = L_cls + tau(twin, 3) * L_fac
    terms, (step,) = steps_of(learner, batch(), epoch=3)
    expected = dict(loss=loss, L_cls=L_cls, L_fac=L_fac, diagonal=C.diagonal().mean())
    assert terms == pytest.approx({name: value.item() for name, value in expected.items()}, rel=1e-4)
    assert {name.split(".")[0] for name, _ in learner.named_parameters()} == {"encoder", "h1"}
    assert_minimises(step, twin, loss)
    assert seen == [24 if cint else 12]  # one pass of the encoder, with mixed images only under the intervention


def test_in_the_warm_up_the_masker_learns_but_neither_branch_sees_its_masks():
    """The authors' condition is epoch <= 5, and the masker's step does not depend on it."""
    learner, seen = make(recipe="released", epochs=50), []
    for head in (learner.h1, learner.h2):
        head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    learner.encoder.register_forward_hook(lambda *given: seen.append(given[-1].detach()))
    start = {name: value.clone() for name, value in learner.named_parameters()}
    learner.update(x, y, d, epoch=5.99)
    r, generator, masker = seen[0], seen[1:5], seen[5:]
    assert all(torch.equal(given, part) for given, part in zip(generator, [*r.chunk(2)] * 2, strict=True))
    assert not any(torch.equal(given, part) for given, part in zip(masker, [*r.chunk(2)] * 2, strict=True))
    moved = {n.split(".")[0] for n, value in learner.named_parameters() if not torch.equal(value, start[n])}
    assert moved == {"encoder", "h1", "h2", "masker"}


@pytest.mark.parametrize("epochs, masked_from", [(50, 6), (25, 3), (5, 1)])
def test_the_warm_up_is_the_share_of_the_run_that_six_are_of_fifty(epochs, masked_from):
    learner, seen = make(recipe="released", epochs=epochs), []
    learner.h1.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    learner.encoder.register_forward_hook(lambda *given: seen.append(given[-1].detach()))
    for epoch in (masked_from - 0.01, masked_from):
        seen.clear()
        learner.update(x, y, d, epoch)
        assert torch.equal(seen[1], seen[0][:B]) == (epoch < masked_from)


def test_the_encoder_runs_once_forward_and_once_backward_a_step():
    learner, forward, backward = make(), [], []
    learner.encoder.register_forward_hook(lambda *_: forward.append(1))
    learner.encoder.backbone[3].register_full_backward_hook(lambda *_: backward.append(1))
    learner.update(x, y, d, epoch=9)
    assert (len(forward), len(backward)) == (1, 1)


def test_the_masker_works_against_the_generator():
    """Its step lowers L_sup - L_inf on the same noise."""
    learner = make(recipe="paper", lr=0.01)
    r_o, r_a = (r.detach() for r in learner.represent(x, d))

    def adversary():
        torch.manual_seed(5)
        m_o, m_a = learner.masker(torch.cat([r_o, r_a])).chunk(2)
        L_sup, L_inf = learner.masked(r_o, r_a, m_o, m_a, y)
        return L_sup - L_inf

    start = adversary().item()
    for _ in range(10):
        learner.step(learner.optimizers[1], adversary(), epoch=0)
    assert adversary().item() < start


def test_rates_of_encoder_heads_and_masker_follow_the_recipe():
    def rates(learner, epoch):
        learner.update(x, y, d, epoch)
        return [group["lr"] for optimizer in learner.optimizers for group in optimizer.param_groups]

    short = dict(lr=1e-3, schedule="0.8", epochs=10)
    assert rates(make(recipe="paper", **short), 9) == pytest.approx([1e-4] * 4)
    assert rates(make(recipe="released", **short), 9) == pytest.approx([1e-4, 1e-3, 1e-2, 1e-2])
    assert rates(make(recipe="released+decays=all", **short), 9) == pytest.approx([1e-4, 1e-3, 1e-3, 1e-3])
    assert rates(make(recipe="released", advm=False, **short), 9) == pytest.approx([1e-4, 1e-3])


def test_mean_and_sum_of_cross_entropies_differ_by_their_number():
    for recipe, masked, whole in (("paper", 1, 1), ("released", 0.25, 0.5)):
        learner = make(recipe=recipe)
        assert (learner.weight(2), learner.weight(1)) == (masked, whole)


def test_the_correlation_matrix_of_the_last_step_is_kept_for_inspection():
    learner = make(recipe="paper")
    assert learner.C is None
    r_o, r_a = views(learner)
    expected = correlation(r_o, r_a, unbiased=False)
    steps_of(learner, batch(), epoch=0)
    torch.testing.assert_close(learner.C, expected.detach(), rtol=1e-3, atol=1e-5)
    assert not learner.C.requires_grad and learner.h2.out_features == CLASSES
