import pytest
import torch
from helpers import assert_minimises, batch, before, make, steps_of
from torch.nn.functional import cross_entropy

from cirl.methods.jigen import permutations, shuffle


def jigsaw(image, order):
    """Tile by tile; 32 pixels hold three tiles of 10 and an edge of 2, which stays."""
    result = image.clone()
    for to, source in enumerate(order):
        (r, c), (s, t) = divmod(to, 3), divmod(source, 3)
        result[:, 10 * r : 10 * r + 10, 10 * c : 10 * c + 10] = image[:, 10 * s : 10 * s + 10, 10 * t : 10 * t + 10]
    return result


@pytest.mark.parametrize(
    ("method", "wholes"),
    [("jigen", 9), ("jigen+whole=0.5+weight=0.3+permutations=7", 6), ("jigen+whole=1", 12), ("jigen+whole=0", 0)],
)
def test_jigen_minimises_the_class_loss_of_whole_images_and_the_jigsaw_loss_of_all(method, wholes):
    learner = make(method)
    twin, (x, y, _) = before(learner), batch()
    weight, whole, count = (learner.values[name] for name in ("weight", "whole", "permutations"))
    orders = [list(range(9)), *permutations(int(count)).tolist()]
    torch.manual_seed(4)
    uniform, drawn = torch.rand(12), torch.randint(1, len(orders), (12,))
    p = torch.tensor([0 if u < whole else k for u, k in zip(uniform.tolist(), drawn.tolist(), strict=True)])
    r = twin.encoder(torch.stack([jigsaw(image, orders[k]) for image, k in zip(x, p.tolist(), strict=True)]))
    kept = [i for i in range(12) if p[i] == 0]
    assert len(kept) == wholes
    L_cls = sum((cross_entropy(twin.h1(r[i]), y[i]) for i in kept), torch.zeros(())) / max(1, len(kept))
    L_jig = cross_entropy(twin.jigsaw(r), p)
    expected = L_cls + weight * L_jig
    terms, (step,) = steps_of(learner, batch(), epoch=0, seed=4)
    named = {"loss": expected, "L_cls": L_cls, "L_jig": L_jig}
    assert terms == pytest.approx({name: value.item() for name, value in named.items()}, rel=1e-5)
    assert step.optimizer == 0 and "jigsaw.weight" in step.gradients
    assert_minimises(step, twin, expected)


def test_the_jigsaw_permutations_are_distinct_and_far_apart_and_invertible():
    orders = permutations(30)
    assert len({tuple(order.tolist()) for order in orders}) == 30
    assert all(sorted(order.tolist()) == list(range(9)) for order in orders)
    everything = torch.cat([torch.arange(9)[None], orders])
    distances = (everything[:, None] != everything[None]).sum(2) + 9 * torch.eye(31)
    assert distances.min() >= 7
    for size in (30, 32, 33):
        images = torch.rand(30, 3, size, size)
        shuffled = shuffle(images, orders)
        assert not torch.equal(shuffled, images)
        assert torch.equal(shuffle(shuffled, orders.argsort(1)), images)


def test_the_permutations_never_change():
    """The jigsaw head of a checkpoint numbers them, so another draw would make its outputs mean other orders."""
    assert permutations(2).tolist() == [[1, 4, 0, 5, 3, 8, 7, 6, 2], [2, 0, 1, 8, 6, 7, 3, 4, 5]]
    assert torch.equal(permutations(7), permutations(30)[:7])


def test_tiles_go_where_the_order_says():
    image = torch.arange(9.0).view(1, 1, 3, 3)
    order = torch.tensor([[8, 0, 1, 2, 3, 4, 5, 6, 7]])
    assert shuffle(image, order).flatten().tolist() == order.flatten().tolist()
    assert image.flatten().tolist() == list(range(9))  # the image itself is left as it was


def test_the_orders_are_no_part_of_a_checkpoint():
    assert "orders" not in make("jigen").state_dict()
