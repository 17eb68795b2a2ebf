from cirl.run import machine

machine.pin()  # before torch is imported

import numpy as np
import pytest
import torch
from PIL import Image

from cirl import paths


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """An empty project root for the test."""
    monkeypatch.setenv("CIRL_ROOT", str(tmp_path))
    for name in ("DATA", "RAW", "CACHE", "RUNS", "ATTENTION", "FIGURES"):
        there = tmp_path / getattr(paths, name).relative_to(paths.ROOT)
        monkeypatch.setattr(paths, name, there)
    return tmp_path


@pytest.fixture
def folder(workspace):
    """root/<domain>/<class>/*: three domains, two classes, twelve images each, of various formats and sizes."""
    rng = np.random.default_rng(0)
    for domain in ("clay", "ink", "wool"):
        for low, name in ((0, "cat"), (90, "dog")):
            place = workspace / "mine" / domain / name
            place.mkdir(parents=True)
            for i in range(12):
                pixels = rng.integers(low, low + 160, (20 + i, 40, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{i:02d}.{('jpg', 'png', 'jpeg', 'PNG')[i % 4]}")
    return workspace / "mine"
