"""`safe-psrl conformance`: checks a server or proxy against the protocol."""

import json
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from safe_psrl_cli.connection import DEFAULT_TARGET, USER_MISTAKE, Target, client_credentials, leave, reported_errors, say

if TYPE_CHECKING:
    from safe_psrl_conformance import Verdict

BROKEN = 1


def conformance(
    target: Target = DEFAULT_TARGET,
    only: Annotated[
        list[str] | None, typer.Option(metavar="CHAPTER", help="Only this chapter; may be repeated.", show_default=False)
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the requirements that are checked, and exit.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the verdicts to this file.", dir_okay=False)
    ] = None,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Prefix of its agents' names.")] = "conformance-",
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="Deadline of a call.")] = 10.0,
    wait: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="Wait this long for a service that is starting.")] = 0.0,
) -> None:
    """Check a server, or a proxy in front of one, against docs/protocol.md. Exit code 1 if a check fails.

    It creates its own agents and deletes them. A token needs the role admin for names that begin with --prefix.

    Example: safe-psrl conformance --target 127.0.0.1:50551
    """
    from safe_psrl_conformance import CHAPTERS, Wire, run, selected  # noqa: PLC0415

    for chapter in only or ():
        if chapter not in CHAPTERS:
            leave(f"there is no chapter {chapter!r}; the chapters are {', '.join(CHAPTERS)}", USER_MISTAKE)
    checks = selected(only or ())
    if show_list:
        for check in checks:
            typer.echo(f"{check.chapter}.{check.name}\n        {check.demand}")
        return
    verdicts: list[Verdict] = []
    with reported_errors(target), Wire(target, timeout=timeout, prefix=prefix, **client_credentials()) as wire:
        wire.wait(wait)
        with _deferred_interrupt() as interrupted:
            wire.probe()
            for verdict in run(wire, checks):
                verdicts.append(verdict)
                _show(verdict)
                if interrupted.is_set():
                    raise KeyboardInterrupt
    count = Counter(verdict.result for verdict in verdicts)
    if json_file is not None:
        results = [
            {"chapter": check.chapter, "name": check.name, "demand": check.demand, "verdict": result, "reason": reason}
            for check, result, reason in verdicts
        ]
        document = {"target": target, "passed": not count["FAIL"], "results": results}
        json_file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    typer.echo(f"{count['pass']} passed, {count['FAIL']} failed, {count['skipped']} skipped")
    if count["FAIL"]:
        raise typer.Exit(BROKEN)


@contextmanager
def _deferred_interrupt() -> Iterator[Event]:
    """Ctrl-C sets the event; a second one interrupts at once.

    A call that is interrupted may still be done by the server after the call that deletes its agent, and may leave
    locks of its channel taken: checks are ended between calls instead.
    """
    interrupted = Event()

    def defer(*_: object) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, defer)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def _show(verdict: "Verdict") -> None:
    check, result, reason = verdict
    typer.echo(f"{result:<8}{check.chapter}.{check.name}")
    if reason:
        say(f"        {' '.join(reason.split())}")
    if result == "FAIL":
        typer.echo(f"        required: {check.demand}")
