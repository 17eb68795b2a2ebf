import pytest
import torch
from torchvision.transforms.v2 import functional as F

from cirl.data import augment

x = torch.rand(6, 3, 8, 10)
x[0], x[1, :, :4] = 0.3, torch.tensor([0.2, 0.9, 0.2]).view(3, 1, 1)  # grey, and a tie of two channels


@pytest.mark.parametrize(
    ("ours", "theirs", "low", "high"),
    [
        (augment.brightness, F.adjust_brightness, 0.6, 1.4),
        (augment.contrast, F.adjust_contrast, 0.6, 1.4),
        (augment.saturation, F.adjust_saturation, 0.6, 1.4),
        (augment.hue, F.adjust_hue, -0.4, 0.4),
    ],
)
def test_each_change_is_that_of_torchvision_with_a_factor_for_each_image(ours, theirs, low, high):
    factors = torch.linspace(low, high, 6)
    expected = torch.stack([theirs(image, factor) for image, factor in zip(x, factors.tolist(), strict=True)])
    torch.testing.assert_close(ours(x, factors.view(-1, 1, 1, 1)), expected, atol=1e-5, rtol=0)


def test_a_whole_turn_and_no_turn_leave_the_colours():
    for turn in (0.0, 1.0, -1.0):
        torch.testing.assert_close(augment.hue(x, torch.full((6, 1, 1, 1), turn)), x, atol=1e-5, rtol=0)


def test_the_jitter_is_a_function_of_the_seed_and_stays_in_range():
    first, again, other = (augment.colour_jitter(x, 0.4, seed) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert first.min() >= -1e-6 and first.max() <= 1 + 1e-6
    torch.testing.assert_close(augment.colour_jitter(x, 0.0, 1), x, atol=1e-5, rtol=0)


def test_images_of_a_batch_have_factors_of_their_own():
    same = x[2:3].repeat(6, 1, 1, 1)
    changed = augment.colour_jitter(same, 0.4, 3)
    assert len({image.numpy().tobytes() for image in changed}) == 6
