import hashlib
import shutil

import pytest
import torch
import torchvision

from cirl.data import pretrained
from cirl.data.batches import loaders
from cirl.errors import UserError
from cirl.model import Network
from cirl.run import checkpoint
from cirl.run.config import Run


def test_weights_come_from_a_file_and_are_those_of_the_file(tmp_path):
    reference = torchvision.models.resnet18()
    torch.save(reference.state_dict(), tmp_path / "w.pt")
    net = Network("resnet18", 512, str(tmp_path / "w.pt"))
    assert torch.equal(net.backbone.layer4[0].conv1.weight, reference.layer4[0].conv1.weight)


def test_a_file_that_holds_something_else_is_refused(tmp_path):
    file = tmp_path / "w.pt"
    with pytest.raises(UserError, match="there is no file"):
        Network("resnet18", 512, str(file))
    torch.save(torchvision.models.resnet50().state_dict(), file)
    with pytest.raises(UserError, match="not a state dict of resnet18"):
        Network("resnet18", 512, str(file))
    torch.save({**torchvision.models.resnet18().state_dict(), "extra": torch.zeros(1)}, file)
    with pytest.raises(UserError, match="'extra'"):
        Network("resnet18", 512, str(file))
    file.write_bytes(b"nonsense")
    with pytest.raises(UserError, match="cannot be read"):
        Network("resnet18", 512, str(file))


def test_half_precision_is_converted_on_loading(tmp_path):
    reference = torchvision.models.resnet18().state_dict()
    half = {name: value.half() if value.is_floating_point() else value for name, value in reference.items()}
    torch.save(half, tmp_path / "half.pt")
    net = Network("resnet18", 512, str(tmp_path / "half.pt"))
    assert {value.dtype for value in net.parameters()} == {torch.float32}
    assert torch.equal(net.backbone.layer4[0].conv1.weight, half["layer4.0.conv1.weight"].float())
    assert {value.dtype for value in pretrained.load_weights("resnet18", str(tmp_path / "half.pt")).values()} == {
        *(torch.float32, torch.int64)
    }


class Evil:
    def __reduce__(self):
        return print, ("pwned",)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda state: [*state.values()], "not a state dict of resnet18, but a list"),
        (lambda state: state | {"conv1.weight": torch.zeros(64, 3, 3, 3)}, "see its entry 'conv1.weight'"),
        (lambda state: state | {"conv1.weight": 7}, "see its entry 'conv1.weight'"),
        (lambda state: state | {"conv1.weight": state["conv1.weight"].to(torch.int8)}, "see its entry 'conv1.weight'"),
        (lambda state: {name: value for name, value in state.items() if name != "fc.bias"}, "see its entry 'fc.bias'"),
        (lambda state: state | {"fc.bias": Evil()}, "it is not a torch.save file that holds only tensors"),
    ],
)
def test_weights_of_another_network_raise_user_error(tmp_path, change, said, capsys):
    torch.save(change(torchvision.models.resnet18().state_dict()), tmp_path / "w.pt")
    with pytest.raises(UserError) as error:
        Network("resnet18", 512, str(tmp_path / "w.pt"))
    assert said in str(error.value) and "\n" not in str(error.value) and "pwned" not in capsys.readouterr().out
    assert "weights_only" not in str(error.value)  # torch advises to switch the check off


def test_missing_imagenet_weights_say_which_file_goes_where(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", lambda *a, **k: (_ for _ in ()).throw(OSError("no network")))
    with pytest.raises(UserError) as error:
        Network("resnet18", 512, "imagenet")
    assert "resnet18-" in str(error.value) and str(tmp_path / "checkpoints") in str(error.value)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """torch.hub's cache with a ResNet-18 whose name carries its checksum, as torchvision's do."""
    place = tmp_path / "checkpoints"
    place.mkdir()
    torch.save(torchvision.models.resnet18().state_dict(), place / "w.pt")
    file = place / f"resnet18-{hashlib.sha256((place / 'w.pt').read_bytes()).hexdigest()[:8]}.pth"
    (place / "w.pt").rename(file)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr(pretrained, "imagenet_url", lambda _: f"file:///nowhere/{file.name}")
    return file


def test_imagenet_weights_are_read_from_the_cache_of_torch_hub(hub):
    net = Network("resnet18", 512, "imagenet")
    expected = torch.load(hub, weights_only=True)["layer1.0.conv1.weight"]
    assert torch.equal(net.backbone.layer1[0].conv1.weight, expected)


def test_weights_whose_checksum_is_wrong_are_refused(hub):
    content = bytearray(hub.read_bytes())
    content[len(content) // 2] ^= 1
    hub.write_bytes(content)
    with pytest.raises(UserError, match="is damaged, its SHA-256 does not begin with"):
        Network("resnet18", 512, "imagenet")


def test_missing_weights_are_fetched_and_checked(hub, tmp_path, monkeypatch):
    shutil.move(hub, tmp_path / hub.name)
    monkeypatch.setattr(pretrained, "imagenet_url", lambda _: (tmp_path / hub.name).as_uri())
    Network("resnet18", 512, "imagenet")
    assert hub.exists()
    hub.unlink()
    (tmp_path / hub.name).write_bytes(b"a page that says sorry")
    with pytest.raises(UserError, match="could not be fetched"):
        Network("resnet18", 512, "imagenet")
    assert not list(hub.parent.iterdir())


def test_the_digest_of_the_weights_is_part_of_the_provenance(folder, hub):
    line = dict(dataset=f"folder:{folder}", target="wool", image_size=32, batch_size=4)
    data = loaders(Run(**line, weights=str(hub)))
    assert checkpoint.provenance(data)["weights_digest"] == hashlib.sha256(hub.read_bytes()).hexdigest()[:16]
    assert checkpoint.provenance(loaders(Run(**line, weights="none")))["weights_digest"] is None


def test_the_address_is_torchvisions():
    assert pretrained.imagenet_url("resnet18") == torchvision.models.ResNet18_Weights.IMAGENET1K_V1.url
    assert pretrained.imagenet_url("resnet50") == torchvision.models.ResNet50_Weights.IMAGENET1K_V1.url
