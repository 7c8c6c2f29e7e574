"""Running checks one after the other, each to a verdict."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import grpc

from safe_psrl_client.errors import SafePsrlClientError
from safe_psrl_conformance.check import CHAPTERS, CHECKS, Check, FailedError, SkippedError
from safe_psrl_conformance.wire import Wire


class Verdict(NamedTuple):
    """What became of a check, and why unless it passed."""

    check: Check
    result: Literal["pass", "FAIL", "skipped"]
    reason: str


def selected(chapters: Sequence[str] = ()) -> list[Check]:
    """The checks of `chapters`, or all, in the order of the chapters."""
    return [check for chapter in CHAPTERS for check in CHECKS if check.chapter == chapter in (chapters or CHAPTERS)]


def run(wire: Wire, checks: Sequence[Check]) -> Iterator[Verdict]:
    """A verdict after the other. Agents of a check are deleted before the next one begins."""
    for check in checks:
        try:
            yield _judged(wire, check)
        finally:
            wire.tidy()


def _judged(wire: Wire, check: Check) -> Verdict:
    try:
        check.body(wire)
    except SkippedError as error:
        return Verdict(check, "skipped", str(error))
    except FailedError as error:
        return Verdict(check, "FAIL", str(error))
    except grpc.RpcError as error:
        return Verdict(check, "FAIL", f"a call that must succeed: {error.code().name}, {error.details()}")
    except SafePsrlClientError as error:  # of a stream
        return Verdict(check, "FAIL", f"a message that must succeed: {error}")
    return Verdict(check, "pass", "")
