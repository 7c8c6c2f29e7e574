"""The scan of a message before it is parsed: what it counts, and that no order of fields leads it past the limits."""

import time

import pytest

from safe_psrl_proto.v1 import admin_pb2, control_pb2
from safe_psrl_server.errors import InvalidArgumentError
from safe_psrl_server.rpc.wire import MAX_FIELDS, MAX_SUBMESSAGES, check_submessages, load_scan

REPORT = control_pb2.ReportEpisodeRequest.DESCRIPTOR
TRANSITION = control_pb2.ReportEpisodeRequest(transitions=[control_pb2.Transition()]).SerializeToString()
START = control_pb2.StartEpisodeRequest.DESCRIPTOR
LATER = control_pb2.StartEpisodeRequest(agent="x" * 10**6)
CONSTRAINTS = admin_pb2.CreateAgentRequest()
for _ in range(MAX_SUBMESSAGES):  # with spec and cmdp two too many
    CONSTRAINTS.spec.cmdp.constraints.add()
TOO_MANY = {
    "submessages": (TRANSITION * (MAX_SUBMESSAGES + 1), REPORT, "transitions"),
    "nested ones": (CONSTRAINTS.SerializeToString(), admin_pb2.CreateAgentRequest.DESCRIPTOR, "constraints"),
    "after a group": (b"\x7b\x7c" + TRANSITION * 30_000, REPORT, "transitions"),
    "before a malformed field": (
        CONSTRAINTS.SerializeToString() + b"\x0e",
        admin_pb2.CreateAgentRequest.DESCRIPTOR,
        "constraints",
    ),
    "numbers": (b"\x10\x01" * (MAX_FIELDS + 1), REPORT, "episode"),
    "unknown fields": (b"\x78\x01" * 2_000_000, REPORT, "request"),
    "a text": (control_pb2.StartEpisodeRequest(request_id="x" * 10**6).SerializeToString(), START, "request_id"),
    "a nested text": (control_pb2.ReportEpisodeRequest(next=LATER).SerializeToString(), REPORT, "agent"),
    "names": (b"\x0a\x00" * 2_000_000, admin_pb2.WatchAgentsRequest.DESCRIPTOR, "agents"),
}


@pytest.mark.parametrize("what", TOO_MANY)
def test_too_much_is_rejected_in_milliseconds(what: str) -> None:
    data, descriptor, field = TOO_MANY[what]
    load_scan()
    began = time.process_time()
    with pytest.raises(InvalidArgumentError) as rejected:
        check_submessages(data, descriptor)
    assert time.process_time() - began < 0.1
    assert rejected.value.field == field


def test_as_much_as_is_allowed_passes() -> None:
    whole = control_pb2.Transition(state=1, action=1, next_state=1, reward=0.5, costs=[0.5] * 10, terminal=True)
    check_submessages(control_pb2.ReportEpisodeRequest(transitions=[whole] * MAX_SUBMESSAGES).SerializeToString(), REPORT)
    check_submessages(b"\x10\x01" * MAX_FIELDS, REPORT)


@pytest.mark.parametrize("tail", [b"\x1a", b"\x1a\xff", b"\x1a" + b"\xff" * 9 + b"\x01", b"\xff" * 20, b"\x0f", b"\x09\x00"])
def test_malformed_data_is_left_to_the_parser(tail: bytes) -> None:
    check_submessages(TRANSITION * (MAX_SUBMESSAGES - 1) + bytes([0x10, 1]) + tail, REPORT)
