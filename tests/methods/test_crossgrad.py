import pytest
import torch
from helpers import assert_minimises, batch, before, make, steps_of
from torch.nn.functional import cross_entropy

MEAN, STD = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


def logits_of(net, head, normalised):
    """Logits of images that are normalised already."""
    return head(net.project(net.backbone(normalised)))


def losses_by_hand(twin, x, y, d):
    """Both losses as Dassl has them, in normalised units throughout, and the gradients before they are bounded."""
    alpha, eps, bound = (twin.values[name] for name in ("alpha", "eps", "bound"))
    z = ((x - MEAN) / STD).requires_grad_()
    label = lambda z: cross_entropy(logits_of(twin.encoder, twin.h1, z), y)  # noqa: E731
    domain = lambda z: cross_entropy(logits_of(twin.domain[0], twin.domain[1], z), d)  # noqa: E731
    (up_d,), (up_l,) = torch.autograd.grad(domain(z), z), torch.autograd.grad(label(z), z)
    z = z.detach()
    z_d, z_l = (z + eps * up.clamp(-bound, bound) for up in (up_d, up_l))
    loss = (1 - alpha) * label(z) + alpha * label(z_d)
    loss_d = (1 - alpha) * domain(z) + alpha * domain(z_l)
    return loss, loss_d, label(z), domain(z), (up_d, up_l)


@pytest.mark.parametrize(
    "method", ["crossgrad", "crossgrad+eps=1000+alpha=0.3+bound=0.0003", "crossgrad+eps=50+alpha=0.8+bound=1"]
)
def test_each_network_of_crossgrad_trains_on_the_images_perturbed_by_the_other(method):
    learner = make(method)
    twin, (x, y, d) = before(learner), batch()
    loss, loss_d, L_cls, L_dom, ups = losses_by_hand(twin, x, y, d)
    if "0.0003" in method:
        for up in ups:
            beyond = (up.abs() > 0.0003).float().mean()
            assert 0.01 < beyond < 0.99  # some values are bounded, some are not
    terms, (first, second) = steps_of(learner, (x, y, d), epoch=0)
    named = {"loss": loss, "L_cls": L_cls, "L_dom": L_dom}
    assert terms == pytest.approx({name: value.item() for name, value in named.items()}, rel=1e-5)
    assert (first.optimizer, second.optimizer) == (0, 1)
    assert {name.split(".")[0] for name in first.gradients} == {"encoder", "h1"}
    assert {name.split(".")[0] for name in second.gradients} == {"domain"}
    assert_minimises(first, twin, loss)
    assert_minimises(second, twin, loss_d)
    assert not x.requires_grad  # the caller's batch is left as it was


def test_the_perturbation_of_crossgrad_is_bounded_in_normalised_units_and_climbs_the_mean_loss():
    learner = make("crossgrad+eps=2+bound=0.05")
    x, _, d = batch()
    x.requires_grad_()
    loss = 1e5 * cross_entropy(learner.domain(x), d)
    change = (learner.perturbed(x, loss) - x) / STD
    assert change.abs().amax((0, 2, 3)).tolist() == pytest.approx([0.1] * 3, rel=1e-4)
    small = make("crossgrad")
    before = cross_entropy(small.domain(x), d)
    assert cross_entropy(small.domain(small.perturbed(x, before)), d) > before


def test_the_domain_network_of_crossgrad_has_an_output_per_domain_and_the_rate_of_the_encoder():
    learner = make("crossgrad", lr=0.2)
    assert learner.domain[1].out_features == 4
    (group,) = learner.optimizers[1].param_groups
    assert group["base_lr"] == 0.2 and group["decays"] is True
