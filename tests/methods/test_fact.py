import math

import pytest
import torch
from helpers import assert_minimises, batch, before, make, steps_of
from torch import nn

from cirl import fourier
from cirl.methods.fact import co_teacher

x, y, d = batch()


def estranged(*arguments, **more):
    """A learner whose teacher is not its student, as after some steps."""
    learner = make(*arguments, **more)
    generator = torch.Generator().manual_seed(9)
    for parameter in learner.teacher.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return learner


def divergence(teacher, student, temperature):
    """KL(teacher || student) of softened logits, the mean over the images."""
    p, q = (teacher / temperature).softmax(1), (student / temperature).softmax(1)
    return sum((p[i] * (p[i].log() - q[i].log())).sum() for i in range(12)) / 12


@pytest.mark.parametrize(
    ("method", "epoch", "beta", "temperature"),
    [
        ("fact", 0, 2 * math.exp(-5), 10),
        ("fact", 2.9, 2 * math.exp(-1.8), 10),
        ("fact", 5, 2, 10),
        ("fact", 30, 2, 10),
        ("fact+beta=70+temperature=3", 9, 70, 3),
    ],
)
def test_fact_minimises_cross_entropy_and_the_crossed_divergences_from_the_teacher(method, epoch, beta, temperature):
    learner = estranged(method, epochs=50, recipe="paper", eta=0.8)
    twin = before(learner)
    torch.manual_seed(3)
    partner, lam = fourier.partners(d, "random"), 0.8 * torch.rand(12)
    x_a = fourier.intervene(x, x[partner], lam)
    s_o, s_a = (twin.h1(twin.encoder(view)) for view in (x, x_a))
    t_o, t_a = (twin.teacher(view).detach() for view in (x, x_a))
    L_cls = -sum(s.log_softmax(1)[i, y[i]] / 24 for s in (s_o, s_a) for i in range(12))
    L_cot = divergence(t_o, s_a, temperature) + divergence(t_a, s_o, temperature)
    loss = L_cls + beta * L_cot
    terms, (step,) = steps_of(learner, batch(), epoch)
    expected = dict(loss=loss.item(), L_cls=L_cls.item(), L_cot=L_cot.item())
    assert terms == pytest.approx(expected, rel=1e-4)
    assert {name.split(".")[0] for name in step.gradients} == {"encoder", "h1"}
    assert_minimises(step, twin, loss)


def test_the_ramp_of_beta_takes_a_tenth_of_the_run():
    for epochs, epoch, share in ((20, 1, math.exp(-1.25)), (20, 2, 1), (5, 0, math.exp(-5)), (5, 1, 1)):
        terms, _ = steps_of(estranged("fact", epochs=epochs), batch(), epoch)
        assert terms["loss"] == pytest.approx(terms["L_cls"] + 2 * share * terms["L_cot"], rel=1e-5)


def test_the_first_step_brings_the_teacher_half_way_to_the_student():
    """m = min(1 - 1/(t + 1), 0.9995) with t = 1 in the first step."""
    learner = make("fact")
    start = [parameter.clone() for parameter in learner.teacher.parameters()]
    learner.update(*batch(), 0)
    student = [*learner.encoder.parameters(), *learner.h1.parameters()]
    for old, new, mean in zip(start, student, learner.teacher.parameters(), strict=True):
        torch.testing.assert_close(mean, 0.5 * old + 0.5 * new)


def test_the_teacher_is_the_closed_form_average_of_the_students():
    learner = make("fact+momentum=0.7", epochs=50)
    students = [learner.h1.weight.detach().clone()]
    for epoch in range(6):
        learner.update(*batch(), epoch)
        students.append(learner.h1.weight.detach().clone())
    m = [0.5, 2 / 3, 0.7, 0.7, 0.7, 0.7]
    shares = [math.prod(m)] + [(1 - m[t]) * math.prod(m[t + 1 :]) for t in range(6)]
    assert sum(shares) == pytest.approx(1)
    expected = sum(share * student for share, student in zip(shares, students, strict=True))
    torch.testing.assert_close(learner.teacher[1].weight, expected)
    assert (learner.teacher[1].weight - students[-1]).abs().max() > 1e-4


def test_without_its_bound_the_teacher_is_the_plain_mean_of_start_and_students():
    learner = make("fact+momentum=1")
    students = [learner.h1.bias.detach().clone()]
    for _ in range(4):
        learner.update(*batch(), 0)
        students.append(learner.h1.bias.detach().clone())
    torch.testing.assert_close(learner.teacher[1].bias, torch.stack(students).mean(0))


def test_the_average_covers_parameters_and_leaves_the_running_statistics_of_the_teacher():
    learner = make("fact")
    for network in (learner.encoder, learner.teacher[0]):
        network.backbone = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.LazyLinear(128))
        network(x)
    learner.encoder.backbone[0].running_mean += 1
    start = learner.teacher[0].backbone[0].running_mean.clone()
    learner.average()
    torch.testing.assert_close(learner.teacher[0].backbone[0].running_mean, start)
    expected = learner.encoder.backbone[2].weight
    assert not torch.equal(learner.teacher[0].backbone[2].weight, expected)


def test_the_teacher_sees_the_batch_in_training_mode_without_gradient_and_the_student_is_evaluated():
    learner, seen = make("fact"), []
    learner.teacher.register_forward_hook(lambda net, _, logits: seen.append((net.training, logits.requires_grad)))
    learner.update(*batch(), 0)
    assert seen == [(True, False)]
    assert not any(p.requires_grad for p in learner.teacher.parameters())
    assert not any(name.startswith("teacher") and p.grad is not None for name, p in learner.named_parameters())
    torch.testing.assert_close(learner.eval().predict(x), learner.h1(learner.encoder(x)))


def test_the_count_of_steps_is_part_of_the_state():
    learner, other = make("fact"), make("fact", seed=1)
    for _ in range(3):
        learner.update(*batch(), 0)
    other.restore(learner.state())
    assert other.steps == 3


def test_the_co_teacher_loss_is_the_crossed_divergence():
    student, teacher = torch.randn(24, 5), torch.randn(24, 5)
    expected = divergence(teacher[:12], student[12:], 10) + divergence(teacher[12:], student[:12], 10)
    torch.testing.assert_close(co_teacher(student, teacher, 10), expected)
    same = torch.randn(3, 5).repeat(2, 1)
    assert co_teacher(same, same, 10).abs() < 1e-6
