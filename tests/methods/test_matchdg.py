import io
import math

import numpy as np
import pytest
import torch
from helpers import assert_minimises, batch, before, make, steps_of
from PIL import Image

from cirl.data.batches import loaders
from cirl.methods import build
from cirl.methods.matchdg import contrastive, random_pairs
from cirl.run.checkpoint import serialized
from cirl.run.config import Run

x, y, d = batch()


def rearing(folder, **more):
    """A learner on the folder's images, with its first matches."""
    small = dict(weights="none", backbone="convnet32", dim=16, image_size=32, batch_size=4, epochs=4)
    learner = build(Run(f"folder:{folder}", "wool", "matchdg", **(small | more)), 2)
    learner.begin_epoch(loaders(learner.run), 0)
    return learner


@pytest.fixture
def matched(folder):
    return rearing(folder)


# update


def with_pairs(learner):
    """The learner with fixed pairs in place of drawn ones."""
    a, m = torch.rand(2, 6, 3, 32, 32, generator=torch.Generator().manual_seed(7))
    labels = torch.tensor([0, 1, 2, 3, 0, 0])
    counts = []
    learner.data = "some"
    learner.pairs = lambda count: counts.append(count) or (a, m, labels)
    return a, m, labels, counts


def naive_contrast(phi, labels, temperature):
    """Rows i and i + n are a match; images of other classes are the negatives."""
    n, total = len(phi) // 2, 0.0
    for i in range(2 * n):
        s = [(phi[i] @ phi[j] / phi[i].norm() / phi[j].norm() / temperature).exp() for j in range(2 * n)]
        positive, negatives = s[(i + n) % (2 * n)], sum(s[j] for j in range(2 * n) if labels[j % n] != labels[i % n])
        total = total - (positive / (positive + negatives)).log()
    return total / (2 * n)


@pytest.mark.parametrize(
    ("method", "epoch", "share", "temperature"),
    [("matchdg", 0, 1 / 11, 0.05), ("matchdg", 6.7, 7 / 11, 0.05), ("matchdg+temperature=0.5", 9.9, 10 / 11, 0.5)],
)
def test_phase_one_minimises_the_contrast_of_matches_on_the_matcher(method, epoch, share, temperature):
    learner = make(method, epochs=20)
    twin = before(learner)
    a, m, labels, counts = with_pairs(learner)
    L_match = naive_contrast(torch.cat([twin.matcher(a), twin.matcher(m)]), labels, temperature)
    loss = share * L_match
    terms, (step,) = steps_of(learner, (x, y, d), epoch)
    assert terms == pytest.approx(dict(loss=loss.item(), L_match=L_match.item()), rel=1e-4)
    assert step.optimizer == 1 and all(name.startswith("matcher") for name in step.gradients) and counts == [6]
    assert_minimises(step, twin, loss, rtol=1e-3)


@pytest.mark.parametrize(
    ("method", "epoch", "weight"),
    [
        ("matchdg", 10, 1 / 21),
        ("matchdg", 19.4, 10 / 21),
        ("matchdg+weight=5", 29.9, 5 * 20 / 21),
    ],
)
def test_phase_two_minimises_cross_entropies_and_the_squared_distance_of_matched_logits(method, epoch, weight):
    learner = make(method, epochs=20)
    twin = before(learner)
    a, m, labels, counts = with_pairs(learner)
    logits, of_a, of_m = (twin.h1(twin.encoder(images)) for images in (x, a, m))
    L_cls = -sum(logits.log_softmax(1)[i, y[i]] for i in range(12)) / 12
    L_matched = -sum(part.log_softmax(1)[i, labels[i]] for part in (of_a, of_m) for i in range(6)) / 12
    L_match = sum(((of_a[i] - of_m[i]) ** 2).sum() for i in range(6)) / 6
    loss = L_cls + L_matched + weight * L_match
    terms, (step,) = steps_of(learner, (x, y, d), epoch)
    expected = dict(loss=loss, L_cls=L_cls, L_matched=L_matched, L_match=L_match)
    assert terms == pytest.approx({name: value.item() for name, value in expected.items()}, rel=1e-4)
    assert step.optimizer == 0 and {name.split(".")[0] for name in step.gradients} == {"encoder", "h1"}
    assert counts == [6]
    assert_minimises(step, twin, loss)


