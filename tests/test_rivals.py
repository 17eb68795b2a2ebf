"""Each comparison method's own term, against a naive loop or by its properties."""

import io
import shutil

import pytest
import torch

from cirl.data.batches import loaders
from cirl.errors import UserError
from cirl.methods import build
from cirl.methods.table import METHOD_NAMES
from cirl.run import checkpoint
from cirl.run.config import Run

CLASSES = 4
x, y, d = torch.rand(12, 3, 32, 32), torch.arange(12) % CLASSES, torch.tensor([0, 1, 3] * 4)


def make(method, **more):
    return build(Run(method=method, **more), CLASSES)


# what they share


def test_the_stages_one_after_the_other_are_the_encoder():
    for backbone in ("convnet32", "resnet18"):
        encoder = make("deepall", backbone=backbone, dim=16).encoder.eval()
        maps = encoder.normalise(x)
        for stage in encoder.stages():
            maps = stage(maps)
        torch.testing.assert_close(maps, encoder(x))


# all of them


def train(learner, data, epochs):
    for epoch in epochs:
        checkpoint.seed_epoch(learner.run, epoch)
        learner.begin_epoch(data, epoch)
        for batch in data.train(epoch):
            learner.update(*batch, epoch)
    return learner


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_a_method_that_is_stopped_and_restored_goes_on_to_the_same_bits(method, folder):
    """At every epoch, so for MatchDG also in the middle of both phases."""
    line = dict(weights="none", backbone="convnet32", image_size=32, batch_size=8, epochs=4)
    run = Run(f"folder:{folder}", "wool", method, **line)
    data, learner = loaders(run), build(run, 2)
    whole = train(build(run, 2), data, range(learner.epochs)).state_dict()
    for epoch in range(learner.epochs):
        kept = io.BytesIO(checkpoint.serialized(train(learner, data, [epoch]).state()))
        learner = build(run, 2)
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
