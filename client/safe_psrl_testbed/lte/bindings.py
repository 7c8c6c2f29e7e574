"""ns-3's Python bindings, if they are there. Importing them takes ten seconds or more and cannot be undone."""

import importlib.util
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Ns3MissingError(ImportError):
    """With what to do about it."""


def require_ns3() -> None:
    """Without loading it."""
    if importlib.util.find_spec("ns3") is None:
        raise Ns3MissingError("the LTE cell needs ns-3: pip install 'safe-psrl[lte]', or `make lte` in a checkout")


def load_ns3() -> Any:
    """The namespace `ns`. What its compiler says on standard error while it loads is shown only if it fails."""
    require_ns3()
    with _hushed():
        from ns import ns  # noqa: PLC0415
    return ns


@contextmanager
def _hushed() -> Iterator[None]:
    """C++ writes past `sys.stderr`: so the file descriptor itself is turned away."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        except BaseException:
            said.seek(0)
            os.write(kept, said.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
