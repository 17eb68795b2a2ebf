"""Atomic writes, checksums, and a readable error for a damaged file."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from cirl.errors import UserError, reason


def write(path: Path, content: str | bytes | list[bytes], before: Callable[[], None] = lambda: None) -> None:
    """Write to a temporary file, then rename it. `before` is called just before the rename, and may raise instead."""
    parts = content if isinstance(content, list) else [content.encode() if isinstance(content, str) else content]
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(unfinished, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        before()
        os.replace(unfinished, path)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({reason(error)}); the previous content is untouched. "
            "Free space, or make the folder writable, and run again."
        ) from None
    finally:
        if unfinished.exists():
            unfinished.unlink()


def write_checked(path: Path, content: bytes, before: Callable[[], None] = lambda: None) -> None:
    """`write` with the SHA-256 of the content as first line, for `read_checked`."""
    write(path, [hashlib.sha256(content).hexdigest().encode() + b"\n", content], before)


def read_checked(path: Path) -> bytes | None:
    """What `write_checked` wrote; None if the file is missing or damaged."""
    try:
        with open(path, "rb") as file:
            checksum, content = file.readline().strip(), file.read()
    except OSError:
        return None
    return content if hashlib.sha256(content).hexdigest().encode() == checksum else None


def is_intact(path: Path) -> bool:
    """Whether `read_checked` would return something, without holding the content in memory."""
    try:
        with open(path, "rb") as file:
            checksum = file.readline().strip()
            return hashlib.file_digest(file, "sha256").hexdigest().encode() == checksum
    except OSError:
        return False


def read_json(path: Path) -> dict:
    """A JSON object; a UserError if the file holds anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({reason(error)}).") from None
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        said = reason(error) if isinstance(error, ValueError) else "nested too deeply"
        raise UserError(f"{path}, line {line}, is damaged ({said}); move the file away and run again.") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged (not a JSON object); move the file away and run again.")
    return content