def test_a_batch_gives_half_as_many_pairs_as_it_has_images_and_two_at_least():
    learner = make("matchdg")
    *_, counts = with_pairs(learner)
    for size in (12, 7, 3, 2):
        learner.update(x[:size], y[:size], d[:size], 0)
    assert counts == [6, 3, 2, 2]


def test_phase_one_takes_half_as_many_epochs_and_comes_before_the_run():
    for epochs, first in ((50, 25), (5, 2), (1, 1)):
        learner = make("matchdg", epochs=epochs)
        assert (learner.first_phase, learner.epochs) == (first, first + epochs)


def test_the_matcher_has_the_authors_constant_rate_and_the_rest_the_schedule_of_phase_two():
    learner = make("matchdg", epochs=10, lr=0.5, schedule="0.2")
    for epoch, encoder, matcher in ((4, None, 0.01), (5, 0.5, 0.01), (6.9, 0.05, 0.01), (14, 0.05, 0.01)):
        learner.update(x, y, d, epoch)
        rates = [group["lr"] for group in learner.optimizers[0].param_groups]
        assert encoder is None or rates == pytest.approx([encoder] * 2)
        assert learner.optimizers[1].param_groups[0]["lr"] == pytest.approx(matcher)
    other = make("matchdg+matcher_lr=0.2", lr=0.5)
    other.update(x, y, d, 0)
    assert other.optimizers[1].param_groups[0]["lr"] == pytest.approx(0.2)


def test_the_matcher_starts_apart_from_the_encoder_and_is_not_what_is_evaluated():
    learner = make("matchdg").eval()
    assert not torch.equal(next(learner.matcher.parameters()), next(learner.encoder.parameters()))
    torch.testing.assert_close(learner.predict(x), learner.h1(learner.encoder(x)))


def test_phase_one_moves_the_matcher_and_phase_two_the_rest(matched):
    images = next(matched.data.train(0))
    for epoch, parts in ((0, {"matcher"}), (matched.first_phase, {"encoder", "h1"})):
        matched.begin_epoch(matched.data, epoch)
        start = {name: p.clone() for name, p in matched.named_parameters()}
        matched.update(*images, epoch)
        assert {n.split(".")[0] for n, p in matched.named_parameters() if not torch.equal(start[n], p)} == parts


# the terms


def test_the_contrast_is_the_naive_loop():
    phi, labels = torch.nn.functional.normalize(torch.randn(6, 4), dim=1), torch.tensor([0, 1, 2])
    torch.testing.assert_close(contrastive(phi, labels.repeat(2), 0.5), naive_contrast(phi, labels, 0.5))


def test_pairs_of_one_class_have_nothing_to_be_contrasted_with():
    phi = torch.nn.functional.normalize(torch.randn(6, 4), dim=1).requires_grad_()
    loss = contrastive(phi, torch.zeros(6), 0.05)
    loss.backward()
    assert loss == 0 and (phi.grad == 0).all()


def test_pairs_of_a_batch_alone_are_of_one_class_and_of_two_domains():
    labels = torch.tensor([0, 0, 1, 1, 0, 2, 1, 0, 0, 1, 3, 3])
    domains = torch.tensor([0, 1, 0, 0, 0, 1, 3, 3, 1, 0, 3, 3])
    rows = {image.sum().item(): i for i, image in enumerate(x)}
    seen = set()
    for _ in range(60):
        a, m, given = random_pairs(x, labels, domains)
        assert torch.equal(a, x) and torch.equal(given, labels)
        for i, image in enumerate(m):
            j = rows[image.sum().item()]
            seen.add((i, j))
            if i in (5, 10, 11):  # without an image of its class in another domain
                assert j == i
            else:
                assert labels[j] == labels[i] and domains[j] != domains[i]
    assert {j for i, j in seen if i == 0} == {1, 7, 8} and {j for i, j in seen if i == 6} == {2, 3, 9}


