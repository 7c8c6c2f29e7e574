"""One process a data directory."""

import fcntl
import os
from pathlib import Path

from safe_psrl_server.store.interface import StoreError


class DirectoryLock:
    """Held until `release`, or until the process is gone: the kernel lets go of it then."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "lock"
        self._file: int | None = None

    def acquire(self) -> None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(descriptor, 32).decode(errors="replace").strip()
            os.close(descriptor)
            raise StoreError(
                f"the data directory {self._path.parent} is in use by process {holder or '?'}: "
                "stop that server, or choose another directory with --store"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._file = descriptor

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
