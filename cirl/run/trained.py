"""A finished run as a model: `cirl.load("data/runs/<run id>")`. Needs neither its data set nor its initial weights.

    model = cirl.load("data/runs/tiny-convnet32-cirl-street-s0")
    model.classes                          names of the classes
    model.predict(images)                  a table of class and probability, one row per image
    model.probabilities(images)            the probability of every class
    model.features(images)                 representations r, (n, N)
    model.attention(images, label=None)    where the network looks, (n, size, size) in [0, 1]

Images are paths, PIL images, or a tensor (n, 3, H, W) in [0, 1]; all are resized to the run's image size.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import interpolate

from cirl.data.cache import decode, resized
from cirl.errors import UserError, invalid
from cirl.methods.base import Method
from cirl.run.checkpoint import read_weights, trained_method
from cirl.run.config import Run
from cirl.run.files import read_json
from cirl.run.folder import locate, saved_run

BATCH = 64
Images = str | Path | Image.Image | Tensor | Sequence[str | Path | Image.Image | Tensor]


class Trained:
    """A trained method with its class names, for images from anywhere."""

    def __init__(self, method: Method, classes: list[str], device: torch.device | str = "cpu"):
        self.method, self.classes, self.device = method.to(device).eval(), classes, torch.device(device)

    @property
    def run(self) -> Run:
        return self.method.run

    def __repr__(self) -> str:
        return f"Trained({self.run.id!r}, classes={self.classes})"

    def predict(self, images: Images) -> pd.DataFrame:
        """The most probable class of each image, and its probability."""
        each = self.probabilities(images)
        return pd.DataFrame({"class": each.idxmax(axis=1), "probability": each.max(axis=1)})

    def probabilities(self, images: Images) -> pd.DataFrame:
        """The probability of every class, one row per image; rows are named by the files where images are paths."""
        several = _several(images)
        with torch.no_grad():
            logits = [self.method.predict(x) for x in self.batches(several)]
        names = [str(image) if isinstance(image, (str, Path)) else i for i, image in enumerate(several)]
        return pd.DataFrame(torch.cat(logits).softmax(1).cpu().numpy(), index=names, columns=self.classes)

    def features(self, images: Images) -> Tensor:
        """The representation r of each image, (n, N)."""
        with torch.no_grad():
            return torch.cat([self.method.features(x) for x in self.batches(_several(images))]).cpu()

    def attention(self, images: Images, label: str | int | Sequence[str | int] | None = None) -> np.ndarray:
        """Where the network looks for a class, (n, size, size) in [0, 1]; None is the predicted class.

        `label` is a class or its number, one for all images or one for each. HiResCAM: the same as Grad-CAM where the
        features are average-pooled, as in a ResNet, and faithful where they are not, as in the ConvNet."""
        from pytorch_grad_cam import HiResCAM  # slow import
        from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

        several = _several(images)
        numbers = self._numbers(label, several)
        wanted = [None if number is None else ClassifierOutputTarget(number) for number in numbers]
        maps = []
        with HiResCAM(_Logits(self.method), [_attended(self.method.encoder)]) as camera:
            for i, x in enumerate(self.batches(several)):
                some = wanted[i * BATCH : i * BATCH + len(x)]
                maps.append(camera(x, None if label is None else some))
        self.method.zero_grad()  # the maps are made of gradients
        return np.concatenate(maps)

    def batches(self, images: Sequence) -> Iterator[Tensor]:
        """The images as x in [0, 1], (B, 3, size, size) on the device."""
        for start in range(0, len(images), BATCH):
            yield torch.stack([self._tensor(image) for image in images[start : start + BATCH]]).to(self.device)

    def _tensor(self, image):
        size = self.run.image_size
        if isinstance(image, Tensor):
            if image.dim() != 3 or len(image) != 3 or not 0 <= float(image.min()) <= float(image.max()) <= 1:
                raise invalid("images", f"a tensor {tuple(image.shape)}", "(n, 3, H, W) with values in [0, 1]")
            whole = image[None].float()
            same = image.shape[1:] == (size, size)
            return whole[0] if same else interpolate(whole, (size, size), mode="bilinear", antialias=True)[0]
        pixels = (
            resized(image.convert("RGB"), size)
            if isinstance(image, Image.Image)
            else decode(Path(image).expanduser(), size)
        )
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1) / 255

    def _numbers(self, label, images):
        one = label is None or isinstance(label, (str, int))
        labels = [label] * len(images) if one else list(getattr(label, "tolist", lambda: label)())
        if len(labels) != len(images):
            raise invalid("label", label, f"one class, or one for each of the {len(images)} images")
        numbers = range(len(self.classes))
        known = dict(zip(self.classes, numbers, strict=True)) | dict(zip(numbers, numbers, strict=True)) | {None: None}
        for each in labels:
            if each not in known:
                raise invalid("label", each, self.classes)
        return [known[each] for each in labels]


def _attended(network):
    """The layer whose maps become the representation: a ResNet's last block, after its residual sum, or the ConvNet's
    last convolution."""
    return network.backbone.layer4[-1] if hasattr(network.backbone, "layer4") else network.last_convolution


class _Logits(nn.Module):
    """A method's prediction as a module's forward pass."""

    def __init__(self, method):
        super().__init__()
        self.method = method

    def forward(self, x):
        return self.method.predict(x)


def load(place: str | Path, device: torch.device | str = "cpu") -> Trained:
    """A finished run as a model: by the path of its folder, of its model.pt, or by its id."""
    folder = locate(place)
    run, classes = saved_run(folder), read_json(folder / "config.json").get("classes")
    if not (folder / "model.pt").exists():
        raise UserError(f"{folder} has no model.pt: the run is not finished; 02_train continues it.")
    if not classes:
        raise UserError(f'{folder / "config.json"} has no class names; add them as "classes": ["...", "..."].')
    return Trained(trained_method(run, len(classes), folder / "model.pt", read_weights(folder)), classes, device)


def _several(images):
    """The images as a list; a single image becomes a list of one. Raises UserError if there are none."""
    single = isinstance(images, (str, Path, Image.Image)) or (isinstance(images, Tensor) and images.dim() == 3)
    images = [images] if single else list(images)
    if not images:
        raise UserError("There are no images.")
    return images