# the matches


@pytest.mark.parametrize(
    ("method", "epochs", "inferred"),
    [
        ("matchdg", 50, [5, 10, 15, 20, 25]),
        ("matchdg+every=9", 50, [9, 18, 25]),
        ("matchdg", 26, [3, 6, 9, 12, 13]),
        ("matchdg", 4, [1, 2]),
    ],
)
def test_matches_are_random_at_first_and_then_inferred_until_the_end_of_phase_one(method, epochs, inferred):
    learner = make(method, epochs=epochs)
    calls, data = [], object()
    learner.represent_all = lambda: "phi"
    learner.infer = lambda phi: calls.append((epoch, phi)) or torch.tensor([[epoch]])
    for epoch in range(learner.epochs):
        learner.begin_epoch(data, epoch)
        assert learner.data is data and learner.matches.item() == calls[-1][0]
    assert calls == [(0, None), *((epoch, "phi") for epoch in inferred)]


@pytest.mark.filterwarnings("ignore")
def test_matches_are_of_one_class_and_of_other_domains(matched):
    table, rows = matched.data.table, matched.data.parts["train"]
    for phi in (None, matched.represent_all()):
        matches = matched.infer(phi).numpy()
        assert matches.shape == (len(rows), 2)
        assert (matches[np.arange(len(rows)), table.domains[rows]] == rows).all()
        for domain in (0, 1):
            assert (table.domains[matches[:, domain]] == domain).all()
            assert (table.labels[matches[:, domain]] == table.labels[rows]).all()
        assert set(matches.flatten()) <= set(rows)  # never an image of the target or of validation


def test_first_matches_are_random(matched):
    first, again = matched.infer(None), matched.infer(None)
    assert not torch.equal(first, again)
    assert len(set(first[:, 0].tolist())) > len(first) / 4


def test_a_target_between_the_sources_has_no_matches(folder):
    run = dict(weights="none", backbone="convnet32", dim=16, image_size=32, batch_size=4, epochs=4)
    learner = build(Run(f"folder:{folder}", "ink", "matchdg", **run), 2)
    learner.begin_epoch(loaders(learner.run), 0)
    assert learner.matches.shape[1] == 3 and (learner.matches[:, 1] == -1).all()
    assert (learner.matches[:, [0, 2]] >= 0).all()
    drawn = watched(learner.data.table)
    learner.pairs(60)
    assert set(drawn[0][1]) <= set(learner.data.parts["train"])


def test_matches_are_the_nearest_neighbours(matched):
    phi, rows, table = matched.represent_all(), matched.data.parts["train"], matched.data.table
    matches = matched.infer(phi)
    place = {row: i for i, row in enumerate(rows)}
    for i in range(0, len(rows), 5):
        for domain in set(table.domains[rows]) - {table.domains[rows[i]]}:
            candidates = [r for r in rows if table.domains[r] == domain and table.labels[r] == table.labels[rows[i]]]
            best = max(candidates, key=lambda r: (phi[i] @ phi[place[r]]).item())
            assert matches[i, domain] == best


def test_phi_is_of_length_one_from_the_images_as_they_are_in_evaluation_mode(matched):
    modes = []
    matched.matcher.register_forward_hook(lambda net, *_: modes.append(net.training))
    phi, rows = matched.represent_all(), matched.data.parts["train"]
    assert modes == [False] and matched.matcher.training and not phi.requires_grad
    images = torch.from_numpy(matched.data.table.images[rows]).permute(0, 3, 1, 2).float() / 255
    expected = matched.matcher(images).detach()
    torch.testing.assert_close(phi, expected / expected.norm(dim=1, keepdim=True), rtol=1e-4, atol=1e-5)


def watched(table):
    """The batches (seed, rows) that are read from the table from now on."""
    drawn, whole = [], type(table).__getitem__
    watch = {"__getitem__": lambda self, batch: drawn.append(batch) or whole(self, batch)}
    table.__class__ = type("Watched", (type(table),), watch)
    return drawn


