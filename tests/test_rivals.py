"""Each comparison method's own term, against a naive loop or by its properties."""

import io
import shutil

import pytest
import torch
from torch.nn.functional import cross_entropy

from cirl import runs
from cirl.config import Run
from cirl.data import loaders
from cirl.errors import UserError
from cirl.methods import METHODS
from cirl.methods.base import parameters_of
from cirl.methods.csd import overlap
from cirl.methods.jigen import permutations, shuffle
from cirl.methods.mixstyle import mixed_style
from cirl.methods.mixup import mixed
from cirl.methods.rsc import muting
from cirl.methods.sagnet import content_randomised, style_randomised
from cirl.methods.styles import restyled, style

CLASSES = 4
x, y, d = torch.rand(12, 3, 32, 32), torch.arange(12) % CLASSES, torch.tensor([0, 1, 3] * 4)


def make(method, **more):
    return METHODS[method.split("+")[0]](Run(method=method, **more), CLASSES)


# what they share


def test_the_stages_one_after_the_other_are_the_encoder():
    for backbone in ("convnet32", "resnet18"):
        encoder = make("deepall", backbone=backbone, dim=16).encoder.eval()
        maps = encoder.normalise(x)
        for stage in encoder.stages():
            maps = stage(maps)
        torch.testing.assert_close(maps, encoder(x))


# CORAL, MMD, CCSA


# Mixup, GroupDRO, MTL, CSD, RSC


def test_mixup_is_linear_between_the_two_images():
    lam = torch.tensor([0.0, 0.25, 1.0])
    result = mixed(x[:3], x[3:6], lam)
    assert torch.equal(result[0], x[3]) and torch.equal(result[2], x[2])
    torch.testing.assert_close(result[1], 0.25 * x[1] + 0.75 * x[4])


def test_mtl_keeps_the_average_of_each_domains_mean_features():
    learner = make("mtl+ema=0.9")
    r = torch.randn(12, 128)
    for _ in range(3):
        joined = learner.embed(r, d)
    expected = (1 - 0.9**3) * r[d == 1].mean(0)
    torch.testing.assert_close(learner.embeddings[1], expected)
    torch.testing.assert_close(joined[1], expected)
    assert (learner.embeddings[2] == 0).all()  # the target is never embedded


def test_the_overlap_of_csd_is_zero_for_orthogonal_parts_and_one_for_parallel_ones():
    W = torch.zeros(2, 3, 4)
    W[0, :, 0], W[1, :, 1] = 2.0, 5.0
    assert overlap(W) == 0
    W[1] = 3 * W[0]
    assert overlap(W).item() == pytest.approx(0.5)  # two of four entries of each class's Gram matrix are 1


def test_csd_makes_the_specific_part_orthogonal_to_the_common_one():
    learner = make("csd+ortho=20", lr=0.02)
    learner.specific.W.data = learner.h1.weight.data[None].clone()  # parallel at first
    first = learner.update(x, y, d, 0)["L_ortho"]
    for _ in range(60):
        last = learner.update(x, y, d, 0)["L_ortho"]
    assert first == pytest.approx(0.5, abs=0.01) and last < 0.02


def test_rsc_mutes_exactly_the_stated_share_the_largest_gradients():
    gradient = torch.randn(5, 30)
    mask = muting(gradient, 1 / 3)
    assert (mask.sum(1) == 20).all() and set(mask.unique().tolist()) == {0.0, 1.0}
    for row, muted in zip(gradient, mask == 0, strict=True):
        assert row[muted].min() > row[~muted].max()
    assert (muting(gradient, 0.0) == 1).all()


def test_rsc_challenges_the_stated_share_of_the_images(monkeypatch):
    learner, seen = make("rsc+b=0.25"), []
    learner.h1.register_forward_pre_hook(lambda _, r: seen.append(r[0]))
    learner.update(x, y, d, epoch=4)
    whole, _, used = seen
    changed = ((used == 0) & (whole != 0)).any(1)
    assert changed.sum() == 3


# CrossGrad, JiGen, SagNet, MLDG, MixStyle


