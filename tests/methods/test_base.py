"""What the methods share (base.py): the step and its schedule, the mixed images, domain-wise batches, the ramp."""

import copy
import math

import numpy as np
import pytest
import torch
from helpers import batch, before, make, steps_of
from torch import nn

from cirl import _gumbel_fused, fourier
from cirl.methods.base import (
    Method,
    by_domain,
    decay,
    detached,
    distances,
    over_pairs,
    parameters_of,
    ramp,
    sample_beta,
)
from cirl.methods.deepall import DeepAll
from cirl.methods.table import TABLE

x, y, d = batch()
B = len(x)


# the step


def test_a_step_is_nesterov_descent_with_momentum_and_weight_decay():
    """Two steps of torch's rule, v <- 0.9 v + g, p <- p - lr (g + 0.9 v), g with the decay added."""
    learner = make("deepall", lr=0.1, weight_decay=0.01, schedule="constant", recipe="paper+clip=0")
    weight = learner.h1.weight
    p, v = weight.detach().clone(), torch.zeros_like(weight)
    for _ in range(2):
        _, (step,) = steps_of(learner, batch(), 0)
        g = step.gradients["h1.weight"] + 0.01 * p
        v = 0.9 * v + g
        p = p - 0.1 * (g + 0.9 * v)
        torch.testing.assert_close(weight.detach(), p)
    assert learner.optimizers[0].defaults["fused"]  # one kernel for all parameters


def test_a_step_moves_the_parameters_of_one_optimizer_and_gives_no_gradient_to_others():
    learner = make("cirl", recipe="paper")
    start = before(learner)
    loss = learner.h1(learner.encoder(x)).square().sum() + learner.masker.layers[1].weight.square().sum()
    learner.step(learner.optimizers[1], loss, 0)
    moved = {
        name for (name, a), b in zip(learner.named_parameters(), start.parameters(), strict=True) if (a != b).any()
    }
    assert "masker.layers.1.weight" in moved and not any(name.startswith(("encoder", "h1", "h2")) for name in moved)
    assert all(p.grad is None for p in learner.encoder.parameters())


def test_parameters_of_an_optimizer_are_those_of_all_its_groups():
    learner = make("cirl")
    assert [id(p) for p in parameters_of(learner.optimizers[0])] == [
        id(p) for part in (learner.encoder, learner.h1, learner.h2) for p in part.parameters()
    ]


def test_the_classifier_and_the_heads_of_a_method_have_the_rate_of_the_recipe_and_all_follow_the_schedule():
    learner = make("deepall", recipe="released+head_lr=7", lr=0.1, epochs=10, schedule="0.5")
    head = nn.Linear(2, 2)
    (optimizer,) = learner.make_optimizers(head)
    assert [group["base_lr"] for group in optimizer.param_groups] == pytest.approx([0.1, 0.7, 0.7])
    assert optimizer.param_groups[2]["params"] == [*head.parameters()]
    for epoch, factor in ((3.9, 1), (4, 0.1)):
        learner.move(optimizer, [torch.zeros_like(p) for p in parameters_of(optimizer)], epoch)
        rates = [group["lr"] for group in optimizer.param_groups]
        assert rates == pytest.approx([0.1 * factor, 0.7 * factor, 0.7 * factor])


def test_parts_that_do_not_decay_keep_their_rate():
    learner = make("deepall", lr=0.1, epochs=10, schedule="0.5", recipe="paper")
    optimizer = learner.sgd((learner.encoder, 2.0, False), (learner.h1, 1.0, True))
    learner.move(optimizer, [torch.zeros_like(p) for p in parameters_of(optimizer)], 7)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.2, 0.01])


@pytest.mark.parametrize("bound", [0.001, 1000.0, 0])
def test_clipping_bounds_the_norm_of_the_gradient(bound):
    learner = make("deepall", recipe=f"paper+clip={bound}")
    _, (step,) = steps_of(learner, batch(), 0)
    free = torch.stack([gradient.norm() for gradient in step.gradients.values()]).norm()
    norm = torch.stack([p.grad.norm() for p in learner.parameters()]).norm()
    assert norm.item() == pytest.approx(min(free.item(), bound or 1000), rel=0.01) and 0.01 < free < 1000


def test_a_parameter_without_gradient_is_left_alone():
    learner = make("deepall")
    start = before(learner)
    gradients = [None for _ in parameters_of(learner.optimizers[0])]
    learner.move(learner.optimizers[0], gradients, 0)
    assert all(torch.equal(a, b) for a, b in zip(learner.parameters(), start.parameters(), strict=True))


