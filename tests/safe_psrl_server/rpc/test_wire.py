"""The scan that bounds a message before it is parsed."""

import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safe_psrl_proto.v1 import admin_pb2, control_pb2, model_pb2
from safe_psrl_server.errors import InvalidArgumentError
from safe_psrl_server.rpc.wire import FIELDS_AT_ONCE, MAX_FIELDS, check_fields, checking_fields


def crowded(constraints: int) -> bytes:
    spec = model_pb2.AgentSpec(cmdp=model_pb2.CmdpSpec(num_states=3))
    field = model_pb2.CmdpSpec.DESCRIPTOR.fields_by_name["constraints"].number
    nested = spec.cmdp.SerializeToString() + bytes([field << 3 | 2, 0]) * constraints
    cmdp = b"\x0a" + _length(len(nested)) + nested
    return b"\x12" + _length(len(cmdp)) + cmdp


def _length(number: int) -> bytes:
    parts = bytearray()
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def test_a_million_nested_messages_are_refused_at_once() -> None:
    """In a fraction of the time that building them takes."""
    data, began = crowded(1_000_000), time.process_time()
    with pytest.raises(InvalidArgumentError, match="constraints: the request has more than"):
        check_fields(data, admin_pb2.CreateAgentRequest.DESCRIPTOR)
    assert time.process_time() - began < 1.0


def test_as_many_as_are_allowed_pass() -> None:
    """Beside the fields `spec`, `cmdp` and `num_states`."""
    data = crowded(MAX_FIELDS - 3)
    assert len(admin_pb2.CreateAgentRequest.FromString(data).spec.cmdp.constraints) == MAX_FIELDS - 3
    check_fields(data, admin_pb2.CreateAgentRequest.DESCRIPTOR)
    with pytest.raises(InvalidArgumentError):
        check_fields(crowded(MAX_FIELDS - 2), admin_pb2.CreateAgentRequest.DESCRIPTOR)


def test_other_calls_are_served_during_a_long_scan() -> None:
    parts = list(checking_fields(crowded(MAX_FIELDS - 3), admin_pb2.CreateAgentRequest.DESCRIPTOR))
    assert len(parts) == MAX_FIELDS // FIELDS_AT_ONCE


def test_fields_after_a_nested_message_are_counted() -> None:
    """The scan returns to the outer message when an inner one ends."""
    create = admin_pb2.CreateAgentRequest(spec=model_pb2.AgentSpec(cmdp=model_pb2.CmdpSpec(num_states=3)))
    with pytest.raises(InvalidArgumentError, match="has more than"):
        check_fields(create.SerializeToString() + b"\x18\x01" * MAX_FIELDS, create.DESCRIPTOR)


@pytest.mark.parametrize("noise", [b"\x18\x01", b"\x1b\x1c", b"\xfa\x7f\x00"], ids=["numbers", "groups", "unknown"])
def test_millions_of_small_fields_are_refused_at_once(noise: bytes) -> None:
    began = time.process_time()
    with pytest.raises(InvalidArgumentError, match="has more than"):
        check_fields(noise * 1_500_000, admin_pb2.CreateAgentRequest.DESCRIPTOR)
    assert time.process_time() - began < 1.0


def test_a_long_text_is_refused_by_its_name() -> None:
    """Before it is searched for or quoted."""
    request = admin_pb2.PauseAgentRequest(agent="a", reason="x" * 3_000_000)
    with pytest.raises(InvalidArgumentError, match="reason: must be at most 262144 bytes"):
        check_fields(request.SerializeToString(), request.DESCRIPTOR)


def test_large_tables_and_whole_episodes_pass() -> None:
    """A packed table is one field; an episode has a message for each step."""
    table = model_pb2.Table(shape=[500, 500], values=[0.5] * 250_000)
    cmdp = model_pb2.CmdpSpec(num_states=500, reward=table)
    create = admin_pb2.CreateAgentRequest(spec=model_pb2.AgentSpec(cmdp=cmdp))
    check_fields(create.SerializeToString(), create.DESCRIPTOR)
    report = control_pb2.ReportEpisodeRequest(transitions=[control_pb2.Transition(state=300, next_state=300)] * 10_000)
    check_fields(report.SerializeToString(), report.DESCRIPTOR)


@given(st.binary(max_size=200))
def test_malformed_bytes_are_left_to_the_parser(noise: bytes) -> None:
    """The scan ends, whatever the bytes are, and raises nothing but its own error."""
    data = (noise + b"\x12\x05") * (100_000 // (len(noise) + 2))
    with suppress(InvalidArgumentError):
        check_fields(data, admin_pb2.CreateAgentRequest.DESCRIPTOR)
