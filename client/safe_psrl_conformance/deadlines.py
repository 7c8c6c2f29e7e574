"""Calls that run out of time."""

from contextlib import suppress
from time import monotonic

import grpc

from safe_psrl_conformance.check import FailedError, check, require, same
from safe_psrl_conformance.problem import seen
from safe_psrl_conformance.wire import Wire
from safe_psrl_proto.v1 import admin_pb2

IMPATIENT = 0.001  # seconds: it will do or not
WATCHED = 0.5


@check("a call that missed its deadline may have been applied: repeated with its key, it is applied once")
def repeating_after_a_deadline(wire: Wire) -> None:
    name = wire.create()
    with suppress(grpc.RpcError):
        wire.start(name, timeout=IMPATIENT, request_id="a")
    same("the episode", wire.start(name, request_id="a").episode, 1)
    same("the episode, requested once more", wire.start(name, request_id="a").episode, 1)
    wire.report(name, seen(), episode=1, step=0)
    same("episodes started", wire.status(name).episode, 1)


@check("a watch ends only at its deadline, after a first message with every requested agent")
def watch_until_the_deadline(wire: Wire) -> None:
    name, began = wire.create(), monotonic()
    agents: list[list[str]] = []
    request = admin_pb2.WatchAgentsRequest(agents=[name], interval_seconds=0.1)
    try:
        for message in wire.admin.WatchAgents(request, **wire.options(name, WATCHED)):
            agents.append([status.agent for status in message.agents])  # noqa: PERF401  # it ends with an error
        raise FailedError("the watch ended with OK before its deadline")
    except grpc.RpcError as error:  # DEADLINE_EXCEEDED, or a reset by a proxy that knows the deadline and was quicker
        require(monotonic() - began >= WATCHED * 0.9, f"the watch ended before its deadline: {error.code().name}")
    same("the agents of its messages", agents, [[name]])
