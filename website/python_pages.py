"""Reference pages of the Python API: the public names of each package, documented by mkdocstrings from their docstrings."""

from collections.abc import Iterable, Iterator
from typing import Final

import safe_psrl
import safe_psrl_client
import safe_psrl_testbed
from safe_psrl_client import errors

CLIENT: Final = """# Python client

The public names of `safe_psrl_client`, from their docstrings. [Your own environment](../your-environment.md#connect-it) shows
them in use. `AsyncClient`, `AsyncEpisode` and `AsyncStepStream` have the same methods for asyncio.

"""
LIBRARY: Final = """# Python library

The public names of `safe_psrl`, from their docstrings. [The library](../library.md) shows them in use. Array shapes are in
square brackets: `[H, S, A]` is step, state, action.

"""
TESTBED: Final = """# Environments and embedding

The public names of `safe_psrl_testbed`, the [Gymnasium bridge](../gymnasium.md), and the server for use inside another program.

"""
FIRST_OF_CLIENT: Final = (
    "Client",
    "Episode",
    "RemoteAgent",
    "play.play",
    "Environment",
    "EpisodeResult",
    "StepStream",
    "Transition",
)
FIRST_OF_LIBRARY: Final = ("SafePsrl", "CmdpSpec", "Constraint", "SafePsrlOptions", "AgentState", "Plan", "Transition", "act")
GYMNASIUM: Final = ("gym_bridge.GymBridge", "gym_bridge.GymCost", "gym_bridge.Seen", "quantiser.Quantiser")
BASE_ERROR: Final = "SafePsrlClientError"


def client() -> str:
    public = [name for name in safe_psrl_client.__all__ if name != "play" and not name.endswith("Error")]
    names = [*_ordered(public, FIRST_OF_CLIENT), BASE_ERROR]
    tree = (errors.__doc__ or "").partition("\n\n")[2]
    return f"{CLIENT}{_directives('safe_psrl_client', names)}## All errors\n\n```text\n{tree}```\n"


def library() -> str:
    names = [name for name in _ordered(safe_psrl.__all__, FIRST_OF_LIBRARY) if name != "__version__"]
    return LIBRARY + _directives("safe_psrl", names)


def testbed() -> str:
    names = [*safe_psrl_testbed.__all__, *GYMNASIUM]
    return TESTBED + _directives("safe_psrl_testbed", names) + _directives("safe_psrl_server.embedded", ["EmbeddedServer"])


def _ordered(names: Iterable[str], first: Iterable[str]) -> Iterator[str]:
    """`first`, then the others in their order."""
    yield from first
    yield from (name for name in names if name not in set(first))


def _directives(package: str, names: Iterable[str]) -> str:
    return "".join(f"::: {package}.{name}\n\n" for name in names)
