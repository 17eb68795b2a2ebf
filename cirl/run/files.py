"""Files that are written whole or not at all, and one sentence where one is damaged."""

import hashlib
import json
import os
from pathlib import Path

from cirl.errors import UserError, reason


def write(path: Path, content: str | bytes) -> None:
    """Write under another name, then rename."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(unfinished, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({reason(error)}); what was there before is untouched. "
            "Free space, or make the folder writable, and run again."
        ) from None
    finally:
        if unfinished.exists():
            unfinished.unlink()


def write_checked(path: Path, content: bytes) -> None:
    """The same, with a first line that tells whether what follows is what was written."""
    write(path, hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def read_checked(path: Path) -> bytes | None:
    """What `write_checked` wrote; None where there is no such file, or it is damaged."""
    try:
        checksum, _, content = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    return content if hashlib.sha256(content).hexdigest().encode() == checksum else None


def read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise UserError(f"{path}, line {line}, is damaged ({error}); move the file away and run again.") from None
