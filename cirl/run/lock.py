"""One process trains a run at a time: the file `lock` in the run's folder says which.

A process of this host is alive or it is not. One of another host is alive if it touches its lock: whoever wants the run
watches for a while, so that no two clocks are compared. A job that SLURM has begun again takes over from itself.
"""

import json
import os
import platform
import threading
import time
import warnings
from pathlib import Path

import psutil
from filelock import FileLock

from cirl.errors import UserError, reason
from cirl.run.files import write

BEAT, PATIENCE = 5.0, 30.0  # seconds between touches; how long another host's lock is watched


def take(place: Path) -> None:
    """Make the run in this folder ours, or say who is training it."""
    file = place / "lock"
    while True:
        holder = _holder(file)
        if holder and not _is_ours(holder) and _is_alive(file, holder):
            raise UserError(
                f"{place} is being trained by process {holder['pid']} on {holder['host']}; wait for it or stop it."
            )
        if _write_unless_changed(file, holder):
            break
    threading.Thread(target=_beat, args=(file,), daemon=True).start()


def check(place: Path) -> None:
    """Before a result is written: that nobody has taken the run over, as when this process had slept for long."""
    holder = _holder(place / "lock")
    if holder != _me():
        who = f"process {holder['pid']} on {holder['host']}" if holder else "somebody who removed its lock"
        raise UserError(f"{place} was taken over by {who}; this process leaves it alone.")


def release(place: Path) -> None:
    if _holder(place / "lock") == _me():
        (place / "lock").unlink()


def _me():
    began = psutil.Process().create_time()
    return {"host": platform.node(), "pid": os.getpid(), "began": began, "job": os.environ.get("SLURM_JOB_ID")}


def _holder(file):
    """Who the lock names; nobody where there is none, or none of ours."""
    try:
        holder = json.loads(file.read_text())
        return holder if set(holder) == set(_me()) else None
    except (OSError, ValueError, TypeError):
        return None


def _is_ours(holder):
    return holder == _me() or (holder["job"] is not None and holder["job"] == os.environ.get("SLURM_JOB_ID"))


def _is_alive(file, holder):
    if holder["host"] == platform.node():
        try:
            process = psutil.Process(holder["pid"])
            same = abs(process.create_time() - holder["began"]) < 2  # and not a later process of the same number
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False
    return _is_touched(file, PATIENCE)


def _is_touched(file, patience):
    """Whether the lock's time moves while we look on."""
    end, seen = time.monotonic() + patience, _touched(file)
    warnings.warn(f"{file} is of another host; looking whether it is alive ({patience:.0f} s at most)", stacklevel=2)
    while time.monotonic() < end:
        time.sleep(0.2)
        if _touched(file) != seen:
            return _touched(file) is not None
    return False


def _touched(file):
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return None


def _write_unless_changed(file, known):
    """Two that find the same dead lock do not both take it."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.parent.parent / ".lock"):
            if _holder(file) != known:
                return False
            write(file, json.dumps(_me()))
            return True
    except OSError as error:
        raise UserError(f"{file} cannot be written ({reason(error)}); make the folder writable.") from None


def _beat(file):
    """Touch the lock as long as it is ours."""
    while _holder(file) == _me():
        try:
            os.utime(file)
        except OSError:
            return
        time.sleep(BEAT)
