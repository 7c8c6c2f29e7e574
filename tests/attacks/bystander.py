"""A caller who does nothing but ask a small agent for actions, in a process of its own, and measures how long that takes."""

import time
from multiprocessing.connection import Connection

import grpc

from safe_psrl_proto.v1 import control_pb2, control_pb2_grpc

CALL_SECONDS = 60.0
PAUSE_SECONDS = 0.001  # between calls, so that it does not take a core by itself
Call = tuple[float, float]  # when it began by the monotonic clock of the system, and seconds that it took


def call_until_stopped(target: str, token: str, agent: str, parent: Connection) -> None:
    """One call after the other until `parent` sends something; then send all calls, and the errors, and end."""
    calls: list[Call] = []
    failures: list[str] = []
    metadata = (("authorization", f"Bearer {token}"),)
    with grpc.insecure_channel(target) as channel:
        stub = control_pb2_grpc.ControlServiceStub(channel)
        request = control_pb2.GetActionRequest(agent=agent, state=0)
        stub.GetAction(request, metadata=metadata, timeout=CALL_SECONDS, wait_for_ready=True)
        parent.send("ready")
        while not parent.poll(PAUSE_SECONDS):
            began = time.monotonic()
            try:
                stub.GetAction(request, metadata=metadata, timeout=CALL_SECONDS)
            except grpc.RpcError as error:
                failures.append(f"{error.code().name}: {error.details()}")
            calls.append((began, time.monotonic() - began))
    parent.send((calls, failures))
