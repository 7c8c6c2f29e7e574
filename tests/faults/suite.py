"""One fault, so many rounds, one seed: clients play, the fault strikes, the history is judged. Gives a row of the table."""

import random
import statistics
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc

from tests.faults.checker import Verdict, View, first_acknowledged, judge, look
from tests.faults.fault import SNAPSHOT_EVENTS, Fault
from tests.faults.history import History
from tests.faults.load import Load
from tests.faults.traffic import Traffic
from tests.system.server_process import START_SECONDS, wait_until

SHOWN_FINDINGS = 10
MOST_EVENTS = 3 * SNAPSHOT_EVENTS  # that a start may have to read of an agent


class FaultError(AssertionError):
    """A promise was broken."""


def run(kind: type[Fault], rounds: int, seed: int, directory: Path) -> dict[str, Any]:
    """The row of the table. Raises `FaultError` with all that is wrong."""
    fault = kind(directory, random.Random(f"{seed} {kind.__name__}"))
    with closing(fault), History(directory / "history.jsonl") as history:
        fault.start()
        traffic = Traffic(history, fault.targets, patience=fault.patience, uncertain=fault.uncertain)
        load = Load(traffic, seed, single_client=fault.single_client)
        strikes, failures = _struck(fault, load, rounds)
        verdict = Verdict()
        if not failures or _is_up(fault):
            verdict = _judged(fault, load, history, failures)
        if findings := [*dict.fromkeys([*failures, *verdict.findings])]:
            raise FaultError(_told(kind, rounds, seed, verdict, findings, history.path))
        recoveries = [first_acknowledged(history.entries(), load.agents, struck) for struck in strikes]
    row = {"fault": kind.__name__, "title": kind.title, "seed": seed, "rounds": rounds, "note": fault.note}
    return row | vars(verdict) | {"recovery_median": statistics.median(recoveries), "recovery_most": max(recoveries)}


def _struck(fault: Fault, load: Load, rounds: int) -> tuple[list[float], list[str]]:
    """The moments of recovery, and what went wrong while clients played."""
    strikes, failures = list[float](), list[str]()
    fault.strikes_at(load.traffic)
    try:
        load.begin()
        for _ in range(rounds):
            load.wait_for_calls(fault.chosen.randint(2, 20))
            strikes.append(fault.strike())
            load.wait_for_recovery(strikes[-1])
    except AssertionError as error:
        failures.append(str(error))
    try:
        load.end()
        if not failures:
            fault.settle()
    except AssertionError as error:
        failures.append(str(error))
    return strikes, failures


def _is_up(fault: Fault) -> bool:
    process = fault.server.process
    return process is not None and process.poll() is None


def _judged(fault: Fault, load: Load, history: History, failures: list[str]) -> Verdict:
    views: dict[str, View] = {}
    metrics = wait_until(lambda: fault.server.http("/metrics")[1], START_SECONDS, "there are metrics")
    for agent in load.agents:
        try:
            views[agent] = look(fault.server.admin, agent, metrics)
        except grpc.RpcError as error:
            failures.append(f"{agent} cannot be asked for: {error.code().name}: {error.details()}")
    failures += [
        f"{agent}: a start reads {view.verified.events} events: it is bounded by history, not by snapshots"
        for agent, view in views.items()
        if view.verified.events > MOST_EVENTS
    ]
    return judge(history.entries(), views, repeats_by_network=fault.repeats_by_network)


def _told(kind: type[Fault], rounds: int, seed: int, verdict: Verdict, findings: list[str], history: Path) -> str:
    shown = "\n  ".join(findings[:SHOWN_FINDINGS])
    more = f"\n  and {len(findings) - SHOWN_FINDINGS} more" if len(findings) > SHOWN_FINDINGS else ""
    return (
        f"{kind.title}: {verdict.lost} lost, {verdict.duplicated} duplicated, {len(findings)} findings:\n  {shown}{more}\n"
        f"the history is {history}; to play it again: "
        f"make test-faults FAULT={kind.__name__} ROUNDS={rounds} SEED={seed}"
    )
