import pytest
import torch
from helpers import assert_minimises, batch, before, make, steps_of
from torch.nn.functional import cross_entropy

from cirl.methods.eisnet import some_of
from cirl.methods.jigen import permutations, shuffle

x, y, d = batch()


def unit(vectors):
    return vectors / vectors.square().sum(1, keepdim=True).sqrt()


def naive_triplet(q, k, y, memory, labels, margin):
    """All hard negatives of all pairs, one by one."""
    losses = []
    for i in range(len(y)):
        for j in range(i + 1, len(y)):
            for n in range(len(memory)):
                if y[i] == y[j] and labels[n] >= 0 and labels[n] != y[i]:
                    loss = (q[i] - k[j]).square().sum() - (q[i] - memory[n]).square().sum() + margin
                    if 0 < loss < margin:
                        losses.append(loss)
    return sum(losses) / len(losses) if losses else q.sum() * 0


def drawn_orders(whole, count, seed):
    torch.manual_seed(seed)
    uniform, orders = torch.rand(12), torch.randint(1, count + 1, (12,))
    return torch.tensor([0 if u < whole else k for u, k in zip(uniform.tolist(), orders.tolist(), strict=True)])


def warm(learner, steps=2):
    """The learner after some steps, so that the average and the memory differ from the start."""
    for step in range(steps):
        torch.manual_seed(step)
        learner.update(x.flip(0), y.flip(0), d, 0)
    return learner


# update


@pytest.mark.parametrize(
    ("method", "wholes"),
    [
        ("eisnet", 9),
        ("eisnet+jigsaw=0.2+triplet=3+margin=0.5+whole=0.5+permutations=7", 6),
        ("eisnet+whole=1+bank=20", 12),
        ("eisnet+whole=0+triplet=0", 0),
        ("eisnet+jigsaw=0+bank=12", 9),
    ],
)
def test_eisnet_minimises_classification_jigsaw_and_triplets(method, wholes):
    learner = warm(make(method))
    twin, v = before(learner), learner.values
    p = drawn_orders(v["whole"], int(v["permutations"]), seed=4)
    assert (p == 0).sum() == wholes
    orders = torch.cat([torch.arange(9)[None], permutations(int(v["permutations"]))])
    r = twin.encoder(shuffle(x, orders[p]))
    L_cls = -sum(twin.h1(r).log_softmax(1)[i, y[i]] for i in range(12)) / 12
    L_jig = cross_entropy(twin.jigsaw(r), p)
    k = unit(twin.average(x)).detach()
    memory, labels = torch.cat([twin.memory, k])[12:], torch.cat([twin.labels, y])[12:]
    L_tri = naive_triplet(unit(twin.embedding(r)), k, y, memory, labels, v["margin"])
    assert L_tri > 0
    loss = L_cls + v["jigsaw"] * L_jig + v["triplet"] * L_tri
    terms, (step,) = steps_of(learner, (x, y, d), 0, seed=4)
    named = dict(loss=loss, L_cls=L_cls, L_jig=L_jig, L_tri=L_tri)
    assert terms == pytest.approx({name: value.item() for name, value in named.items()}, rel=1e-4)
    assert {name.split(".")[0] for name in step.gradients} == {"encoder", "h1", "jigsaw", "embedding"}
    assert step.optimizer == 0
    assert_minimises(step, twin, loss, rtol=1e-3)


def test_with_more_hard_negatives_than_K_some_are_drawn_for_each_pair():
    """One pair: the loss with K = 1 is that of any one of its hard negatives."""
    learner = warm(make("eisnet+K=1"))
    q, k, labels = learner.memory[-2:], learner.memory[-4:-2], torch.tensor([0, 0])
    near = (q[0] - k[1]).square().sum()
    losses = near - (q[0] - learner.memory).square().sum(1) + learner.values["margin"]
    hard = losses[(losses > 0) & (losses < learner.values["margin"]) & (learner.labels > 0)]
    drawn = torch.stack([learner.triplet(q, k, labels) for _ in range(100)])
    assert len(hard) > 3 and len(drawn.unique()) == len(hard.unique())
    assert (drawn[:, None] - hard[None]).abs().amin(1).max() < 1e-5


# the memory


def test_the_memory_holds_the_newest_embeddings_and_their_classes():
    learner = make("eisnet+bank=20")
    assert learner.memory.shape == (20, 128) and (learner.labels == -1).all()
    first = unit(learner.average.eval()(x))
    learner.update(x, y, d, 0)
    torch.testing.assert_close(learner.memory[8:], first)
    assert learner.labels.tolist() == [-1] * 8 + y.tolist()
    second = unit(learner.average.eval()(x[:5].flip(3)))
    learner.update(x[:5].flip(3), y[:5], d[:5], 0)
    torch.testing.assert_close(learner.memory, torch.cat([torch.zeros(3, 128), first, second]))
    assert learner.labels.tolist() == [-1] * 3 + y.tolist() + y[:5].tolist()
    for _ in range(2):
        learner.update(x, y, d, 0)
    assert learner.labels.tolist() == [*y[4:].tolist(), *y.tolist()] and not learner.memory.requires_grad


