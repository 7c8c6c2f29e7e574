"""The console beside the demonstration: a process of its own, that the demonstration does without if it must."""

import contextlib
import re
import selectors
import signal
import subprocess
import sys
from importlib.util import find_spec
from typing import IO, Final, Self

START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 10.0


class DemoConsole:
    """A context manager: `with DemoConsole(target) as console: console.url`. The address is empty if there is no console."""

    def __init__(self, target: str) -> None:
        self._command = [sys.executable, "-m", "safe_psrl_cli.main", "console", "--target", target, "--listen", "127.0.0.1:0"]
        self._process: subprocess.Popen[str] | None = None
        self.url = ""
        self.why_not = ""

    def __enter__(self) -> Self:
        if find_spec("nicegui") is None:
            self.why_not = "it needs nicegui: pip install 'safe-psrl[console]'"
            return self
        self._process = subprocess.Popen(  # noqa: S603  # our own command; Ctrl-C is for the demonstration, which stops this too
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        said = _first_line(self._process.stdout)
        found = re.search(r"http://\S+", said)
        self.url = found[0] if found else ""
        self.why_not = "" if found else "it did not start"
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()


def _first_line(stream: IO[str] | None) -> str:
    """What it says when it is ready; nothing if it ends or is not ready in time."""
    if stream is None:
        return ""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        return stream.readline() if selector.select(START_SECONDS) else ""
