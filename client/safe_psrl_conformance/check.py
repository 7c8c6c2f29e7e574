"""A check: a name, a requirement of the protocol, and a function that fails if it is not met; and running checks."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import grpc

from safe_psrl_client.errors import SafePsrlClientError

if TYPE_CHECKING:
    from safe_psrl_conformance.wire import Wire

    Body = Callable[[Wire], None]


class FailedError(Exception):
    """The requirement is not met; the message says what happened instead."""


class SkippedError(Exception):
    """The check cannot run here; the message says why."""


class Check(NamedTuple):
    """One requirement of the protocol."""

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
    "updating",
    "shadow",
    "continuing",
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


class Verdict(NamedTuple):
    """The result of a check, and the reason unless it passed."""

    check: Check
    result: Literal["pass", "FAIL", "skipped"]
    reason: str


def selected(chapters: Sequence[str] = ()) -> list[Check]:
    """The checks of `chapters`, or all, in the order of the chapters."""
    return [check for chapter in CHAPTERS for check in CHECKS if check.chapter == chapter in (chapters or CHAPTERS)]


def run(wire: "Wire", checks: Sequence[Check]) -> Iterator[Verdict]:
    """Yield the verdicts one by one. Agents of a check are deleted before the next one begins."""
    for check in checks:
        try:
            yield _judged(wire, check)
        finally:
            wire.tidy()


def _judged(wire: "Wire", check: Check) -> Verdict:
    try:
        check.body(wire)
    except SkippedError as error:
        return Verdict(check, "skipped", str(error))
    except FailedError as error:
        return Verdict(check, "FAIL", str(error))
    except grpc.RpcError as error:
        return Verdict(check, "FAIL", f"a call that must succeed failed: {error.code().name}, {error.details()}")
    except SafePsrlClientError as error:  # of a stream
        return Verdict(check, "FAIL", f"a message that must succeed failed: {error}")
    return Verdict(check, "pass", "")