def test_the_perturbation_of_crossgrad_is_bounded_and_climbs_the_loss():
    learner = make("crossgrad+eps=2+bound=0.05")
    images = x.clone().requires_grad_()
    loss = 1000 * cross_entropy(learner.domain(images), d, reduction="sum")
    change = learner.perturbed(images, loss) - images
    assert change.abs().max().item() == pytest.approx(0.1, rel=1e-4)
    small = make("crossgrad+eps=0.01")
    before = cross_entropy(small.domain(images), d, reduction="sum")
    after = cross_entropy(small.domain(small.perturbed(images, before)), d, reduction="sum")
    assert after > before


def test_both_networks_of_crossgrad_learn():
    learner = make("crossgrad")
    before = {name: p.clone() for name, p in learner.named_parameters()}
    learner.update(x, y, d, 0)
    assert {n.split(".")[0] for n, p in learner.named_parameters() if not torch.equal(before[n], p)} == {
        "encoder",
        "h1",
        "domain",
    }


def test_the_jigsaw_permutations_are_distinct_and_invertible():
    orders = permutations(30)
    assert len({tuple(order.tolist()) for order in orders}) == 30
    assert all(sorted(order.tolist()) == list(range(9)) for order in orders)
    assert not (orders == torch.arange(9)).all(1).any()
    for size in (30, 32, 33):
        images = torch.rand(30, 3, size, size)
        shuffled = shuffle(images, orders)
        assert not torch.equal(shuffled, images)
        assert torch.equal(shuffle(shuffled, orders.argsort(1)), images)


def test_tiles_go_where_the_order_says():
    image = torch.arange(9.0).view(1, 1, 3, 3)
    order = torch.tensor([[8, 0, 1, 2, 3, 4, 5, 6, 7]])
    assert shuffle(image, order).flatten().tolist() == order.flatten().tolist()


def test_jigen_classifies_whole_images_only():
    learner = make("jigen+whole=1")
    before = cross_entropy(learner.predict(x), y).item()
    assert learner.update(x, y, d, 0)["L_cls"] == pytest.approx(before, rel=1e-5)
    assert make("jigen+whole=0").update(x, y, d, 0)["L_cls"] == 0


