"""Where a run comes from: code, packages, machine, data and weights."""

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import torch

from cirl.data.batches import Loaders
from cirl.data.cache import data_digest
from cirl.data.pretrained import weights_digest
from cirl.run import machine
from cirl.run.digest import training_digest

PACKAGES = ("torch", "torchvision", "numpy", "scikit-learn", "matplotlib", "pillow")


def provenance(data: Loaders) -> dict:
    """Code, packages, machine, data and weights, for config.json."""
    return {
        "commit": commit(),
        "code": training_digest(data.run),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        **hardware(data),
        **inputs(data),
    }


def hardware(data: Loaders) -> dict:
    """What the last bits of a result depend on."""
    device = data.device.type if data.device.type == "cpu" else torch.cuda.get_device_name(data.device)
    return {"device": device, **machine.describe()}


def inputs(data: Loaders) -> dict:
    """The digests of the data and of the initial weights."""
    return {
        "data_digest": data_digest(data.table.images),
        "weights_digest": weights_digest(data.run.backbone, data.run.weights),
    }


def commit() -> str:
    """The commit of the code, with `-dirty` if the package differs from it, or `unknown` outside of git."""
    git = ["git", "-C", str(Path(__file__).parent.parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        changed = subprocess.run([*git, "status", "--porcelain", "."], capture_output=True, text=True).stdout.strip()
    except OSError:
        return "unknown"
    return f"{head}{'-dirty' if changed else ''}" if head else "unknown"