def test_the_state_restores_weights_and_momentum():
    learner, other = make("deepall"), make("deepall", seed=1)
    learner.update(x, y, d, 0)
    other.restore(copy.deepcopy(learner.state()))
    for each in (learner, other):
        each.update(x, y, d, 0)
    assert all(torch.equal(a, b) for a, b in zip(learner.parameters(), other.parameters(), strict=True))


def test_a_method_without_update_says_so_and_needs_no_look_at_the_sources():
    learner = Method(make("deepall").run, 4)
    assert learner.begin_epoch(None, 0) is None and learner.epochs == 5 and learner.best is None
    with pytest.raises(NotImplementedError):
        learner.update(x, y, d, 0)


def test_features_are_the_encoders_and_logits_the_classifiers():
    learner = make("deepall")
    torch.testing.assert_close(learner.features(x), learner.encoder(x))
    torch.testing.assert_close(learner.predict(x), learner.h1(learner.encoder(x)))
    assert DeepAll.classify is Method.classify


def test_terms_lose_their_graph_and_keep_their_values():
    terms = detached(a=torch.tensor(1.5, requires_grad=True), b=torch.tensor(2.0))
    assert terms == {"a": 1.5, "b": 2.0} and not terms["a"].requires_grad


# These branch on the batch or on a draw of the host, or their optimizer counts its steps there.
READ_THE_HOST = {"mixup", "mtl", "jigen", "mldg", "mixstyle", "metareg", "masf", "mmd_aae"}


@pytest.mark.parametrize("name", [name for name in TABLE if name not in READ_THE_HOST])
def test_a_step_does_not_wait_for_the_device(name, monkeypatch):
    """On a GPU each of these calls would make the host wait for all steps before."""
    learner, reads = make(name), []
    monkeypatch.setattr(_gumbel_fused, "_new_seed", lambda: 0)  # drawn on the host
    for call in ("item", "tolist", "__bool__", "__int__", "__float__", "cpu", "numpy"):
        original = getattr(torch.Tensor, call)
        monkeypatch.setattr(torch.Tensor, call, lambda tensor, f=original, c=call: reads.append(c) or f(tensor))
    learner.update(*batch(), 1.0)
    assert reads == []


WAITS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::_unique2"}  # within torch's own operations


@pytest.mark.parametrize("name", ["deepall", "mix", "cirl", "fact"])
def test_no_operation_of_torch_waits_for_the_device_where_partners_are_pairs(name, monkeypatch):
    """As on PACS, Office-Home and mini-DomainNet. With partner=any torch.multinomial reads two numbers to check its
    weights; the methods that split a batch by domain wait in nonzero and unique."""
    monkeypatch.setattr(_gumbel_fused, "_new_seed", lambda: 0)
    found = {}
    for partner in ("pair", "any"):
        learner = make(name, recipe=f"released+originals=2+partner={partner}")
        learner.update(*batch(), 1.0)
        with torch.autograd.profiler.profile() as profile:
            learner.update(*batch(), 1.0)
        found[partner] = [event.name for event in profile.function_events if event.name in WAITS]
    assert found["pair"] == []
    assert len(found["any"]) == (0 if name == "deepall" else 2)  # otherwise torch has changed


def test_the_seed_decides_the_first_weights():
    assert torch.equal(make().h1.weight, make().h1.weight)
    assert not torch.equal(make().h1.weight, make(seed=1).h1.weight)


# ramp and schedule


def test_the_weight_of_a_penalty_ramps_up_step_by_step_over_half_of_the_run():
    learner = make("coral", epochs=50)
    for epoch, share in ((0, math.exp(-5)), (0.5, math.exp(-5 * 0.98**2)), (12.5, math.exp(-1.25)), (25, 1), (40, 1)):
        assert learner.ramped(epoch) == pytest.approx(share)


def test_lengths_of_fifty_epochs_shrink_with_the_run():
    assert make("deepall", epochs=20).epochs_of(5) == 2 and make("deepall", epochs=50).epochs_of(6) == 6


def test_the_cosine_schedule_falls_from_one_towards_zero():
    run = make("deepall", schedule="cosine", epochs=10).run
    for epoch, share in ((0, 1), (5, 0.5), (9, 0.5 * (1 + math.cos(0.9 * math.pi)))):
        assert decay(run, epoch) == pytest.approx(share)


def test_a_constant_schedule_stays():
    assert decay(make("deepall", schedule="constant").run, 4) == 1


def test_the_weight_of_the_factorization_loss_ramps_up_as_released():
    assert ramp(0, 5) == pytest.approx(math.exp(-5)) and ramp(2.5, 5) == pytest.approx(math.exp(-1.25))
    assert ramp(5, 5) == ramp(40, 5) == 1 and ramp(0, 0) == 1
    values = [ramp(t, 5) for t in range(6)]
    assert values == sorted(values)