def test_restyled_maps_have_the_other_style_and_their_own_content():
    maps, other = torch.randn(4, 5, 6, 6), 3 * torch.randn(4, 5, 6, 6) + 1
    result = restyled(maps, *style(other))
    for ours, theirs in zip(style(result), style(other), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(restyled(result, *style(maps)), maps, rtol=1e-3, atol=1e-3)


def test_sagnet_randomises_style_or_content_and_leaves_the_other():
    maps, other = torch.randn(4, 5, 6, 6), torch.tensor([1, 2, 3, 0])
    one = torch.ones(4, 1, 1, 1)
    torch.testing.assert_close(style_randomised(maps, other, one), maps, rtol=1e-4, atol=1e-4)
    borrowed = style_randomised(maps, other, 0 * one)
    torch.testing.assert_close(style(borrowed)[0], style(maps)[0][other], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(style(content_randomised(maps, other))[0], style(maps)[0], rtol=1e-3, atol=1e-4)


def test_the_adversarial_loss_of_sagnet_moves_the_front_and_not_the_style_net(monkeypatch):
    learner, steps = make("sagnet"), []
    step = learner.step

    def watched(optimizer, loss, epoch):
        before = {name: p.clone() for name, p in learner.named_parameters()}
        step(optimizer, loss, epoch)
        steps.append({n.split(".")[0] for n, p in learner.named_parameters() if not torch.equal(before[n], p)})

    monkeypatch.setattr(learner, "step", watched)
    learner.update(x, y, d, 0)
    assert steps == [{"encoder", "h1"}, {"style_net"}]


def test_mixstyle_keeps_the_content_and_mixes_the_style():
    maps, other = torch.randn(3, 4, 5, 5), torch.tensor([1, 2, 0])
    torch.testing.assert_close(mixed_style(maps, other, torch.ones(3)), maps, rtol=1e-4, atol=1e-4)
    half = mixed_style(maps, other, torch.full((3,), 0.5))
    expected = (style(maps)[0] + style(maps)[0][other]) / 2
    torch.testing.assert_close(style(half)[0], expected, rtol=1e-3, atol=1e-4)


def test_mixstyle_changes_training_only():
    learner = make("mixstyle+p=1").eval()
    assert torch.equal(learner.predict(x), learner.predict(x))


def test_the_first_order_gradient_of_mldg_is_the_two_term_sum():
    learner, unseen = make("mldg+inner_lr=0.2+beta=0.7"), d == 1
    gradients, *_ = learner.meta_gradients(x, y, unseen)
    theta = parameters_of(learner.optimizers[0])
    own = torch.autograd.grad(cross_entropy(learner.predict(x[~unseen]), y[~unseen]), theta)
    with torch.no_grad():  # by hand: move the very parameters, take the gradient there, move back
        for p, g in zip(theta, own, strict=True):
            p -= 0.2 * g
    there = torch.autograd.grad(cross_entropy(learner.predict(x[unseen]), y[unseen]), theta)
    for gradient, a, b in zip(gradients, own, there, strict=True):
        torch.testing.assert_close(gradient, a + 0.7 * b, rtol=1e-3, atol=1e-6)


# all of them


def train(learner, data, epochs):
    for epoch in epochs:
        runs.seed_epoch(learner.run, epoch)
        learner.begin_epoch(data, epoch)
        for batch in data.train(epoch):
            learner.update(*batch, epoch)
    return learner


@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_is_stopped_and_restored_goes_on_to_the_same_bits(method, folder):
    """At every epoch, so for MatchDG also in the middle of both phases."""
    line = dict(weights="none", backbone="convnet32", image_size=32, batch_size=8, epochs=4)
    run = Run(f"folder:{folder}", "wool", method, **line)
    data, learner = loaders(run), METHODS[method](run, 2)
    whole = train(METHODS[method](run, 2), data, range(learner.epochs)).state_dict()
    for epoch in range(learner.epochs):
        kept = io.BytesIO(runs.serialized(train(learner, data, [epoch]).state()))
        learner = METHODS[method](run, 2)
        learner.restore(torch.load(kept, weights_only=True))
    assert all(torch.equal(value, whole[name]) for name, value in learner.state_dict().items())


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ("magic", "method='magic' is not possible; allowed: deepall, mix, cirl, fact"),
        ("mixup+alpha=-1", r"method='mixup\+alpha=-1' is not possible; allowed: for alpha a number from 0.001 upwards"),
        ("mixup+alpha=much", "for alpha a number"),
        ("ccsa+alpha=2", "for alpha a number from 0 to 1"),
        ("coral+beta=1", r"for coral the values gamma, written like coral\+gamma=1"),
        ("deepall+alpha=1", "for deepall no values"),
        ("rsc+f=nan", "for f a number from 0 to 1"),
        ("fact+beta=inf", "for beta a number from 0 upwards"),
    ],
)
def test_unknown_methods_and_values_get_one_sentence(method, says):
    with pytest.raises(UserError, match=says):
        Run(method=method)


@pytest.mark.parametrize(
    "method", ["coral", "mmd", "mixup", "groupdro", "mtl", "csd", "ccsa", "crossgrad", "mldg", "matchdg"]
)
def test_a_method_that_compares_domains_needs_two_sources(method, folder):
    shutil.rmtree(folder / "ink")
    with pytest.raises(UserError, match=f"method='{method}' needs two source domains; with target='wool' there is one"):
        Run(f"folder:{folder}", "wool", method)
    assert Run(f"folder:{folder}", "wool", "mix").sources == ("clay",)


def test_values_are_part_of_the_runs_name_where_they_are_not_the_defaults():
    assert Run(method="mixup+alpha=0.2").id == Run(method="mixup").id == "tiny-convnet32-mixup-street-s0"
    assert Run(method="mixup+alpha=0.40").method == "mixup+alpha=0.4"
    assert Run(method="mixup+alpha=0.4").id == "tiny-convnet32-mixup+alpha=0.4-street-s0"
    assert Run(method="mixup+alpha=0.4").values == {"alpha": 0.4}
    assert Run(method="rsc+f=0.33333333").values["f"] == 0.33333333  # a name keeps all digits


def test_the_authors_own_values_hold_where_they_gave_them():
    assert Run("officehome", "art", "fact").values["beta"] == 200 and Run("pacs", "photo", "fact").values["beta"] == 2
    sketch = Run("pacs", "sketch", "matchdg")
    assert (sketch.lr, sketch.weight_decay, sketch.values["weight"]) == (0.01, 0.001, 0.5)
    assert sketch.id == "pacs-resnet18-matchdg-sketch-s0"
    assert Run("pacs", "sketch", "coral").lr == 0.001
