"""What the benchmark compares: our implementation, and the procedure of the released code.

Each `*_ways` is a dict from the name of an implementation to a zero-argument callable; `compare` takes the time.
`in_fresh_process` runs a function of this module elsewhere: for its peak memory, or with other instruction sets."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
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
from cirl.methods.base import TwoPhases, parameters_of
from cirl.methods.cirl import CIRL
from cirl.methods.table import LABELS, METHOD_NAMES
from cirl.run import machine
from cirl.run.checkpoint import train_epoch
from cirl.run.config import Run, settings

UNPINNED = dict.fromkeys(machine.PINNED)
GROWTH = {  # what is varied -> points (B originals, N dimensions, k draws) of a CIRL step
    "B": [(B, 256, 153) for B in (8, 16, 32, 64, 128)],
    "N": [(32, N, int(0.6 * N)) for N in (128, 256, 512, 1024)],
    "k": [(32, 512, k) for k in (38, 77, 154, 307)],
}
EQ_16 = "Eq. 16, fused"
SHARES = (8, 4, 2, 1)  # an epoch on every eighth image, every fourth, ...
# glibc maps every block of 128 KB or more by itself and returns it when it is freed, so that resident memory is what is
# allocated. Otherwise it depends on how the heap is fragmented, and the Makefile's settings keep all that is freed.
EXACT_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_MMAP_MAX_": None, "MALLOC_TRIM_THRESHOLD_": None}


def compare(ways: Mapping[Any, Callable[[], object]], repetitions: int) -> pd.DataFrame:
    """Seconds of each implementation, alternating, so that load on the machine affects all of them."""
    rows, now = [], clock()
    for repetition in range(repetitions + 1):
        for way, do in ways.items():
            start = now()
            do()
            rows.append((way, repetition, now() - start))
    table = pd.DataFrame(rows, columns=["way", "repetition", "seconds"])
    return table[table["repetition"] > 0]  # the first is a warm-up


def clock() -> Callable[[], float]:
    """CPU time where one thread works: other processes then do not count. With more threads the time on the wall."""
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


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
    method, rows, now = CIRL(run, 10), [], clock()
    x, y, d = torch.rand(count, 3, size, size), torch.arange(count) % 10, torch.arange(count) % 3

    @contextmanager
    def part(name):
        start = now()
        yield
        rows.append((name, repetition, now() - start))

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
        EQ_16: lambda: gumbel_mask(z, k).sum().backward(),
        "recursion, fused": lambda: recursive_mask(z, k).sum().backward(),
        "k sequential draws": lambda: sequential_mask(z, k).sum().backward(),
    }


def cirl_step(B: int, N: int, k: int) -> Callable[[], object]:
    """A step of CIRL with the draws of Eq. 16 on B originals and B mixed images of 32 pixels."""
    recipe = "released+head_lr=1+draws=independent+k=floor"
    method = CIRL(Run(backbone="convnet32", dim=N, kappa=(k + 0.5) / N, image_size=32, lr=1e-4, recipe=recipe), 10)
    x, y, d = torch.rand(B, 3, 32, 32), torch.arange(B) % 10, torch.tensor([0, 1, 3])[torch.arange(B) % 3]
    return lambda: method.update(x, y, d, 4)


def epoch_of(share: int) -> Callable[[], object]:
    """An epoch of CIRL on `tiny` with its evaluation, on every so-many-th image."""
    run = Run("tiny", "street", "cirl")
    data, method = batches.loaders(run), build(run, 10)
    data = replace(data, parts={part: rows[::share] for part, rows in data.parts.items()})
    return lambda: train_epoch(method, data, run.epochs - 1)


def growth(repetitions: int) -> pd.DataFrame:
    """Seconds and MB of a CIRL step against B, N and k, and of an epoch against its images: varied, x, what, value."""
    steps = [(name, point["BNk".index(name)], point) for name, some in GROWTH.items() for point in some]
    ways = {("step, seconds", name, x): cirl_step(*point) for name, x, point in steps}
    ways |= {("mask alone, seconds", name, x): mask_ways(2 * B, N, k)[EQ_16] for name, x, (B, N, k) in steps}
    epochs = {("epoch, seconds", "images", images_of(share)): epoch_of(share) for share in SHARES}
    times = pd.concat([compare(ways, repetitions), compare(epochs, min(3, repetitions))])
    rows = [(*way, value) for way, value in times.groupby("way", sort=False)["seconds"].median().items()]
    peaks = in_fresh_process("growth_peaks", **EXACT_MALLOC)
    rows += [("step, MB", name, x, peak) for (name, x, _), peak in zip(steps, peaks[: len(steps)], strict=True)]
    rows += [("epoch, MB", *epoch[1:], peak) for epoch, peak in zip(epochs, peaks[len(steps) :], strict=True)]
    return pd.DataFrame(rows, columns=["what", "varied", "x", "value"])


def images_of(share: int) -> int:
    """The training images of `epoch_of`."""
    return len(batches.loaders(Run("tiny", "street", "cirl")).parts["train"][::share])


def growth_peaks() -> list[float]:
    """The peak memory of each point of `growth`, in its order, in MB, beyond the network and the images."""
    torch.set_num_threads(1)
    epoch_of(max(SHARES))()  # loads what is needed
    steps = [peak_of(cirl_step(*point)) for some in GROWTH.values() for point in some]
    return steps + [peak_of(epoch_of(share)) for share in SHARES]


def exponents(table: pd.DataFrame) -> pd.Series:
    """The slope of each line of `growth` on log axes, by least squares."""
    lines = table.groupby(["what", "varied"], sort=False)[["x", "value"]]
    return lines.apply(lambda part: float(np.polyfit(np.log(part["x"]), np.log(part["value"]), 1)[0]))


def mask_memory(B: int, N: int, k: int) -> dict[str, float]:
    """Peak memory that a mask and its gradient allocate, in MB, by implementation."""
    return {way: in_fresh_process("peak_of_mask", way, B, N, k, **EXACT_MALLOC) for way in mask_ways(2, 2, 1)}


def peak_of_mask(way: str, B: int, N: int, k: int) -> float:
    """Peak memory that a mask and its gradient add to this process, in MB."""
    torch.set_num_threads(1)
    mask_ways(2, 2, 1)[way]()  # loads what it needs
    return peak_of(mask_ways(B, N, k)[way])


def peak_of(do: Callable[[], object]) -> float:
    """Peak memory that a call adds to this process, in MB."""
    with suppress(OSError):  # let the highest be the present; without it, exact if the process was never larger
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    before = psutil.Process().memory_info().rss
    do()
    return (_highest_resident() - before) / 1e6


def _highest_resident():
    """The most that this process occupied, in bytes."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:  # macOS, in bytes there. On Linux this number would include the parent's
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def in_fresh_process(function: str, *arguments: object, **variables: str | None) -> Any:
    """What a function of this module returns in a new process; a variable that is None is unset there."""
    environment = {name: value for name, value in {**os.environ, **variables}.items() if value is not None}
    line = f"import json; from cirl.analysis import bench; print(json.dumps(bench.{function}(*{arguments!r})))"
    command = [sys.executable, "-c", line]
    return json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout)


