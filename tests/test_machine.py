"""Bit-identical results on every x86 machine: the pinned instruction sets, and a reference run to compare with."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from cirl.data.batches import loaders
from cirl.errors import UserError
from cirl.run import machine
from cirl.run.config import Run
from cirl.run.digest import training_digest

REFERENCE = Path(__file__).parent / "reference.json"
RUN = Run(  # every value that matters is given, so that new defaults leave it as it is
    "tiny",
    "street",
    "cirl",
    epochs=15,
    batch_size=32,
    lr=0.06,
    schedule="cosine",
    recipe="released+head_lr=1+originals=1+partner=any+clip=3",
)
STEPS = f"""
import hashlib, itertools, sys, torch
from cirl.run import machine
machine.use(1, None, "cpu") if "use" in sys.argv else torch.set_num_threads(1)
from cirl.run import checkpoint
from cirl.run.config import Run
from cirl.data.batches import loaders
from cirl.methods import build
run = {RUN!r}
data, method = loaders(run), build(run, 10)
checkpoint.seed_epoch(run, 0)
for batch in itertools.islice(data.train(0), 20):
    method.update(*batch, 5)
method.restore(method.state())
weights = b"".join(parameter.detach().numpy().tobytes() for parameter in method.parameters())
slow = ["torch._dynamo", "sympy", "sklearn", "scipy", "torchvision", "seaborn"]
print(",".join(name for name in slow if name in sys.modules), hashlib.sha256(weights).hexdigest()[:16], sep=";")
"""


def reference_run(environment, *arguments):
    """The digest of the weights after twenty steps, and which packages that are slow to import were imported."""
    command = [sys.executable, "-c", STEPS, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    imported, digest = done.stdout.splitlines()[-1].split(";")
    return digest, imported


def digest_of_reference_run(environment):
    return reference_run(environment)[0]


@pytest.mark.slow
def test_a_run_imports_no_more_than_it_uses_and_gives_the_same_bits(workspace):
    """The compiler (torch._dynamo and sympy) and scikit-learn take as long to import as torch itself."""
    loaders(RUN)  # draws the images into the cache, with scikit-learn and scipy
    plain, imported = reference_run(os.environ)
    assert "torch._dynamo" in imported  # otherwise torch has changed, and machine._skip_compiler is not needed
    assert reference_run(os.environ, "use") == (plain, "")


def test_the_reference_was_computed_by_this_code():
    """Otherwise other bits would say nothing about the machine: run the steps again and write their digest down."""
    assert json.loads(REFERENCE.read_text(encoding="utf-8"))["code"] == training_digest(RUN)


@pytest.mark.slow
def test_twenty_steps_give_the_reference_bits():
    """Warns, and does not fail, on a machine with other results: records then agree within the README's tolerance."""
    expected = json.loads(REFERENCE.read_text(encoding="utf-8"))
    digest = digest_of_reference_run({**os.environ, **machine.PINNED, "OMP_NUM_THREADS": "1"})
    if digest != expected["digest"]:
        warnings.warn(f"{machine.cpu_model()}: {digest}, reference {expected['digest']}", stacklevel=1)
        pytest.skip(f"this machine ({machine.cpu_model()}) computes other bits than {', '.join(expected['cpus'])}")
    assert digest == digest_of_reference_run({**os.environ, **machine.PINNED, "OMP_NUM_THREADS": "1"})


def test_pinning_sets_what_is_missing_and_keeps_what_is_set(monkeypatch):
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    monkeypatch.setitem(sys.modules, "torch", sys.modules["torch"])
    with pytest.warns(UserWarning, match="torch was imported before ATEN_CPU_CAPABILITY could be set"):
        machine.pin()
    assert os.environ["MKL_CBWR"] == "AVX2" and os.environ["ATEN_CPU_CAPABILITY"] == "avx2"


def test_provenance_names_cpu_capability_and_threads():
    known = machine.describe()
    assert known["threads"] == 1 and known["cpu"] and set(known["pinned"]) == set(machine.PINNED)


@pytest.mark.parametrize(
    ("threads", "workers", "device", "said"),
    [
        (0, None, "cpu", "threads=0 is not possible; allowed: a whole number from 1"),
        ("many", None, "cpu", "threads='many' is not possible; allowed: a whole number from 1"),
        (1.5, None, "cpu", "threads=1.5 is not possible"),
        (True, None, "cpu", "threads=True is not possible"),
        (1, -1, "cpu", "workers=-1 is not possible; allowed: a whole number from 0"),
        (1, None, "gpu", "device='gpu' is not possible; allowed: auto, cpu, cuda"),
        (1, None, "cuda", "device='cuda': PyTorch finds no GPU on this machine"),
        (1, None, "cuda:9", "device='cuda:9' is not possible"),
    ],
)
def test_a_setting_that_the_machine_does_not_have_raises_user_error(threads, workers, device, said, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError) as error:
        machine.use(threads, workers, device)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_settings_may_be_text_and_have_sensible_defaults(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert machine.use("2", "3", "cpu") == ("cpu", 3) and torch.get_num_threads() == 2
    assert machine.use(1, None, "auto") == ("cpu", 0) and torch.get_num_threads() == 1
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert machine.use(1, None, "auto") == ("cuda", min(8, os.cpu_count()))
    assert machine.use(1, 0, "cuda:1") == ("cuda:1", 0)


def test_every_way_to_start_pins_the_same_values():
    """The Makefile, the Snakefile and the notebooks that train."""
    root = Path(__file__).resolve().parent.parent
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    for name, value in machine.PINNED.items():
        assert f"export {name} ?= {value}\n" in makefile
    assert "machine.pin()" in (root / "Snakefile").read_text(encoding="utf-8")
    for notebook in ("00_tour", "02_train", "benchmark"):
        source = (root / f"notebooks/{notebook}.ipynb").read_text(encoding="utf-8")
        first = min(source.index(line) for line in ("import torch", "from cirl.data") if line in source)
        assert source.index("machine.pin()") < first
