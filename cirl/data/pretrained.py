"""Weights to start from: torchvision's for ImageNet, or a state-dict file that the user names."""

import hashlib
import re
from pathlib import Path

import torch
from torch import Tensor, nn

from cirl import paths
from cirl.errors import UserError, reason


def load_weights(backbone: str, weights: str) -> dict[str, Tensor]:
    """The state dict of torchvision's ResNet that `weights` (imagenet, or a path) names, in its own types."""
    file = weights_file(backbone, weights)
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception:  # torch's message advises to load the file without this check
        raise UserError(
            f"weights={weights!r} cannot be read: it is not a torch.save file that holds only tensors."
        ) from None
    reference = resnet_of_torchvision(backbone).state_dict()
    if not isinstance(state, dict):
        raise UserError(f"weights={weights!r} is not a state dict of {backbone}, but a {type(state).__name__}.")
    wrong = [key for key, value in reference.items() if not _is_alike(state.get(key), value)]
    wrong += [key for key in state if key not in reference]
    if wrong:
        raise UserError(f"weights={weights!r} is not a state dict of {backbone}: see its entry {wrong[0]!r}.")
    return {key: state[key].to(value.dtype) for key, value in reference.items()}


def _is_alike(value, reference):
    """Whether a tensor has the shape and kind of another; half precision is accepted for single."""
    kinds = isinstance(value, Tensor) and value.is_floating_point() == reference.is_floating_point()
    return kinds and value.shape == reference.shape


def weights_file(backbone: str, weights: str) -> Path:
    """The file of the weights, downloaded into torch.hub's cache if missing, with its checksum checked.

    torchvision writes the first digits of the SHA-256 into the file's name; a file with such a name must match it."""
    file = imagenet_file(backbone) if weights == "imagenet" else paths.located(weights)
    if not file.is_file():
        raise UserError(f"weights={weights!r}: there is no file {str(file)!r}.")
    stated = re.search(r"-([0-9a-f]{8,})\.pth$", file.name)
    if stated and not sha256(file).startswith(stated[1]):
        raise UserError(
            f"weights={weights!r}: {file} is damaged, its SHA-256 does not begin with {stated[1]}; "
            "delete it and try again."
        )
    return file


def imagenet_file(backbone: str) -> Path:
    """torchvision's ImageNet weights in torch.hub's cache, downloaded once."""
    url = imagenet_url(backbone)
    file = Path(torch.hub.get_dir()) / "checkpoints" / Path(url).name
    if not file.exists():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(url, str(file), hash_prefix=file.stem.split("-")[-1])
        except Exception as error:
            raise UserError(
                f"weights='imagenet': {file.name} is not in {file.parent} and could not be fetched from {url} "
                f"({reason(error)}). Put the file there, name another with weights=<path>, "
                "or start from weights='none'."
            ) from None
    return file


def imagenet_url(backbone: str) -> str:
    from torchvision.models import get_model_weights  # slow import, and most runs need no ResNet

    return get_model_weights(backbone).IMAGENET1K_V1.url


def resnet_of_torchvision(backbone: str) -> nn.Module:
    from torchvision.models import get_model

    return get_model(backbone, weights=None)


def weights_digest(backbone: str, weights: str) -> str | None:
    """The digest of the initial weights for a run's provenance; None if they are random."""
    return None if weights == "none" else sha256(weights_file(backbone, weights))[:16]


def sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
