"""Each comparison method's own term, against a naive loop or by its properties."""

import io
import math
import shutil

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from cirl import runs
from cirl.config import Run
from cirl.data import loaders
from cirl.errors import UserError
from cirl.methods import METHODS
from cirl.methods.base import by_domain, over_pairs
from cirl.methods.ccsa import contrastive as ccsa_pairs
from cirl.methods.coral import covariance_distance
from cirl.methods.fact import co_teacher
from cirl.methods.groupdro import reweighted
from cirl.methods.matchdg import contrastive as nt_xent
from cirl.methods.mmd import WIDTHS, mmd

CLASSES = 4
x, y, d = torch.rand(12, 3, 32, 32), torch.arange(12) % CLASSES, torch.tensor([0, 1, 3] * 4)


def make(method, **more):
    return METHODS[method.split("+")[0]](Run(method=method, **more), CLASSES)


# what they share


def test_rows_of_each_domain_are_all_rows_once():
    rows = by_domain(d)
    assert sorted(torch.cat(rows).tolist()) == list(range(12))
    assert all(len(d[part].unique()) == 1 for part in rows)


def test_the_mean_over_pairs_is_the_naive_loop_and_skips_domains_of_one_image():
    r, domains = torch.randn(7, 3), torch.tensor([0, 0, 1, 1, 1, 2, 0])
    expected = covariance_distance(r[[0, 1, 6]], r[[2, 3, 4]])
    torch.testing.assert_close(over_pairs(covariance_distance, r, domains), expected)
    assert over_pairs(covariance_distance, r, torch.zeros(7)) == 0


def test_the_stages_one_after_the_other_are_the_encoder():
    for backbone in ("convnet32", "resnet18"):
        encoder = make("deepall", backbone=backbone, dim=16).encoder.eval()
        maps = encoder.normalise(x)
        for stage in encoder.stages():
            maps = stage(maps)
        torch.testing.assert_close(maps, encoder(x))


# mix and FACT


def test_mix_is_deepall_on_the_originals_and_their_mixtures():
    learner = make("mix", eta=0.0, recipe="paper")  # without mixture both views are the originals
    before = cross_entropy(learner.predict(x), y).item()
    assert learner.update(x, y, d, 0)["loss"] == pytest.approx(before, rel=1e-5)


def test_the_teacher_is_the_closed_form_average_of_the_students():
    learner = make("fact+momentum=0.6")
    start, students = learner.h1.weight.clone(), []
    for _ in range(6):
        learner.update(x, y, d, 0)
        students.append(learner.h1.weight.detach().clone())
    m = [min(1 - 1 / (t + 1), 0.6) for t in range(6)]
    shares = [(1 - m[t]) * math.prod(m[t + 1 :]) for t in range(6)]
    expected = sum(share * student for share, student in zip(shares, students, strict=True))
    assert sum(shares) == pytest.approx(1) and m[0] == 0  # the start is forgotten at once
    torch.testing.assert_close(learner.teacher[1].weight, expected)
    assert not torch.allclose(expected, start)


def test_the_co_teacher_loss_is_the_crossed_divergence():
    student, teacher = torch.randn(6, 5), torch.randn(6, 5)
    expected = 0.0
    for i in range(6):
        p, q = (teacher[(i + 3) % 6] / 10).softmax(0), (student[i] / 10).softmax(0)
        expected += (p * (p / q).log()).sum() / 3
    torch.testing.assert_close(co_teacher(student, teacher, 10), expected)
    same = torch.randn(3, 5).repeat(2, 1)
    assert co_teacher(same, same, 10).abs() < 1e-6


def test_no_gradient_reaches_the_teacher_and_the_student_is_tested():
    learner = make("fact")
    assert not any(p.requires_grad for p in learner.teacher.parameters())
    torch.testing.assert_close(learner.eval().predict(x), learner.h1(learner.encoder(x)))


# CORAL, MMD, CCSA


def test_coral_is_zero_for_equal_covariances_and_grows_with_their_distance():
    a = torch.randn(40, 5)
    assert covariance_distance(a, a + 3) < 1e-10  # means do not matter
    growing = [covariance_distance(a, a * scale).item() for scale in (1.1, 1.5, 2)]
    assert growing == sorted(growing) and growing[0] > 0
    b = torch.randn(30, 5)
    naive = (np.cov(a.T.numpy()) - np.cov(b.T.numpy())) ** 2
    assert covariance_distance(a, b).item() == pytest.approx(naive.mean(), rel=1e-4)


def test_mmd_of_a_sample_with_itself_is_zero_and_the_naive_loop_elsewhere():
    a, b = torch.randn(6, 3), torch.randn(4, 3) + 1
    assert mmd(a, a).abs() < 1e-5
    k = lambda u, v: sum(math.exp(-w * (u - v).square().sum().item()) for w in WIDTHS)  # noqa: E731
    mean = lambda s, t: sum(k(u, v) for u in s for v in t) / (len(s) * len(t))  # noqa: E731
    assert mmd(a, b).item() == pytest.approx(mean(a, a) + mean(b, b) - 2 * mean(a, b), abs=1e-4)
    assert mmd(a, b) > 0 and mmd(a, a + 5) > mmd(a, a + 0.5)


