import pytest
import torch

from cirl import paths


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """A project root of the test's own, with nothing in it."""
    monkeypatch.setenv("CIRL_ROOT", str(tmp_path))
    for name in ("DATA", "RAW", "CACHE", "RUNS", "FIGURES"):
        there = tmp_path / getattr(paths, name).relative_to(paths.ROOT)
        monkeypatch.setattr(paths, name, there)
    return tmp_path
