"""The same bits on every x86 machine: the instruction sets that PyTorch, oneDNN and MKL may choose, pinned.

Left alone, each library picks the widest instructions of the CPU and adds in another order on each of them. With these
variables an Intel CPU with AVX-512 and an AMD CPU with AVX2 gave the same weights after 60 steps (README, "The same
bits"). They are read when a library is first used, so they must be set before torch is imported.
"""

import os
import platform
import sys
import warnings

PINNED = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "COMPATIBLE"}


def pin() -> None:
    """Set the variables that are not set; warns where torch is loaded already, since it may have chosen."""
    missing = {name: value for name, value in PINNED.items() if name not in os.environ}
    if missing and "torch" in sys.modules:
        warnings.warn(
            f"torch was imported before {', '.join(missing)} could be set: results may differ in their last bits "
            "from those of other machines. Restart the kernel, or set the variables before.",
            stacklevel=2,
        )
    os.environ.update(missing)


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
    """The CPU's name as Linux gives it, or what Python knows elsewhere."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
