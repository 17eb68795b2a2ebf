import pytest
import torch
from torch.nn.functional import gumbel_softmax

from cirl import _gumbel_fused, gumbel
from cirl.analysis import bench
from cirl.gumbel import gumbel_mask, recursive_mask


@pytest.fixture
def noise(monkeypatch):
    """The noise -log(-log U) that a mask draws, recorded."""
    drawn, log_uniform = [], _gumbel_fused._log_uniform

    def watched(*arguments):
        log_U = log_uniform(*arguments)
        drawn.append(-(-log_U).log())
        return log_U

    monkeypatch.setattr(_gumbel_fused, "_log_uniform", watched)
    return drawn


def assert_same(m, expected, log_z):
    """Two masks agree, and so do their gradients by log_z under random weights."""
    torch.testing.assert_close(m, expected)
    weight = torch.randn_like(m)
    grads = [torch.autograd.grad((weight * mask).sum(), log_z)[0] for mask in (m, expected)]
    torch.testing.assert_close(*grads)


def rank_correlation(a, b):
    ranks = torch.stack([a.argsort().argsort(), b.argsort().argsort()]).double()
    return torch.corrcoef(ranks)[0, 1].item()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 0.3])
@pytest.mark.parametrize(("tile", "keep"), [(2**18, 2**25), (100, 2**25), (100, 0), (20, 2**25), (20, 50)])
def test_the_fused_mask_and_its_gradient_equal_the_plain_ones_on_the_same_noise(
    temperature, tile, keep, noise, monkeypatch
):
    monkeypatch.setattr(_gumbel_fused, "TILE", tile)
    monkeypatch.setattr(_gumbel_fused, "KEEP", keep)
    log_z = torch.randn(4, 9, dtype=torch.double, requires_grad=True)
    m = gumbel_mask(log_z, 7, temperature)
    xi = torch.full((7, 4, 9), torch.nan, dtype=torch.double)
    for (rows, draws), part in zip(_gumbel_fused._tiles(log_z, 7), noise, strict=True):
        xi[draws, rows] = part.transpose(0, 1)
    assert xi.unique().numel() == xi.numel()  # no two tiles share a seed
    expected = gumbel.independent(torch.log_softmax(log_z, 1), xi, temperature)
    assert_same(m, expected, log_z)


@pytest.mark.parametrize("draw", [gumbel_mask, recursive_mask])
@pytest.mark.parametrize("k", [4, 40])
def test_the_gradient_passes_gradcheck(draw, k):
    def mask(log_z):
        torch.manual_seed(0)
        return draw(log_z, k)

    assert torch.autograd.gradcheck(mask, torch.randn(3, 6, dtype=torch.double, requires_grad=True))


@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize(("tile", "keep"), [(2**18, 2**25), (1, 2**25), (1, 0), (80, 2**25), (80, 700)])
def test_the_recursion_and_its_gradient_equal_the_plain_ones_on_the_same_noise(
    temperature, tile, keep, noise, monkeypatch
):
    monkeypatch.setattr(_gumbel_fused, "TILE", tile)
    monkeypatch.setattr(_gumbel_fused, "KEEP", keep)
    log_z = torch.randn(4, 9, dtype=torch.double, requires_grad=True)
    m = recursive_mask(log_z, 50, temperature)
    xi = torch.full((50, 4, 9), torch.nan, dtype=torch.double)
    for (rows, draws), part in zip(_gumbel_fused._segments(log_z, 50), noise, strict=True):
        xi[draws, rows] = part
    assert xi.unique().numel() == xi.numel()  # no two tiles share a seed
    expected = gumbel.recursive(log_z, xi, temperature)
    assert_same(m, expected, log_z)


def test_the_mask_has_the_distribution_of_the_maximum_of_k_library_draws():
    log_z = torch.randn(1, 6).expand(20000, 6)
    ours = gumbel_mask(log_z, 3)
    theirs = torch.stack([gumbel_softmax(log_z, 0.5) for _ in range(3)]).amax(0)
    for bound in (0.01, 0.1, 0.5, 0.9, 0.99):
        torch.testing.assert_close((ours < bound).float().mean(0), (theirs < bound).float().mean(0), atol=0.02, rtol=0)


def test_the_recursion_has_the_distribution_of_chained_library_draws():
    log_z = torch.randn(1, 6).expand(20000, 6)
    p, theirs = log_z, torch.zeros(20000, 6)
    for _ in range(3):
        p = gumbel_softmax(p, 0.5)
        theirs = torch.maximum(theirs, p)
    torch.testing.assert_close(recursive_mask(log_z, 3).mean(0), theirs.mean(0), atol=0.02, rtol=0)


def test_independent_draws_rank_with_the_masker_and_the_recursion_forgets_it():
    log_z = torch.randn(1, 512)
    ranks = {
        name: rank_correlation(mask(log_z.expand(64, 512), 307).mean(0), log_z[0])
        for name, mask in gumbel.DRAWS.items()
    }
    assert ranks["independent"] > 0.9
    assert abs(ranks["recursive"]) < 0.2


def test_masks_lie_between_zero_and_one():
    for mask in (gumbel_mask, recursive_mask):
        m = mask(10 * torch.randn(8, 32), 19)
        assert m.shape == (8, 32) and m.min() >= 0 and m.max() <= 1 + 1e-6


def test_at_most_k_values_come_near_one_as_the_temperature_falls():
    m = gumbel_mask(torch.randn(50, 32), 5, temperature=0.01)
    assert ((m > 0.99).sum(1) <= 5).all() and ((m > 0.99).sum(1) >= 1).all()
    assert ((m < 0.01) | (m > 0.99)).float().mean() > 0.95


def test_extreme_scores_stay_finite():
    log_z = torch.tensor([[200.0, 0.0, -200.0], [0.0, 0.0, 0.0]], requires_grad=True)
    m = gumbel_mask(log_z, 3)
    m.sum().backward()
    assert m.isfinite().all() and log_z.grad.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize(("way", "beside"), [("Eq. 16, fused", 5 * 2 + 4), ("recursion, fused", 77 + 4 * 8 + 3)])
def test_a_mask_as_wide_as_resnet50_allocates_little_beside_what_it_keeps(way, beside):
    """In units of (B, N) floats, 0.52 MB here; k sequential draws keep some gigabytes for their gradient.

    384 units are kept for the backward pass. Noise takes three buffers while it is drawn: bits, the same as floats,
    and log U. Eq. 16 draws a tile, 2 units, and still holds the q and the winners of the tile before; z, best, pull and
    push are 4. In all 209 MB. The recursion keeps the starts of its k / 16 segments, 77, and holds one segment of 16
    draws of half the images, 8 units, while it draws the next; m, gradient and winners are 3. In all 260 MB."""
    megabytes = bench.in_fresh_process("peak_of_mask", way, 64, 2048, 1228, **bench.EXACT_MALLOC)
    unit = 64 * 2048 * 4 / 1e6
    assert 0.9 < megabytes / ((_gumbel_fused.KEEP / (64 * 2048) + beside) * unit) < 1.1 and megabytes < 300
