"""ns-3's Python bindings, if installed. Importing them takes ten seconds or more and cannot be undone."""

import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any


class Ns3MissingError(ImportError):
    """ns-3 is not installed; the message says how to install it."""


def require_ns3() -> None:
    """Raise `Ns3MissingError` if it is not installed, without loading it."""
    if importlib.util.find_spec("ns3") is None:
        raise Ns3MissingError("the LTE cell needs ns-3: pip install 'safe-psrl[lte]', or `make lte` in a checkout")


def load_ns3() -> Any:
    """The namespace `ns`. Its compiler's output is shown, on standard error, only if loading fails."""
    require_ns3()
    with redirect_stdout(sys.stderr), _captured_stderr():
        from ns import ns  # noqa: PLC0415
    return ns


@contextmanager
def _captured_stderr() -> Iterator[None]:
    """C++ bypasses `sys.stderr`, so the file descriptor itself is redirected."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 2)
        try:
            yield
        except BaseException:
            captured.seek(0)
            os.write(kept, captured.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
