import pytest
import torch
from helpers import CLASSES, batch, make

from cirl.methods.table import METHOD_NAMES

x, y, d = batch()


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_a_method_keeps_its_contract(method):
    learner = make(method)
    terms = learner.update(x, y, d, epoch=0)
    assert "loss" in terms and not any(term.ndim or term.requires_grad for term in terms.values())
    assert learner.features(x).shape == (12, 128) and learner.predict(x).shape == (12, CLASSES)


@pytest.mark.parametrize(
    ("method", "recipe"), [("cirl", "paper"), ("cirl", "released"), *((method, None) for method in METHOD_NAMES)]
)
def test_a_method_learns_to_classify_a_batch(method, recipe):
    learner = make(method, recipe=recipe, lr=0.05 if recipe == "paper" else 0.02, tau=0.0, eta=0.0)
    patterns = torch.rand(CLASSES, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    images = 0.2 * x + 0.8 * patterns[y]
    losses = [learner.update(images, y, d, epoch=learner.epochs - learner.run.epochs)["loss"] for _ in range(60)]
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])


@pytest.mark.parametrize("method", [name for name in METHOD_NAMES if name != "mtl"])
def test_inference_uses_the_whole_representation_and_h1(method):
    learner = make(method).eval()
    torch.testing.assert_close(learner.predict(x), learner.h1(learner.features(x)))