def times_of_step(threads: int, backbone: str, size: int, count: int, repetitions: int) -> list[dict]:
    """`step_ways` without the released way, and `step_parts`, as rows; for `in_fresh_process`."""
    torch.set_num_threads(threads)
    ways = {way: do for way, do in step_ways(backbone, size, count).items() if way != "released way"}
    whole = compare(ways, repetitions).assign(group="step", base="encoder alone")
    parts = step_parts(backbone, size, count, repetitions).assign(group="profile", base="encoder")
    return pd.concat([whole, parts]).to_dict("records")


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
    """A step of every method on one batch of `tiny`, past its ramp-ups; of those with two phases also the first."""
    x, y, d = torch.rand(32, 3, 32, 32), torch.arange(32) % 10, torch.tensor([0, 1, 3, 0] * 8)
    data = batches.loaders(Run("tiny", "street"))
    ways: dict[str, Callable[[], object]] = {}
    for name in METHOD_NAMES:
        method = build(Run(method=name), 10)
        method.begin_epoch(data, 0)
        ways[LABELS[name]] = partial(method.update, x, y, d, method.epochs - 1)
        if isinstance(method, TwoPhases):
            ways[f"{LABELS[name]}, first phase"] = partial(method.update, x, y, d, 0)
    return ways


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
