"""What the benchmark compares: our implementation, and the procedure of the released code.

Each `*_ways` is a dict from the name of an implementation to a zero-argument callable; `compare` takes the time."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import cross_entropy, gumbel_softmax

from cirl import fourier, losses
from cirl.data import batches, cache, layouts
from cirl.gumbel import gumbel_mask, recursive_mask
from cirl.methods import build
from cirl.methods.base import parameters_of
from cirl.methods.cirl import CIRL
from cirl.methods.table import METHOD_NAMES
from cirl.run.config import Run, settings

# glibc maps every block of 128 KB or more by itself and returns it when it is freed, so that resident memory is what is
# allocated. Otherwise it depends on how the heap is fragmented, and the Makefile's settings keep all that is freed.
EXACT_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_MMAP_MAX_": None, "MALLOC_TRIM_THRESHOLD_": None}


def compare(ways: dict[str, Callable[[], object]], repetitions: int) -> pd.DataFrame:
    """Seconds of each implementation, alternating, so that load on the machine affects all of them."""
    rows = []
    for repetition in range(repetitions + 1):
        for way, do in ways.items():
            start = time.perf_counter()
            do()
            rows.append((way, repetition, time.perf_counter() - start))
    table = pd.DataFrame(rows, columns=["way", "repetition", "seconds"])
    return table[table["repetition"] > 0]  # the first is a warm-up


def step_ways(backbone: str, size: int, count: int) -> dict[str, Callable[[], object]]:
    """One step on `count` originals and as many mixed images."""
    line: dict[str, Any] = dict(backbone=backbone, image_size=size, lr=1e-4)
    cirl = CIRL(Run(**line, recipe="released+head_lr=1"), 10)
    eq16 = CIRL(Run(**line, recipe="released+head_lr=1+draws=independent"), 10)
    x, y, d = (
        torch.rand(count, 3, size, size),
        torch.arange(count) % 10,
        torch.tensor([0, 1, 3])[torch.arange(count) % 3],
    )
    x_a = fourier.intervene(x, x.flip(0), torch.rand(count))
    return {
        "encoder alone": lambda: encoder_step(cirl, torch.cat([x, x_a]), y.repeat(2)),
        "CIRL, draws of Eq. 16": lambda: eq16.update(x, y, d, 4),
        "CIRL, released draws": lambda: cirl.update(x, y, d, 4),
        "released way": lambda: released_step(cirl, x, x_a, y),
    }


def step_parts(backbone: str, size: int, count: int, repetitions: int) -> pd.DataFrame:
    """Seconds of the parts of a CIRL step in the order of `CIRL.update`; those of the encoder are added up."""
    run = Run(backbone=backbone, image_size=size, lr=1e-4, recipe="released+head_lr=1+draws=independent")
    method, rows = CIRL(run, 10), []
    x, y, d = torch.rand(count, 3, size, size), torch.arange(count) % 10, torch.arange(count) % 3

    @contextmanager
    def part(name):
        start = time.perf_counter()
        yield
        rows.append((name, repetition, time.perf_counter() - start))

    for repetition in range(repetitions + 1):  # noqa: B007 (part reads it)
        with part("amplitude mix"):
            x_a = method.intervened(x, d)
        with part("encoder"):
            r = method.encoder(torch.cat([x, x_a]))
            r_o, r_a = r.chunk(2)
        with part("L_Fac"):
            L_fac = method.factorization(r_o, r_a)
        with part("masker's perceptron, forward"):
            log_z = method.masker.log_z(r.detach())
        with part("mask, forward"):
            m_o, m_a = gumbel_mask(log_z, run.k).chunk(2)
        with part("encoder"):
            L_sup, L_inf = method.masked(r_o, r_a, m_o.detach(), m_a.detach(), y)
            method.step(method.optimizers[0], losses.objectives(L_sup, L_inf, L_fac, run.tau)[0], 4)
        with part("mask, backward"):
            L_sup, L_inf = method.masked(r_o.detach(), r_a.detach(), m_o, m_a, y)
            back = torch.autograd.grad(losses.objectives(L_sup, L_inf, L_fac, run.tau)[1], log_z)
        with part("masker's perceptron, backward"):
            gradients = torch.autograd.grad(log_z, parameters_of(method.optimizers[1]), back)
        with part("masker, step"):
            method.move(method.optimizers[1], gradients, 4)
    table = pd.DataFrame(rows, columns=["way", "repetition", "seconds"])
    table = table.groupby(["way", "repetition"], sort=False, as_index=False).sum()
    return table[table["repetition"] > 0]


def mask_ways(B: int, N: int, k: int) -> dict[str, Callable[[], object]]:
    """A mask and its gradient."""
    z = torch.randn(B, N, requires_grad=True)
    return {
        "Eq. 16, fused": lambda: gumbel_mask(z, k).sum().backward(),
        "recursion, fused": lambda: recursive_mask(z, k).sum().backward(),
        "k sequential draws": lambda: sequential_mask(z, k).sum().backward(),
    }


def growth_ways() -> dict[str, Callable[[], object]]:
    """Eq. 16 and its gradient for other numbers of images and of draws."""
    sizes = [(64, 307), (64, 153), (64, 614), (32, 307), (128, 307)]
    return {f"B={B}, k={k}": mask_ways(B, 512, k)["Eq. 16, fused"] for B, k in sizes}


def mask_memory(B: int, N: int, k: int) -> dict[str, float]:
    """Peak memory that a mask and its gradient allocate, in MB, by implementation."""
    return {way: float(in_fresh_process("peak_of_mask", way, B, N, k, **EXACT_MALLOC)) for way in mask_ways(2, 2, 1)}


def peak_of_mask(way: str, B: int, N: int, k: int) -> float:
    """Peak memory that a mask and its gradient add to this process, in MB."""
    torch.set_num_threads(1)
    mask_ways(2, 2, 1)[way]()  # loads what it needs
    return peak_of(mask_ways(B, N, k)[way])


def peak_of(do: Callable[[], object]) -> float:
    """Peak memory that a call adds to this process, in MB. Exact only where the process was never larger before."""
    before = psutil.Process().memory_info().rss
    do()
    return (_highest_resident() - before) / 1e6


def _highest_resident():
    """The most that this process ever occupied, in bytes."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:  # macOS, in bytes there. On Linux this number would include the parent's
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def in_fresh_process(function: str, *arguments: object, **variables: str | None) -> str:
    """What a function of this module returns in a new process, as text; a variable that is None is unset there."""
    environment = {name: value for name, value in {**os.environ, **variables}.items() if value is not None}
    line = f"from cirl.analysis import bench; print(bench.{function}(*{arguments!r}))"
    command = [sys.executable, "-c", line]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def mix_ways(count: int, size: int) -> dict[str, Callable[[], object]]:
    """The amplitude mix of a batch."""
    x, lam = torch.rand(count, 3, size, size), torch.rand(count)
    partner = torch.arange(count).flip(0)
    arrays = [x.permute(0, 2, 3, 1).numpy(), x.flip(0).permute(0, 2, 3, 1).numpy(), lam.numpy()]
    return {
        "batched": lambda: fourier.intervene_among(x, partner, lam),
        "image by image in numpy": lambda: mix_one_by_one(*arrays),
    }


