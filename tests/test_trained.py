"""`cirl.load`: a finished run used by another person, in another place, offline."""

import json
import shutil
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch
from helpers import short, train
from PIL import Image

import cirl
from cirl import paths
from cirl.data.batches import loaders
from cirl.errors import UserError
from cirl.methods import build
from cirl.methods.table import METHOD_NAMES
from cirl.run import checkpoint
from cirl.run.trained import Trained


@pytest.fixture
def offline(monkeypatch):
    def refused(*_, **__):
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refused)


def leave(folder, run):
    """Train a run, then move its folder to another place and delete everything else."""
    train(run)
    elsewhere = folder.parent / "elsewhere" / "model of mine"
    shutil.copytree(checkpoint.folder(run), elsewhere)
    for place in (folder, paths.DATA):
        shutil.rmtree(place)
    return elsewhere


def three_images(folder):
    return sorted((folder / "wool" / "dog").iterdir())[:3]


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_every_method_predicts_the_same_after_its_folder_moved_and_its_data_is_gone(method, folder, offline):
    run = short(folder, method, epochs=1)
    name, (x, _, _) = run.id, next(loaders(run).evaluation("target"))
    learner = train(run) and build(run, 2)
    learner.load_state_dict(torch.load(checkpoint.folder(run) / "model.pt", weights_only=True))
    with torch.no_grad():
        logits = learner.eval().predict(x)
    place, before = leave(folder, run), torch.get_rng_state()
    model = cirl.load(place)
    predicted = model.predict(x)
    assert torch.equal(before, torch.get_rng_state())
    assert (model.classes, model.run.id, model.run.sources) == (["cat", "dog"], name, ("clay", "ink"))
    assert [*predicted["class"]] == [model.classes[i] for i in logits.argmax(1)]
    np.testing.assert_allclose(predicted["probability"], logits.softmax(1).amax(1), rtol=1e-5)
    assert model.attention(x[:2]).shape == (2, 32, 32)


def test_the_accuracy_of_the_loaded_model_is_that_of_the_record(folder, offline):
    run = short(folder, "cirl", epochs=6)
    result = train(run)
    model = cirl.load(run.id)
    batches = [*loaders(run).evaluation("target")]
    right = [model.predict(x)["class"] == np.array(model.classes)[y] for x, y, _ in batches]
    assert 100 * np.mean(np.concatenate(right)) == pytest.approx(result["source_val"]["target"])


def test_a_network_that_began_from_a_file_of_weights_does_without_it(folder, offline):
    from torchvision.models import resnet18

    file = folder.parent / "start.pt"
    torch.save(resnet18(weights=None).state_dict(), file)
    run = short(folder, "deepall", backbone="resnet18", weights=str(file), epochs=1)
    train(run)
    file.unlink()
    model = cirl.load(checkpoint.folder(run))
    assert model.run.weights == str(file)
    assert model.features(three_images(folder)).shape == (3, 512)


@pytest.fixture
def model(folder):
    run = short(folder, "cirl")
    train(run)
    return cirl.load(run.id)


def test_paths_pil_images_and_tensors_are_the_same_images(model, folder):
    files = three_images(folder)
    pictures = [Image.open(file) for file in files]
    whole = [torch.from_numpy(np.array(p.convert("RGB"))).permute(2, 0, 1) / 255 for p in pictures]
    by_path, by_picture = model.probabilities(files), model.probabilities(pictures)
    assert [*by_path.index] == [str(file) for file in files] and [*by_picture.index] == [0, 1, 2]
    np.testing.assert_array_equal(by_path, by_picture)
    np.testing.assert_allclose(model.probabilities(whole), by_path, atol=0.02)  # PIL rounds to 8 bits
    one = model.probabilities(str(files[0]))
    assert one.shape == (1, 2)
    np.testing.assert_allclose(one.iloc[0], by_path.iloc[0], rtol=1e-4)
    np.testing.assert_allclose(by_path.sum(axis=1), 1, rtol=1e-5)
    table = model.predict(files)
    assert [*table.columns] == ["class", "probability"] and [*table["probability"]] == [*by_path.max(axis=1)]


def test_more_images_than_a_batch_keep_their_order(model):
    x = torch.rand(150, 3, 32, 32)
    features, table = model.features(x), model.predict(x)
    torch.testing.assert_close(features[149:], model.features(x[149]))
    assert len(table) == 150 and table["class"][149] == model.predict(x[149])["class"][0]
    assert model.attention(x[:70]).shape == (70, 32, 32)


def test_attention_is_that_of_the_class_that_is_asked_for(model):
    x = torch.rand(3, 3, 32, 32)
    maps = {name: model.attention(x, name) for name in model.classes}
    assert not np.allclose(maps["cat"], maps["dog"])
    mixed = model.attention(x, ["cat", 1, "cat"])
    for i, name in enumerate(("cat", "dog", "cat")):
        np.testing.assert_allclose(mixed[i], maps[name][i], atol=1e-5)
    own = model.attention(x)
    for i, name in enumerate(model.predict(x)["class"]):
        np.testing.assert_allclose(own[i], maps[name][i], atol=1e-5)
    assert own.min() >= 0 and own.max() <= 1
    assert all(parameter.grad is None for parameter in model.method.parameters())


