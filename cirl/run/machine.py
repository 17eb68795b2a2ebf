"""The machine a run trains on: threads, workers and device, and bit-identical results on every x86 CPU.

By default PyTorch, oneDNN and MKL use the widest instructions of the CPU, and each choice sums in a different order.
With the variables in `PINNED` an Intel CPU with AVX-512 and an AMD CPU with AVX2 gave bit-identical weights after 60
steps (cirl/README.md, "The same bits"). A library reads them on first use, so they are set before torch is imported.
"""

import os
import platform
import sys
import warnings

from cirl.errors import UserError, invalid

MOST = 1024  # threads or workers
PINNED = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "COMPATIBLE"}


def pin() -> None:
    """Set the variables that are not set; warns if torch is already loaded, since it may have read them."""
    missing = {name: value for name, value in PINNED.items() if name not in os.environ}
    if missing and "torch" in sys.modules:
        warnings.warn(
            f"torch was imported before {', '.join(missing)} could be set: results may differ in their last bits "
            "from those of other machines. Restart the kernel, or set the variables earlier.",
            stacklevel=2,
        )
    os.environ.update(missing)


def use(threads: int | str, workers: int | str | None, device: str) -> tuple[str, int]:
    """Set the number of threads; the device and the number of data-loading workers to use.

    `auto` is the GPU if there is one. `None` means no workers on a CPU and up to 8 with a GPU."""
    import torch

    _skip_compiler()
    torch.set_num_threads(_count("threads", threads, least=1))
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        device = "cuda" if gpus else "cpu"
    if device not in ("cpu", "cuda", *(f"cuda:{number}" for number in range(gpus))):
        raise invalid("device", device, "auto, cpu, cuda" + (f", cuda:0 to cuda:{gpus - 1}" if gpus else ""))
    if device == "cuda" and not gpus:
        raise UserError("device='cuda': PyTorch finds no GPU on this machine; use device='cpu' or 'auto'.")
    if workers is None:
        return device, 0 if device == "cpu" else min(8, os.cpu_count() or 1)
    return device, _count("workers", workers, least=0)


def _skip_compiler():
    """Let an optimizer move without torch's compiler, which takes as long to import as torch itself.

    torch imports it at the first optimizer, only to mark there where a compiled graph would end. Optimizers are never
    compiled here (`compile` is of the encoder), so what torch has wrapped is used as it is: the same step."""
    import torch
    from torch.optim import SGD, Optimizer

    if "torch._dynamo" in sys.modules or hasattr(SGD.step, "hooked"):  # imported already, or the first one was made
        return
    setattr(SGD, "step", torch.no_grad()(_unwrapped(SGD.step)))  # noqa: B010 (mypy forbids to assign a method)
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        setattr(Optimizer, name, _unwrapped(getattr(Optimizer, name)))


def _unwrapped(function):
    return getattr(function, "__wrapped__", function)


def _count(name, value, least):
    """A whole number, also from text as papermill's -r passes it."""
    try:
        count = int(value) if isinstance(value, str) else value
    except ValueError:
        count = None
    if type(count) is not int or not least <= count <= MOST:
        raise invalid(name, value, f"a whole number from {least} to {MOST}")
    return count


def describe() -> dict[str, object]:
    """CPU model, instruction set and thread count, for a run's provenance."""
    import torch

    return {
        "cpu": cpu_model(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "pinned": {name: os.environ.get(name) for name in PINNED},
        "threads": torch.get_num_threads(),
    }


def cpu_model() -> str:
    """The name of the CPU, from /proc/cpuinfo on Linux."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
