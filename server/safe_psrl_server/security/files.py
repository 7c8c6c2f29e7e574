"""Detecting that a file has changed."""

from pathlib import Path

Signature = tuple[int, int, int] | None


def signature_of(path: Path) -> Signature:
    """Differs after a change; None while there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
