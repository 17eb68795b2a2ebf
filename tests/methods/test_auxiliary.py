import torch
from helpers import make

from cirl.methods.auxiliary import adam


def test_adam_follows_the_rate_and_the_schedule_of_the_run():
    learner = make("deepall", epochs=10, schedule="0.5", recipe="released+clip=0")
    one, other = torch.nn.Linear(2, 1), torch.nn.Linear(3, 1)
    optimizer = adam(0.01, one, other, betas=(0.5, 0.999))
    assert [len(group["params"]) for group in optimizer.param_groups] == [2, 2]
    for epoch, rate in ((0, 0.01), (9, 0.001)):
        before = one.weight.detach().clone()
        learner.move(optimizer, [torch.ones_like(p) for p in (*one.parameters(), *other.parameters())], epoch)
        torch.testing.assert_close(before - one.weight, torch.full((1, 2), rate), rtol=1e-4, atol=1e-7)


def test_adam_has_the_usual_betas_unless_others_are_asked_for():
    net = torch.nn.Linear(2, 1)
    assert adam(0.1, net).param_groups[0]["betas"] == (0.9, 0.999)
    assert adam(0.1, net, betas=(0.5, 0.9)).param_groups[0]["betas"] == (0.5, 0.9)