def test_ccsa_is_the_naive_loop_over_pairs_of_different_domains():
    r, labels, domains = torch.randn(8, 3) / 2, torch.tensor([0, 0, 1, 1] * 2), torch.arange(8) % 3
    together, apart = [], []
    for i in range(8):
        for j in range(8):
            distance = (r[i] - r[j]).norm().item()
            if domains[i] != domains[j]:
                if labels[i] == labels[j]:
                    together.append(distance**2)
                else:
                    apart.append(max(0, 1 - distance) ** 2)
    expected = (np.mean(together) + np.mean(apart)) / 2
    assert ccsa_pairs(r, labels, domains, 1.0).item() == pytest.approx(expected, rel=1e-4)


def test_ccsa_is_zero_for_classes_that_coincide_and_lie_a_margin_apart():
    r = torch.tensor([[0.0, 0], [0, 0], [2, 0], [2, 0]])
    assert ccsa_pairs(r, torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1]), 1.0) == 0


# GroupDRO


def test_the_weights_of_groupdro_move_to_the_worst_domain_and_sum_to_one():
    q, present = torch.tensor([1 / 3, 1 / 3, 0, 1 / 3]), torch.tensor([0, 1, 3])
    losses = torch.tensor([0.1, 2.0, 0.5])
    for _ in range(500):
        q = reweighted(q, present, losses, 0.01)
        assert q.sum().item() == pytest.approx(1)
    assert q.argmax() == 1 and q[1] > 0.99 and q[2] == 0
    naive = torch.tensor([1 / 3 * math.exp(0.01 * value) for value in losses])
    once = reweighted(torch.tensor([1 / 3, 1 / 3, 0, 1 / 3]), present, losses, 0.01)
    torch.testing.assert_close(once[present], naive / naive.sum())


def test_groupdro_minimises_the_weighted_sum_of_the_domains_losses():
    learner = make("groupdro+eta=0")
    losses = cross_entropy(learner.predict(x), y, reduction="none")
    expected = sum(losses[d == domain].mean() for domain in (0, 1, 3)) / 3
    assert learner.update(x, y, d, 0)["loss"] == pytest.approx(expected.item(), rel=1e-5)


# MatchDG


@pytest.fixture
def matched(folder):
    run = Run(f"folder:{folder}", "wool", "matchdg", weights="none", backbone="convnet32", dim=16, image_size=32)
    learner = METHODS["matchdg"](Run(**{**vars(run), "batch_size": 4, "epochs": 4}), 2)
    learner.begin_epoch(loaders(learner.run), 0)
    return learner


@pytest.mark.filterwarnings("ignore")
def test_matches_are_of_one_class_and_of_other_domains(matched):
    table, rows = matched.data.table, matched.data.parts["train"]
    for phi in (None, matched.represent_all()):
        matches = matched.infer(phi).numpy()
        assert (matches[np.arange(len(rows)), table.domains[rows]] == rows).all()
        for domain in (0, 1):
            assert (table.domains[matches[:, domain]] == domain).all()
            assert (table.labels[matches[:, domain]] == table.labels[rows]).all()
        assert set(matches.flatten()) <= set(rows)  # never an image of the target or of validation


def test_matches_are_the_nearest_neighbours(matched):
    phi, rows, table = matched.represent_all(), matched.data.parts["train"], matched.data.table
    matches = matched.infer(phi)
    place = {row: i for i, row in enumerate(rows)}
    for i in (0, 7, 30):
        for domain in set(table.domains[rows]) - {table.domains[rows[i]]}:
            candidates = [r for r in rows if table.domains[r] == domain and table.labels[r] == table.labels[rows[i]]]
            best = max(candidates, key=lambda r: (phi[i] @ phi[place[r]]).item())
            assert matches[i, domain] == best


def test_pairs_are_drawn_with_a_match_of_another_domain(matched):
    table, drawn = matched.data.table, []
    whole = type(table).__getitem__
    watch = {"__getitem__": lambda self, batch: drawn.append(batch[1]) or whole(self, batch)}
    table.__class__ = type("Watched", (type(table),), watch)
    a, m, _ = matched.pairs(20)
    (rows,) = drawn
    assert (table.domains[rows[:20]] != table.domains[rows[20:]]).all()
    assert (table.labels[rows[:20]] == table.labels[rows[20:]]).all() and a.shape == m.shape == (20, 3, 32, 32)


def test_the_contrast_is_the_naive_loop():
    phi = torch.nn.functional.normalize(torch.randn(6, 4), dim=1)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    expected = 0.0
    for i in range(6):
        s = [math.exp((phi[i] @ phi[j]).item() / 0.5) for j in range(6)]
        positive = s[(i + 3) % 6]
        expected -= math.log(positive / (positive + sum(s[j] for j in range(6) if labels[j] != labels[i]))) / 6
    assert nt_xent(phi, labels, 0.5).item() == pytest.approx(expected, rel=1e-5)


def test_phase_one_moves_the_matcher_and_phase_two_the_rest(matched):
    batch = next(matched.data.train(0))
    for epoch, parts in ((0, {"matcher"}), (matched.first_phase, {"encoder", "h1"})):
        matched.begin_epoch(matched.data, epoch)
        before = {name: p.clone() for name, p in matched.named_parameters()}
        matched.update(*batch, epoch)
        assert {n.split(".")[0] for n, p in matched.named_parameters() if not torch.equal(before[n], p)} == parts
    assert matched.epochs == 4 + 2


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
