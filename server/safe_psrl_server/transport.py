"""How gRPC is set up in a process that is a server and nothing else: by its environment, before it is loaded."""

import os
from collections.abc import Mapping
from typing import Final

SETTINGS: Final[Mapping[str, str]] = {
    "GRPC_VERBOSITY": "NONE",  # what it has to say about a port that is taken, we say
    # Connections are read by the thread that waits for calls. In gRPC's newer way three others wake for each call.
    "GRPC_EXPERIMENTS": "-event_engine_listener",
}


def set_up_transport() -> None:
    """Whatever the environment says already stays."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
