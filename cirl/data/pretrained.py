"""Weights to start from: torchvision's for ImageNet, or a state-dict file that the user names."""

import hashlib
import re
from pathlib import Path

import torch
from torch import Tensor, nn

from cirl.errors import UserError, reason


def load_weights(backbone: str, weights: str) -> dict[str, Tensor]:
    """The state dict of torchvision's ResNet that `weights` (imagenet, or a path) stands for."""
    file = weights_file(backbone, weights)
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(f"weights={weights!r} cannot be read as a state-dict file ({reason(error)}).") from None
    reference = resnet_of_torchvision(backbone).state_dict()
    if not isinstance(state, dict):
        raise UserError(f"weights={weights!r} is not a state dict of {backbone}, but a {type(state).__name__}.")
    wrong = [key for key, value in reference.items() if getattr(state.get(key), "shape", None) != value.shape]
    wrong += [key for key in state if key not in reference]
    if wrong:
        raise UserError(f"weights={weights!r} is not a state dict of {backbone}: see its entry {wrong[0]!r}.")
    return state


def weights_file(backbone: str, weights: str) -> Path:
    """The file of the weights, fetched into torch.hub's cache if need be, its checksum checked.

    torchvision writes the first digits of the SHA-256 into the file's name; a file of that form is held to it."""
    file = imagenet_file(backbone) if weights == "imagenet" else Path(weights).expanduser()
    if not file.is_file():
        raise UserError(f"weights={weights!r}: there is no file {file}.")
    said = re.search(r"-([0-9a-f]{8,})\.pth$", file.name)
    if said and not sha256(file).startswith(said[1]):
        raise UserError(
            f"weights={weights!r}: {file} is damaged, its SHA-256 does not begin with {said[1]}; "
            "delete it and try again."
        )
    return file


def imagenet_file(backbone: str) -> Path:
    """torchvision's ImageNet weights in torch.hub's cache, fetched once."""
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
    from torchvision.models import get_model_weights  # late: it takes seconds, and most runs need no ResNet

    return get_model_weights(backbone).IMAGENET1K_V1.url


def resnet_of_torchvision(backbone: str) -> nn.Module:
    from torchvision.models import get_model

    return get_model(backbone, weights=None)


def weights_digest(backbone: str, weights: str) -> str | None:
    """What a run's provenance says of its weights; nothing where it starts from chance."""
    return None if weights == "none" else sha256(weights_file(backbone, weights))[:16]


def sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