def test_the_released_rate_drops_one_epoch_early_since_its_scheduler_is_stepped_first():
    paper, released = (make(recipe=recipe, epochs=50, schedule="0.4+0.8").run for recipe in ("paper", "released"))
    for epoch, early, late in (
        (18, 1, 1),
        (19, 0.1, 1),
        (20, 0.1, 0.1),
        (38, 0.1, 0.1),
        (39, 0.01, 0.1),
        (49, 0.01, 0.01),
    ):
        assert decay(released, epoch) == pytest.approx(early) and decay(paper, epoch) == pytest.approx(late)


# Method.intervened: Eqs. 4-6 as the recipe draws partners and lambda


def spectrum_mix(image, partner, lam):
    """The full transform of numpy in double precision, one image."""
    one, other = np.fft.fft2(image.double().numpy()), np.fft.fft2(partner.double().numpy())
    amplitude = (1 - lam) * np.abs(one) + lam * np.abs(other)
    return np.clip(np.real(np.fft.ifft2(amplitude * np.exp(1j * np.angle(one)))), 0, 1)


def test_the_halves_of_a_batch_of_pairs_swap_their_amplitudes_with_one_lambda():
    learner = make(recipe="released+pixels=float", eta=0.7)
    torch.manual_seed(8)
    lam = 0.7 * torch.rand(B // 2)
    torch.manual_seed(8)
    x_a = learner.intervened(x, d)
    for i in range(B // 2):
        j = i + B // 2
        for one, other in ((i, j), (j, i)):
            np.testing.assert_allclose(x_a[one].numpy(), spectrum_mix(x[one], x[other], lam[i].item()), atol=1e-5)


def test_any_image_lends_its_amplitude_with_a_lambda_for_each():
    learner = make(recipe="paper", sampling="inter", eta=0.7)
    torch.manual_seed(8)
    partner, lam = fourier.partners(d, "inter"), 0.7 * torch.rand(B)
    torch.manual_seed(8)
    x_a = learner.intervened(x, d)
    for i in range(B):
        np.testing.assert_allclose(x_a[i].numpy(), spectrum_mix(x[i], x[partner[i]], lam[i].item()), atol=1e-5)


def test_mixed_images_are_truncated_to_grey_levels_where_the_recipe_says():
    exact, cut = make(recipe="paper"), make(recipe="paper+pixels=uint8")
    images = []
    for learner in (exact, cut):
        torch.manual_seed(8)
        images.append(255 * learner.intervened(x, d))
    torch.testing.assert_close(images[1], images[1].round(), atol=1e-4, rtol=0)
    darker = images[0] - images[1]
    assert darker.min() > -1e-3 and darker.max() < 1 + 1e-3 and 0.3 < darker.mean() < 0.5


# domain-wise batches


def test_rows_of_each_domain_are_all_rows_once():
    rows = by_domain(torch.tensor([3, 0, 3, 1, 0]))
    assert [part.tolist() for part in rows] == [[1, 4], [3], [0, 2]]


def test_the_mean_over_pairs_is_the_naive_loop_and_skips_domains_of_one_image():
    r, domains = torch.randn(9, 3), torch.tensor([0, 0, 1, 1, 1, 2, 0, 4, 4])
    gap = lambda a, b: (a.mean() - b.mean()).square()  # noqa: E731
    parts = r[[0, 1, 6]], r[[2, 3, 4]], r[[7, 8]]
    expected = (gap(parts[0], parts[1]) + gap(parts[0], parts[2]) + gap(parts[1], parts[2])) / 3
    torch.testing.assert_close(over_pairs(gap, r, domains), expected)


def test_without_two_domains_the_mean_over_pairs_is_zero_with_a_gradient():
    r = torch.randn(7, 3, requires_grad=True)
    value = over_pairs(lambda a, b: (a.mean() - b.mean()).square(), r, torch.zeros(7))
    value.backward()
    assert value == 0 and (r.grad == 0).all()


def test_distances_keep_what_rounding_would_lose():
    a = 100 + torch.randn(40, 8) / 1000
    expected = torch.stack([(a - row).double().square().sum(1).sqrt() for row in a]).float()
    torch.testing.assert_close(distances(a, a), expected, rtol=1e-3, atol=1e-7)


def test_shares_of_mixup_are_of_the_beta_distribution():
    torch.manual_seed(0)
    lam = sample_beta(0.2, 4000, torch.device("cpu"))
    assert lam.shape == (4000,) and lam.min() >= 0 and lam.max() <= 1
    assert lam.mean().item() == pytest.approx(0.5, abs=0.03)
    assert lam.var().item() == pytest.approx(0.25 / (2 * 0.2 + 1), rel=0.05)