def test_the_default_memory_and_embedding_are_the_authors():
    learner = make("eisnet")
    assert learner.memory.shape == (1024, 128) and learner.jigsaw.out_features == 31


# triplets


def test_triplets_by_hand():
    """Pair (0, 1) of class 0: |q_0 - k_1|^2 = 2 - 2 * 0.6 = 0.8, margin 1; hard negatives lie between 0.8 and 1.8."""
    learner = make("eisnet+bank=6+margin=1")
    q, k = torch.zeros(3, 128), torch.zeros(3, 128)
    q[:, 0] = 1
    k[1, :2] = torch.tensor([0.6, 0.8])
    cosines = [0.8, 0.5, 0.2, 0.2, 0.0, 0.3]  # squared distances 0.4, 1.0, 1.6, 1.6, 2.0, 1.4
    learner.memory = torch.zeros(6, 128)
    learner.memory[:, 0] = torch.tensor(cosines)
    learner.memory[:, 1] = (1 - learner.memory[:, 0] ** 2).sqrt()
    learner.labels = torch.tensor([1, 2, 0, 1, 1, -1])  # too near, hard, own class, hard, too far, empty
    loss = learner.triplet(q, k, torch.tensor([0, 0, 1]))
    assert loss.item() == pytest.approx(((0.8 - 1.0 + 1) + (0.8 - 1.6 + 1)) / 2)


def test_triplets_are_the_naive_loop():
    learner, generator = make("eisnet+bank=40"), torch.Generator().manual_seed(0)
    for margin in (0.2, 2.0):
        learner.values["margin"] = margin
        raw, k = (unit(torch.randn(9, 128, generator=generator)) for _ in range(2))
        q = unit(raw.requires_grad_())
        labels = torch.randint(3, (9,), generator=generator)
        learner.memory = unit(torch.randn(40, 128, generator=generator))
        learner.labels = torch.randint(-1, 3, (40,), generator=generator)
        ours = learner.triplet(q, k, labels)
        naive = naive_triplet(q, k, labels, learner.memory, learner.labels, margin)
        torch.testing.assert_close(ours, naive)
        torch.testing.assert_close(*(torch.autograd.grad(loss, raw, retain_graph=True)[0] for loss in (ours, naive)))


@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [1, 1, 1, 1]])
def test_without_pairs_or_without_negatives_there_is_no_triplet(labels):
    learner = make("eisnet+bank=4")
    terms = learner.update(x[:4], torch.tensor(labels), d[:4], 0)
    assert terms["L_tri"] == 0 and terms["loss"] == pytest.approx(terms["L_cls"] + 0.7 * terms["L_jig"])


def test_at_most_K_are_kept_of_each_row_and_all_where_they_are_fewer():
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(50, 30, generator=generator) < torch.linspace(0, 1, 50)[:, None]
    counts = torch.zeros(50, 30)
    for _ in range(200):
        kept = some_of(mask, 5)
        assert (kept <= mask).all() and torch.equal(kept.sum(1), mask.sum(1).clamp_max(5))
        counts += kept
    share = counts[-1] / 200  # of a full row: each is kept as often as any other
    assert (share - 5 / 30).abs().max() < 0.1
    assert torch.equal(some_of(mask, 100), mask) and some_of(mask[:0], 5).shape == (0, 30)


# the average


def test_the_average_follows_the_parameters_with_the_momentum():
    learner = make("eisnet+momentum=0.6")
    mean = {name: value.clone() for name, value in learner.average.named_parameters()}
    for momentum in (0.5, 0.6, 0.6):
        learner.update(x, y, d, 0)
        current = dict(torch.nn.Sequential(learner.encoder, learner.embedding).named_parameters())
        mean = {name: momentum * old + (1 - momentum) * current[name] for name, old in mean.items()}
        for name, value in learner.average.named_parameters():
            torch.testing.assert_close(value, mean[name])
            assert not value.requires_grad


def test_the_average_starts_as_the_network_and_sees_its_running_statistics_in_evaluation_mode():
    learner = make("eisnet", backbone="resnet18", weights="none", dim=16)
    for mean, value in zip(learner.average[0].parameters(), learner.encoder.parameters(), strict=True):
        assert torch.equal(mean, value)
    modes = []
    learner.average[0].register_forward_hook(lambda net, *_: modes.append(net.training))
    learner.update(x, y, d, 0)
    assert modes == [False] and learner.encoder.training
    for mean, value in zip(learner.average[0].buffers(), learner.encoder.buffers(), strict=True):
        assert torch.equal(mean, value)
    assert not torch.equal(learner.encoder.backbone.bn1.running_mean, torch.zeros(64))


def test_no_gradient_passes_through_the_average():
    learner = make("eisnet")
    assert not learner.averaged(x).requires_grad
    torch.testing.assert_close(learner.averaged(x).square().sum(1), torch.ones(12))


def test_the_memory_is_part_of_the_state_and_the_orders_are_not():
    assert {"memory", "labels", "steps"} <= set(make("eisnet").state_dict())
    assert "orders" not in make("eisnet").state_dict()