def test_pairs_are_drawn_with_a_match_of_another_domain(matched):
    table, train = matched.data.table, matched.data.parts["train"]
    drawn = watched(table)
    a, m, labels = matched.pairs(200)
    seed, rows = drawn[0]
    anchors, partners = rows[:200], rows[200:]
    assert (table.domains[anchors] != table.domains[partners]).all()
    assert (table.labels[anchors] == labels.numpy()).all() and (table.labels[partners] == labels.numpy()).all()
    assert set(anchors) <= set(train) and len(set(anchors)) > 0.9 * len(train)
    place = {row: i for i, row in enumerate(train)}
    assert all(partner in matched.matches[place[anchor]] for anchor, partner in zip(anchors, partners, strict=True))
    assert a.shape == m.shape == (200, 3, 32, 32)
    matched.pairs(2)
    assert drawn[1][0] != seed > 2**40  # each draw augments differently


def test_the_first_row_of_the_table_can_be_a_match(matched):
    rows = torch.from_numpy(matched.data.parts["train"])
    matched.matches = torch.stack([torch.zeros_like(rows), rows], 1)  # of every image, except of itself
    matched.matches[0, 1] = rows[-1]
    drawn = watched(matched.data.table)
    matched.pairs(30)
    anchors, partners = np.split(drawn[0][1], 2)
    assert rows[0] == 0 and ((partners == 0) == (anchors != 0)).all()


@pytest.mark.parametrize("augment", [True, False])
def test_pairs_have_jittered_colours_like_the_batch_where_the_run_is_augmented(folder, augment):
    for file in folder.rglob("*.*"):  # images of one colour: neither crop nor flip can change them
        Image.new("RGB", (40, 40), (200, 90, 30)).save(file, quality=100)
    learner = rearing(folder, augment=augment)
    a, m, _ = learner.pairs(20)
    original = torch.tensor([200, 90, 30]) / 255
    batches, _, _ = next(learner.data.train(0))
    for images in (a, m, batches):
        change = (images.mean((2, 3)) - original).abs().amax(1)
        assert (change > 0.02).float().mean() > 0.7 if augment else change.max() < 0.01


def test_the_matches_are_part_of_the_state(matched):
    other = build(matched.run, 2)
    assert other.matches is None
    fresh = build(matched.run, 2)
    fresh.restore(torch.load(io.BytesIO(serialized(other.state())), weights_only=True))
    assert fresh.matches is None
    fresh.restore(torch.load(io.BytesIO(serialized(matched.state())), weights_only=True))
    assert torch.equal(fresh.matches, matched.matches)


# the authors' values


@pytest.mark.parametrize(
    ("backbone", "target", "lr", "weight"),
    [
        ("resnet18", "photo", 5e-4, 1.0),
        ("resnet18", "art_painting", 1e-3, 5.0),
        ("resnet18", "cartoon", 1e-3, 1.0),
        ("resnet18", "sketch", 1e-2, 0.5),
        ("resnet50", "photo", 5e-4, 0.01),
        ("resnet50", "art_painting", 1e-3, 0.1),
        ("resnet50", "cartoon", 1e-3, 0.01),
        ("resnet50", "sketch", 5e-4, 5.0),
    ],
)
def test_the_values_on_pacs_are_those_of_the_authors_script_for_backbone_and_target(backbone, target, lr, weight):
    """reproduce_scripts/pacs_run.py, method matchdg_erm."""
    run = Run("pacs", target, "matchdg", backbone=backbone)
    assert (run.lr, run.weight_decay, run.values["weight"]) == (lr, 1e-3, weight)
    assert run.id == f"pacs-{backbone}-matchdg-{target}-s0"
    plain = Run("pacs", target, "coral", backbone=backbone)
    assert (plain.lr, plain.weight_decay) == (1e-3, 5e-4)
    assert math.isclose(Run("pacs", target, "matchdg", backbone=backbone, lr=0.3).lr, 0.3)
