"""One process trains a run at a time: it holds the file `lock` in the run's folder and names itself in it.

A run is protected twice. The kernel holds the lock as long as the process lives, whatever its clock, container or SLURM
job. Between hosts whose network file system does not share kernel locks, there is a heartbeat: the holder touches the
file, and a process that wants the run watches the file for a while, so that no two clocks are compared.
"""

import contextlib
import errno
import json
import os
import platform
import threading
import time
import uuid
import warnings
from functools import cache
from pathlib import Path

from filelock import FileLock, Timeout

from cirl.errors import UserError, reason

BEAT, PATIENCE = 5.0, 30.0  # seconds between heartbeats; how long the lock of another host is watched
NO_KERNEL_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # errors of a file system without locks
_held: dict[Path, FileLock] = {}  # a FileLock that is no longer referenced is released


def take(place: Path) -> None:
    """Lock a run's folder, or raise UserError naming the process that holds the lock."""
    file = place / "lock"
    if file in _held and _holder(file) == _me():
        return
    kernel = _kernel_lock(place)
    holder = _holder(file)
    if holder and not _is_over(holder, kernel.is_locked) and _is_touched(file):
        kernel.release()
        raise _busy(place, holder)
    try:
        file.write_text(json.dumps(_me()), encoding="utf-8")  # in place: a rename would leave the lock on another file
    except OSError as error:
        raise UserError(f"{file} cannot be written ({reason(error)}); free space, or make it writable.") from None
    _held[file] = kernel
    threading.Thread(target=_beat, args=(file,), daemon=True).start()


def check(place: Path) -> None:
    """Raise UserError if another process has taken over the run, e.g. while this one was suspended."""
    holder = _holder(place / "lock")
    if holder != _me():
        who = _name(holder) if holder else "a process that removed the lock"
        raise UserError(f"{place} was taken over by {who}; this process stops and changes nothing.")


def release(place: Path) -> None:
    """Remove the lock if this process holds it or its holder is dead; otherwise leave it."""
    file = place / "lock"
    kernel = _held.pop(file, None)
    if kernel is None and file.exists():
        kernel = FileLock(file, fallback_to_soft=False)
        with contextlib.suppress(Timeout, OSError):
            kernel.acquire(timeout=0)
    holder = _holder(file)
    if kernel is not None and kernel.is_locked and (not holder or holder == _me() or _is_over(holder, True)):
        file.unlink(missing_ok=True)  # before the kernel lock is released: waiting processes notice and reopen
    if kernel is not None:
        kernel.release()


def _kernel_lock(place):
    """The kernel's lock on the file; not locked if the file system has no locks, and only the heartbeat decides."""
    file = place / "lock"
    _held.pop(file, None)  # left over from a folder that was deleted in the meantime
    kernel = FileLock(file, fallback_to_soft=False, thread_local=False)
    try:
        place.mkdir(parents=True, exist_ok=True)
        kernel.acquire(timeout=0)
    except Timeout:
        raise _busy(place, _holder(file)) from None
    except OSError as error:
        if error.errno not in NO_KERNEL_LOCKS:
            raise UserError(f"{file} cannot be written ({reason(error)}); make the folder writable.") from None
    return kernel


def _busy(place, holder):
    return UserError(f"{place} is being trained by {_name(holder)}; wait for it or stop it.")


def _name(holder):
    return f"process {holder['pid']} on {holder['host']}" if holder else "another process"


def _me():
    return _identity(os.getpid())


@cache
def _identity(pid):
    """The identity of this process, determined once; it does not depend on the clock."""
    job, restart = os.environ.get("SLURM_JOB_ID"), int(os.environ.get("SLURM_RESTART_COUNT", 0))
    return {
        "host": platform.node(),
        "pid": pid,
        "boot": _boot(),
        "job": job,
        "restart": restart,
        "id": uuid.uuid4().hex,
    }


def _boot():
    """The running kernel: the same in every container of a host, another one after a reboot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return platform.node()


def _holder(file):
    """The process that the lock names; None if there is no lock or it names none."""
    try:
        holder = json.loads(file.read_text(encoding="utf-8"))
        return holder if {"host", "pid"} <= holder.keys() else None
    except (OSError, ValueError, AttributeError, RecursionError):
        return None


def _is_over(holder, locked):
    """Whether the holder is known to be dead: its kernel gave us the lock, or SLURM has restarted its job."""
    same_job = holder.get("job") is not None and holder["job"] == _me()["job"]
    restarted = same_job and isinstance(holder.get("restart"), int) and holder["restart"] < _me()["restart"]
    return (locked and holder.get("boot") == _me()["boot"]) or restarted


def _is_touched(file):
    """Whether the holder touches the lock while we watch."""
    end, seen = time.monotonic() + PATIENCE, _touched(file)
    warnings.warn(f"{file} belongs to another host; watching its heartbeat for up to {PATIENCE:.0f} s", stacklevel=2)
    while time.monotonic() < end:
        time.sleep(0.2)
        if _touched(file) != seen:
            return True
    return False


def _touched(file):
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return None


def _beat(file):
    """Touch the lock as long as this process holds it."""
    while _holder(file) == _me():
        try:
            os.utime(file)
        except OSError:
            return
        time.sleep(BEAT)
