"""The shim between the server and the kernel: built by the test, armed and disarmed through a file that both map."""

import mmap
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.system.debian import program

SOURCE: Final = Path(__file__).parent / "shim.c"
FAIL_WRITE, FAIL_SYNC, TEAR_WRITE, STALL_SYNC = 1, 2, 3, 4
BLOCK: Final = struct.Struct("=7q")  # as in shim.c
SIZE: Final = 4096


class Shim:
    """`command(script)` is the server with it. Harmless until it is armed."""

    def __init__(self, directory: Path, data: Path) -> None:
        self._library = directory / "shim.so"
        self._control = directory / "shim-control"
        self._data = data
        compiler = program("gcc", "gcc")
        options = ["-shared", "-fPIC", "-O1", "-nostdlib", "-fno-builtin", "-Wall", "-Werror"]
        subprocess.run([compiler, *options, "-o", self._library, SOURCE], check=True)
        self._control.write_bytes(bytes(SIZE))
        with self._control.open("r+b") as file:
            self._block = mmap.mmap(file.fileno(), SIZE)

    def command(self, script: Sequence[str]) -> list[str]:
        settings = {"LD_PRELOAD": self._library, "FAULTS_CONTROL": self._control, "FAULTS_DIRECTORY": self._data}
        return ["env", *(f"{name}={value}" for name, value in settings.items()), *script]

    def arm(self, mode: int, after: int, error: int = 0, *, lasting: bool = False, stall: int = 0) -> None:
        """After so many calls that succeed, the next one does not; with `lasting` none that follows does either.

        It blocks for `stall` milliseconds before that, as calls to a dying disk do.
        """
        self.lift()
        struct.pack_into("=3q", self._block, 8, after, error, int(lasting))
        struct.pack_into("=q", self._block, 48, stall)
        struct.pack_into("=q", self._block, 0, mode)  # last: it takes effect now

    def lift(self) -> None:
        struct.pack_into("=q", self._block, 0, 0)

    @property
    def hits(self) -> int:
        """Calls that were harmed so far, the present one included."""
        return int(BLOCK.unpack_from(self._block)[5])

    @property
    def shift(self) -> int:
        """Seconds that the server's clock is ahead."""
        return int(BLOCK.unpack_from(self._block)[4])

    @shift.setter
    def shift(self, seconds: int) -> None:
        struct.pack_into("=q", self._block, 32, seconds)
