"""A check: a name, what it demands, and a function that fails if it is not given."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from safe_psrl_conformance.wire import Wire

    Body = Callable[[Wire], None]


class FailedError(Exception):
    """The demand is not met: what came instead."""


class SkippedError(Exception):
    """It cannot be checked here: why."""


class Check(NamedTuple):
    """One demand of the protocol."""

    chapter: str
    name: str
    demand: str
    body: "Body"


# In the order of docs/protocol.md. The checks of each are a module here.
CHAPTERS: Final = (
    "agents",
    "episodes",
    "ordering",
    "idempotency",
    "streams",
    "errors",
    "deadlines",
    "pausing",
    "moving",
    "transport",
)
CHECKS: Final[list[Check]] = []


def check(demand: str) -> "Callable[[Body], Body]":
    """Enter a function under its module's chapter and its own name."""

    def enter(body: "Body") -> "Body":
        chapter = body.__module__.rpartition(".")[2]
        CHECKS.append(Check(chapter, body.__name__.replace("_", "-"), demand, body))
        return body

    return enter


def require(given: bool, otherwise: str) -> None:
    """Fail with `otherwise` unless `given`."""
    if not given:
        raise FailedError(otherwise)


def same(what: str, found: object, expected: object) -> None:
    """Fail unless the two are equal."""
    if found != expected:
        raise FailedError(f"{what} is {_short(found)}, not {_short(expected)}")


def _short(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 120 else text[:120] + "…"
