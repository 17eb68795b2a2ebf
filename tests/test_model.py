import pytest
import torch
from torch import nn

from cirl.errors import UserError
from cirl.model import Masker, Network
from cirl.run.config import BACKBONES


@pytest.mark.parametrize("backbone", BACKBONES)
def test_a_network_gives_representations_of_its_own_or_of_any_other_dimension(backbone):
    for dim in (BACKBONES[backbone], 24):
        assert Network(backbone, dim, "none").eval()(torch.rand(2, 3, 32, 32)).shape == (2, dim)


def test_normalisation_is_inside_the_network():
    net = Network("convnet32", 128, "none").eval()
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    x = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(net(x), net.backbone((x - mean) / std))


def test_pooling_before_rectifying_is_the_published_network():
    net = Network("convnet32", 128, "none").backbone
    x = published = torch.randn(2, 3, 32, 32)
    for layer in net:
        if isinstance(layer, nn.Conv2d):
            published = torch.max_pool2d(torch.relu(layer(published)), 2)
    torch.testing.assert_close(net(x), published.flatten(1))


def test_the_same_representations_at_other_image_sizes_have_the_same_dimension():
    assert Network("convnet", 256, "none")(torch.rand(2, 3, 64, 48)).shape == (2, 256)


def test_the_last_convolution_is_the_one_before_the_representation():
    assert Network("resnet18", 512, "none").last_convolution.out_channels == 512
    assert Network("convnet", 256, "none").last_convolution.out_channels == 64


def test_a_masker_gives_a_mask_and_its_mean_is_what_the_ledger_says():
    r = torch.randn(64, 512)
    independent = Masker(512, 307)(r)
    recursive = Masker(512, 308, "recursive", "batchnorm")(r)
    assert independent.shape == r.shape and 0 <= independent.min() <= independent.max() <= 1 + 1e-6
    assert recursive.mean().item() == pytest.approx(0.36, abs=0.02)
    assert independent.mean().item() == pytest.approx(0.28, abs=0.12)


def test_the_masker_is_the_released_perceptron():
    N, wide = 512, 2048
    layers = (N + 1) * wide + (wide + 1) * wide + (wide + 1) * N
    norms = 2 * 2 * wide
    assert sum(p.numel() for p in Masker(N, 307).parameters()) == layers + norms


def test_batchnorm_lets_no_dimension_be_inferior_for_all_images():
    scores = Masker(16, 9, logits="batchnorm").log_z(torch.randn(200, 16))
    torch.testing.assert_close(scores.mean(0), torch.zeros(16), atol=1e-5, rtol=0)


def test_the_convnet_has_no_imagenet_weights():
    with pytest.raises(UserError, match="weights='imagenet'"):
        Network("convnet", 256, "imagenet")


def test_bfloat16_is_close_to_float32_and_gives_float32():
    torch.manual_seed(0)
    net, x = Network("convnet32", 128, "none"), torch.rand(8, 3, 32, 32)
    full = net(x)
    net.precision = "bf16"
    half = net(x)
    assert half.dtype == torch.float32 and not torch.equal(half, full)
    assert (half - full).norm() < 0.02 * full.norm()


def test_methods_between_the_stages_do_not_take_bfloat16():
    with pytest.raises(UserError, match="precision='bf16'"):
        Network("convnet32", 128, "none", "bf16").stages()


@pytest.mark.parametrize("backbone", ["convnet32", "resnet18"])
def test_the_stages_one_after_the_other_are_the_encoder(backbone):
    encoder, x = Network(backbone, 16, "none").eval(), torch.rand(12, 3, 32, 32)
    maps = encoder.normalise(x)
    for stage in encoder.stages():
        maps = stage(maps)
    torch.testing.assert_close(maps, encoder(x))
