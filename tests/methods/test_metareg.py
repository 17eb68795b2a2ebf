import pytest
import torch
from helpers import assert_minimises, batch, before, make, steps_of
from torch.nn.functional import cross_entropy

from cirl.methods.metareg import weighted_l1

x, y, d = batch()


def drawn(present, seed=3):
    """The domains a and b that a step with this seed chooses."""
    torch.manual_seed(seed)
    return [present[i] for i in torch.randperm(len(present))[:2]]


def with_phi(learner, seed=1):
    """The learner with a regulariser that is not zero."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in learner.phi:
        parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return learner


def naive_task_loss(learner, d):
    return sum(cross_entropy(learner.tasks[i](learner.psi(x))[row], y[row]) for row, i in enumerate(d.tolist())) / len(
        x
    )


# phase one


@pytest.mark.parametrize("domains", [[0, 1, 3] * 4, [1, 3] * 6])
def test_phase_one_minimises_the_cross_entropy_of_every_image_under_the_classifier_of_its_domain(domains):
    learner, d = make("metareg", epochs=20), torch.tensor(domains)
    twin = before(learner)
    L_task = naive_task_loss(twin, d)
    terms, (step, _) = steps_of(learner, (x, y, d), 9.9)
    assert step.optimizer == 1 and {name.split(".")[0] for name in step.gradients} == {"psi", "tasks"}
    assert terms["L_task"] == pytest.approx(L_task.item(), rel=1e-5)
    assert_minimises(step, twin, L_task)
    missing = {0, 1, 2, 3} - set(domains)
    assert all((step.gradients[f"tasks.{i}.weight"] == 0).all() for i in missing)
    assert all(torch.equal(learner.tasks[i].weight, twin.tasks[i].weight) for i in missing)


@pytest.mark.parametrize(("method", "steps", "alpha"), [("metareg", 3, 0.01), ("metareg+steps=2+alpha=0.05", 2, 0.05)])
def test_phase_one_moves_phi_by_the_loss_on_another_domain_after_the_inner_steps(method, steps, alpha):
    learner = with_phi(make(method, epochs=20))
    twin = before(learner)
    twin.step(twin.optimizers[1], naive_task_loss(twin, d), 0)  # the meta step sees psi and theta after the first one
    a, b = drawn((0, 1, 3))
    W, c = (parameter.clone() for parameter in twin.tasks[a].parameters())
    P, q = twin.phi
    r = twin.psi(x).detach()
    for _ in range(steps):
        own = cross_entropy(r[d == a] @ W.T + c, y[d == a])
        gradient_W, gradient_c = torch.autograd.grad(own, (W, c), create_graph=True)
        W, c = W - alpha * (gradient_W + P * W.sign()), c - alpha * (gradient_c + q * c.sign())
    L_meta = cross_entropy(r[d == b] @ W.T + c, y[d == b])
    terms, (_, step) = steps_of(learner, (x, y, d), 0)
    assert step.optimizer == 2 and {*step.gradients} == {"phi.0", "phi.1"}
    assert terms["L_meta"] == pytest.approx(L_meta.item(), rel=1e-4)
    assert terms["loss"] == pytest.approx(terms["L_task"] + L_meta.item(), rel=1e-4)
    assert_minimises(step, twin, L_meta, rtol=1e-3)
    for phi, old, name in zip(learner.phi, twin.phi, step.gradients, strict=True):  # plain gradient descent
        torch.testing.assert_close(phi, old - alpha * step.gradients[name])


def test_every_pair_of_different_domains_is_drawn():
    assert {tuple(drawn((0, 1, 3), seed)) for seed in range(40)} == {
        (a, b) for a in (0, 1, 3) for b in (0, 1, 3) if a != b
    }


def test_the_meta_gradient_is_that_of_finite_differences():
    learner = with_phi(make("metareg+steps=4+alpha=0.2").double())
    generator = torch.Generator().manual_seed(2)
    r = torch.randn(12, 128, generator=generator, dtype=torch.double)
    theta = [*learner.tasks[1].parameters()]

    def loss():
        W, c = learner.unroll(theta, r[:6], y[:6])
        return cross_entropy(r[6:] @ W.T + c, y[6:])

    gradients = torch.autograd.grad(loss(), [*learner.phi])
    for phi, gradient, places in zip(learner.phi, gradients, ([(0, 0), (1, 7), (3, 99)], [(0,), (2,)]), strict=True):
        for place in places:
            ends = []
            for shift in (1e-4, -2e-4):
                phi.data[place] += shift
                ends.append(loss().item())
            phi.data[place] += 1e-4
            assert gradient[place].item() == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-5)
            assert abs(gradient[place].item()) > 1e-7


def test_phi_learns_to_shrink_the_weights_that_mislead_on_other_domains():
    """Two dimensions: one is right in both domains, the other is right in one and wrong in the other."""
    learner = make("metareg+steps=2+alpha=0.5", dim=2, epochs=20)
    labels, domains = torch.tensor([0, 1] * 4), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    sign = 2.0 * labels - 1
    images = torch.stack([sign, torch.where(domains == 0, sign, -sign)], 1)
    learner.psi = torch.nn.Identity()
    learner.optimizers[1] = learner.sgd((learner.tasks, 1.0, False))
    for _ in range(200):
        learner.update(images, labels, domains, 0)
    weights = learner.phi[0][:2]
    assert (weights[:, 1] > 0).all() and (weights[:, 0] < weights[:, 1]).all()


def test_a_batch_of_one_domain_leaves_phi_as_it_is():
    learner = with_phi(make("metareg"))
    twin = before(learner)
    terms, (step,) = steps_of(learner, (x, y, torch.ones(12, dtype=torch.long)), 0)
    assert step.optimizer == 1 and terms["L_meta"] == 0 and terms["loss"] == terms["L_task"]
    assert all(torch.equal(new, old) for new, old in zip(learner.phi, twin.phi, strict=True))


# phase two


@pytest.mark.parametrize("epoch", [10, 29.9])
def test_phase_two_minimises_the_cross_entropy_and_the_weighted_l1_norm_of_the_classifier(epoch):
    learner = with_phi(make("metareg", epochs=20))
    twin = before(learner)
    L_cls = cross_entropy(twin.h1(twin.encoder(x)), y)
    L_reg = sum(learner.phi[0][c, n] * twin.h1.weight[c, n].abs() for c in range(4) for n in range(128)) + sum(
        learner.phi[1][c] * twin.h1.bias[c].abs() for c in range(4)
    )
    terms, (step,) = steps_of(learner, (x, y, d), epoch)
    expected = dict(loss=L_cls + L_reg, L_cls=L_cls, L_reg=L_reg)
    assert terms == pytest.approx({name: value.item() for name, value in expected.items()}, rel=1e-4)
    assert step.optimizer == 0 and {name.split(".")[0] for name in step.gradients} == {"encoder", "h1"}
    assert_minimises(step, twin, L_cls + L_reg)


def test_each_phase_moves_its_own_parameters():
    learner = with_phi(make("metareg", epochs=20))
    for epoch, parts in ((0, {"psi", "tasks", "phi"}), (9.99, {"psi", "tasks", "phi"}), (10, {"encoder", "h1"})):
        start = {name: parameter.clone() for name, parameter in learner.named_parameters()}
        learner.update(x, y, d, epoch)
        moved = {name for name, parameter in learner.named_parameters() if not torch.equal(start[name], parameter)}
        assert {name.split(".")[0] for name in moved} == parts


def test_phase_one_takes_half_as_many_epochs_and_comes_before_the_run():
    for epochs, first in ((50, 25), (5, 2), (1, 1)):
        learner = make("metareg", epochs=epochs)
        assert (learner.first_phase, learner.epochs) == (first, first + epochs)


def test_phase_one_has_constant_rates_and_phase_two_the_schedule_of_the_run():
    learner = make("metareg+alpha=0.07", epochs=10, lr=0.5, schedule="0.2")
    for epoch, encoder in ((4, None), (5, 0.5), (6.9, 0.05), (14, 0.05)):
        learner.update(x, y, d, epoch)
        rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in learner.optimizers]
        assert encoder is None or rates[0] == pytest.approx([encoder] * 2)
        assert rates[1] == pytest.approx([0.5, 0.5]) and rates[2] == pytest.approx([0.07])


def test_both_phases_begin_with_the_same_features_and_no_regulariser():
    learner = make("metareg").eval()
    assert torch.equal(learner.psi(x), learner.encoder(x))
    assert all((phi == 0).all() for phi in learner.phi)
    assert [phi.shape for phi in learner.phi] == [parameter.shape for parameter in learner.h1.parameters()]
    weights = [task.weight for task in learner.tasks] + [learner.h1.weight]
    assert len(weights) == 5 and all(not torch.equal(w, v) for i, w in enumerate(weights) for v in weights[:i])


def test_the_running_statistics_of_the_encoder_belong_to_phase_two():
    learner = make("metareg", epochs=4, backbone="resnet18", weights="none", dim=16)
    start = learner.encoder.backbone.bn1.running_mean.clone()
    learner.update(x, y, d, 0)
    assert torch.equal(learner.encoder.backbone.bn1.running_mean, start)
    learner.update(x, y, d, 2)
    assert not torch.equal(learner.encoder.backbone.bn1.running_mean, start)


def test_the_weighted_l1_norm_by_hand():
    phi = [torch.tensor([[1.0, -2.0]]), torch.tensor([0.5])]
    theta = [torch.tensor([[-3.0, 4.0]]), torch.tensor([-2.0])]
    assert weighted_l1(phi, theta) == 3 - 8 + 1