def test_attention_finds_what_decides_the_class():
    """A network that is made to respond to red alone looks at the red square."""
    run = cirl.run.config.Run("tiny", "street", "deepall")
    method = build(run, 2)
    for layer in (layer for layer in method.encoder.backbone if isinstance(layer, torch.nn.Conv2d)):
        torch.nn.init.dirac_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    with torch.no_grad():
        method.h1.weight.zero_()
        method.h1.weight[1, :4] = 1  # channel 0, the four places
    x = torch.full((1, 3, 32, 32), 0.4)
    x[0, 0, 2:12, 18:30] = 1.0
    (seen,) = Trained(method, ["other", "red"]).attention(x, "red")
    assert seen[2:12, 18:30].mean() > 5 * seen[16:, :16].mean()


def test_attention_of_a_resnet_is_the_class_activation_map_of_what_is_pooled():
    """The maps whose average is the representation, weighed by the classifier: after the residual sum, not before."""
    torch.manual_seed(0)
    run = cirl.run.config.Run("tiny", "street", "deepall", backbone="resnet18", weights="none", image_size=96)
    method = build(run, 3).eval()
    x = torch.rand(2, 3, 96, 96)
    net, pooled = method.encoder.backbone, {}
    net.avgpool.register_forward_hook(lambda layer, maps, out: pooled.update(maps=maps[0]))
    logits = method.predict(x).detach()
    A = pooled["maps"].detach()
    cam = torch.einsum("bchw,kc->bkhw", A, method.h1.weight.detach())
    torch.testing.assert_close(cam.mean((2, 3)) + method.h1.bias.detach(), logits, atol=1e-4, rtol=1e-4)
    for label in range(3):
        seen = Trained(method, ["a", "b", "c"]).attention(x, label)
        expected = torch.nn.functional.interpolate(cam[:, label, None].relu(), (96, 96), mode="bilinear")[:, 0]
        for i in range(2):
            if expected[i].std() > 0:
                assert np.corrcoef(seen[i].ravel(), expected[i].numpy().ravel())[0, 1] > 0.99


def test_a_bare_model_file_with_its_config_beside_it_is_enough(folder, offline):
    run = short(folder, "cirl")
    place = leave(folder, run)
    expected = cirl.load(place).features(torch.ones(1, 3, 32, 32))
    bare = place.parent / "bare"
    bare.mkdir()
    for name in ("model.pt", "config.json"):
        shutil.copy(place / name, bare)
    for name in (bare, bare / "model.pt", str(bare / "model.pt")):
        assert torch.equal(cirl.load(name).features(torch.ones(1, 3, 32, 32)), expected)
    assert cirl.load(bare).run.id == "bare"


@pytest.mark.parametrize(
    "images, sentence",
    [
        (torch.full((1, 3, 8, 8), 255.0), r"values in \[0, 1\]"),
        (torch.rand(2, 1, 8, 8), r"\(n, 3, H, W\)"),
        ([], "no images"),
        ("nowhere.png", "nowhere.png cannot be read"),
    ],
)
def test_anything_but_an_image_is_refused(images, sentence, model):
    with pytest.raises(UserError, match=sentence):
        model.predict(images)


@pytest.mark.parametrize(
    "label, sentence", [("cow", "label='cow'"), (2, "label=2"), (["cat"], "one for each of the 3")]
)
def test_a_class_that_the_run_does_not_know_is_refused(label, sentence, model):
    with pytest.raises(UserError, match=sentence):
        model.attention(torch.rand(3, 3, 32, 32), label)


def test_anything_but_a_finished_run_is_refused(folder):
    with pytest.raises(UserError, match="'nothing' is not a run"):
        cirl.load("nothing")
    run = short(folder)
    train(run, stop_after=1)
    with pytest.raises(UserError, match="not finished"):
        cirl.load(run.id)
    train(run)
    config = checkpoint.folder(run) / "config.json"
    said = json.loads(config.read_text())
    config.write_text(json.dumps({**said, "dim": 64}))
    with pytest.raises(UserError, match=r"model\.pt holds the state of another network"):
        cirl.load(run.id)
    config.write_text(json.dumps({name: value for name, value in said.items() if name != "kappa"}))
    with pytest.raises(UserError, match="lacks kappa"):
        cirl.load(run.id)
    config.write_text(json.dumps({name: value for name, value in said.items() if name not in ("precision", "compile")}))
    assert cirl.load(run.id).run.precision == "fp32"  # a run from before these fields existed
    config.write_text(json.dumps({name: value for name, value in said.items() if name != "classes"}))
    with pytest.raises(UserError, match="no class names"):
        cirl.load(run.id)
    config.write_text(json.dumps(said))
    (checkpoint.folder(run) / "model.pt").write_bytes(b"damaged")
    with pytest.raises(UserError, match="missing or damaged"):
        cirl.load(run.id)


def test_importing_the_package_loads_no_torch_and_names_what_it_offers():
    code = (
        "import sys, cirl; assert {'load', 'CIRLLoss', 'losses'} <= set(dir(cirl)); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
