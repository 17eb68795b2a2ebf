from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d, conv_transpose2d, one_hot, pad

from cirl.methods.images import Decoder, Translator, perturbation
from cirl.run.config import Run

LARGE = dict(dataset="pacs", target="photo", weights="none")


def run(method="ddaig", **more):
    return Run(method=method, **more)


def normalised(maps):
    """Mean 0 and variance 1 of each map of each image."""
    out = torch.empty_like(maps)
    for b in range(len(maps)):
        for c in range(maps.shape[1]):
            m = maps[b, c]
            out[b, c] = (m - m.mean()) / (m.var(unbiased=False) + 1e-5).sqrt()
    return out


def scaled(maps, weight, bias):
    return normalised(maps) * weight[:, None, None] + bias[:, None, None]


def spread_out(net, seed=0):
    """Weights that leave no part of a network without effect."""
    torch.manual_seed(seed)
    for name, parameter in net.named_parameters():
        fan = parameter[0].numel() if parameter.dim() > 1 else 4
        nn.init.normal_(parameter, std=(2 / fan) ** 0.5)
        if parameter.dim() == 1 and name.endswith("weight"):
            parameter.data += 1
    return net


def perturbed_by_hand(p, x):
    def reflected(x, w):
        return conv2d(pad(x, (1, 1, 1, 1), mode="reflect"), w)

    first, *blocks, fuse, out, bias = p
    x = normalised(reflected(x, first)).clamp_min(0)
    for one, two in zip(blocks[::2], blocks[1::2], strict=True):
        x = x + normalised(reflected(normalised(reflected(x, one)).clamp_min(0), two))
    x = normalised(conv2d(x, fuse)).clamp_min(0)
    return conv2d(x, out, bias).tanh()


@pytest.mark.parametrize("size", [32, 17])
def test_the_perturbation_is_three_blocks_between_two_convolutions(size):
    net = spread_out(perturbation(run()))
    x = torch.rand(2, 3, size, size)
    parameters = [*net.parameters()]
    shapes = [(8, 3, 3, 3), *[(8, 8, 3, 3)] * 6, (8, 8, 1, 1), (3, 8, 1, 1), (3,)]
    assert [tuple(parameter.shape) for parameter in parameters] == shapes
    torch.testing.assert_close(net(x), perturbed_by_hand(parameters, x), rtol=1e-3, atol=1e-4)


def test_the_perturbation_starts_small_and_from_normal_weights():
    net = perturbation(run())
    weights = [p for p in net.parameters() if p.dim() == 4]
    joined = torch.cat([w.flatten() for w in weights])
    assert joined.mean().abs() < 2e-3 and joined.std().item() == pytest.approx(0.02, rel=0.05)
    assert all(0.005 < w.std() < 0.04 for w in weights)
    assert (net[-2].bias == 0).all()
    assert 0 < net(torch.rand(2, 3, 32, 32)).abs().max() < 0.5


def translated_by_hand(p, x, domain, count, ends):
    """The generator on sizes that are multiples of four."""
    p = [*p]
    take = lambda n: [p.pop(0) for _ in range(n)]  # noqa: E731
    labels = one_hot(domain, count).float()[:, :, None, None].expand(-1, -1, *x.shape[2:])
    x = conv2d(torch.cat([x, labels], 1), *take(2), padding=ends // 2).clamp_min(0)
    for _ in range(2):
        w, *affine = take(3)
        x = scaled(conv2d(x, w, stride=2, padding=1), *affine).clamp_min(0)
    for _ in range(2):
        w, *affine = take(3)
        inner = scaled(conv2d(x, w, padding=1), *affine).clamp_min(0)
        w, *affine = take(3)
        x = x + scaled(conv2d(inner, w, padding=1), *affine)
    for _ in range(2):
        w, *affine = take(3)
        x = scaled(conv_transpose2d(x, w, stride=2, padding=1), *affine).clamp_min(0)
    x = conv2d(x, *take(2), padding=ends // 2).sigmoid()
    assert not p
    return x


@pytest.mark.parametrize(("more", "ends", "size"), [({}, 3, 32), (LARGE, 7, 16)])
def test_the_translator_is_two_halvings_two_blocks_and_two_doublings(more, ends, size):
    net = spread_out(Translator(run(**more), 5))
    x, domain = torch.rand(2, 3, size, size), torch.tensor([4, 1])
    kernels = [parameter.shape[2] for parameter in net.parameters() if parameter.dim() == 4]
    assert kernels == [ends, 4, 4, 3, 3, 3, 3, 4, 4, ends]
    expected = translated_by_hand(net.parameters(), x, domain, 5, ends)
    torch.testing.assert_close(net(x, domain), expected, rtol=1e-3, atol=1e-4)


def test_the_translator_repeats_the_border_of_images_that_cannot_be_halved_twice():
    net = spread_out(Translator(run(), 3))
    x, domain = torch.rand(2, 3, 19, 21), torch.tensor([0, 2])
    filled = pad(x, (0, 3, 0, 1), mode="replicate")
    assert net(x, domain).shape == x.shape
    torch.testing.assert_close(net(x, domain), net(filled, domain)[:, :, :19, :21])


def test_the_wanted_domain_changes_the_whole_picture():
    net = Translator(run(), 4)
    x = torch.rand(1, 3, 32, 32)
    one, other = (net(x, torch.tensor([domain])) for domain in (0, 3))
    assert (one - other)[..., 8:24, 8:24].abs().mean() > 1e-3


def decoded_by_hand(p, h, channels, start, size):
    w, b, *rest = p
    x = (h @ w.T + b).reshape(len(h), channels, start, start).clamp_min(0)
    *ups, w, b = rest
    for weight, bias in zip(ups[::2], ups[1::2], strict=True):
        x = conv_transpose2d(x, weight, bias, stride=2, padding=1).clamp_min(0)
    return conv2d(x, w, b, padding=1)[:, :, :size, :size]


@pytest.mark.parametrize(
    ("more", "channels", "start", "doublings"),
    [
        (dict(image_size=16), (32, 16, 8), 4, 2),
        (dict(image_size=32), (32, 16, 8, 8), 4, 3),
        (dict(image_size=96), (32, 16, 8, 8, 8), 6, 4),
        (dict(image_size=45, dim=20), (32, 16, 8, 8), 6, 3),
        (dict(image_size=32, backbone="convnet"), (128, 64, 32, 16), 4, 3),
        (LARGE, (256, 128, 64, 32, 16, 8), 7, 5),
    ],
)
def test_the_decoder_doubles_small_maps_until_they_are_as_large_as_the_image(more, channels, start, doublings):
    this = run(**more)
    net = spread_out(Decoder(this))
    ups = [layer for layer in net.modules() if isinstance(layer, nn.ConvTranspose2d)]
    assert [(up.in_channels, up.out_channels) for up in ups] == [*pairwise(channels)]
    assert [up.kernel_size for up in ups] == [(4, 4)] * doublings
    h = torch.randn(2, this.dim)
    expected = decoded_by_hand([*net.parameters()], h, channels[0], start, this.image_size)
    assert expected.shape == (2, 3, this.image_size, this.image_size)
    torch.testing.assert_close(net(h), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("more", "width"), [({}, 8), ({"backbone": "convnet"}, 32), (LARGE, 64)])
def test_the_networks_come_in_the_sizes_of_the_backbones(more, width):
    assert perturbation(run(**more))[0].out_channels == width
    assert Translator(run(**more), 2).layers[0].out_channels == width


def test_both_resnets_have_the_same_image_networks():
    assert perturbation(run(**LARGE, backbone="resnet50"))[0].out_channels == 64