def method_ways() -> dict[str, Callable[[], object]]:
    """A step of every method on the same batch of `tiny`, past its ramp-ups."""
    x, y, d = torch.rand(32, 3, 32, 32), torch.arange(32) % 10, torch.tensor([0, 1, 3, 0] * 8)
    learners = {name: build(Run(method=name), 10) for name in METHOD_NAMES}
    return {name: partial(one.update, x, y, d, one.epochs - 1) for name, one in learners.items()}


def loading_ways(dataset: str, size: int, count: int = 64) -> dict[str, Callable[[], object]]:
    """Batches of sixteen from the cache, and the same images decoded from their files."""
    run = Run(dataset, settings(dataset).domains[0], weights="none", image_size=size)
    table, index, folder = batches.loaders(run).table, layouts.index(dataset), layouts.root(dataset)
    rows = np.arange(count) * (len(index) // count)
    parts, seeds, cpu = np.split(np.arange(count), count // 16), np.arange(count // 16), torch.device("cpu")

    def decoded():
        images = np.stack([cache.decode(folder / index["path"][row], size) for row in rows])
        fresh = batches.ImageTable(images, table.labels[rows], table.domains[rows], table.transform)
        return [*batches.Stream(fresh, cpu, 0).batches(parts, seeds)]

    return {
        "from the cache": lambda: [*batches.Stream(table, cpu, 0).batches([rows[part] for part in parts], seeds)],
        "from the cache, not augmented": lambda: [table.images[rows[part]] for part in parts],
        "decoded from files": decoded,
        "decoded, not augmented": lambda: [cache.decode(folder / index["path"][row], size) for row in rows],
    }


def write_tiny(folder: Path, per_class: int = 10) -> str:
    """Some images of `tiny` as JPEG files of 227 pixels, like those of PACS; the name of the data set."""
    index = layouts.index("tiny")
    images = cache.pixels("tiny", index, 32)
    for i in index.groupby(["domain", "label"]).head(per_class).index:
        place = folder / index["domain"][i] / str(index["label"][i])
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[i]).resize((227, 227)).save(place / f"{i}.jpg", quality=95)
    return f"folder:{folder}"


def sequential_mask(log_z: Tensor, k: int, temperature: float = 0.5, recursive: bool = False) -> Tensor:
    """k library draws, one after the other, through autograd."""
    m, p = torch.zeros_like(log_z), log_z
    for _ in range(k):
        p = gumbel_softmax(p if recursive else log_z, temperature)
        m = torch.maximum(m, p)
    return m


def mix_one_by_one(x: np.ndarray, x_prime: np.ndarray, lam: np.ndarray) -> np.ndarray:
    """The amplitude mix image by image: full complex spectra in numpy, (B, H, W, 3) in [0, 1]."""
    mixed = []
    for one, other, weight in zip(x, x_prime, lam, strict=True):
        spectrum, lender = np.fft.fft2(one, axes=(0, 1)), np.fft.fft2(other, axes=(0, 1))
        A = (1 - weight) * np.abs(spectrum) + weight * np.abs(lender)
        back = np.real(np.fft.ifft2(A * np.exp(1j * np.angle(spectrum)), axes=(0, 1)))
        mixed.append(np.clip(back, 0, 1))
    return np.stack(mixed)


def encoder_step(method: CIRL, images: Tensor, y: Tensor) -> None:
    """The minimum of any method: one forward and backward pass of the encoder, one step."""
    method.step(method.optimizers[0], cross_entropy(method.predict(images), y), 0)


def released_step(method: CIRL, x_o: Tensor, x_a: Tensor, y: Tensor) -> None:
    """Two passes of the encoder, k sequential draws in each, gradients for everything in both."""
    for optimizer, sign in zip(method.optimizers, (1, -1), strict=True):
        r_o, r_a = method.encoder(torch.cat([x_o, x_a])).chunk(2)
        log_z = method.masker.log_z(torch.cat([r_o, r_a]).detach())
        m_o, m_a = sequential_mask(log_z, method.masker.k, recursive=True).chunk(2)
        L_sup, L_inf = method.masked(r_o, r_a, m_o, m_a, y)
        loss = L_sup + sign * L_inf
        if sign > 0:
            loss = loss + method.run.tau * losses.released_factorization_loss(losses.correlation_matrix(r_o, r_a))
        for each in method.optimizers:
            each.zero_grad()
        loss.backward()
        optimizer.step()
