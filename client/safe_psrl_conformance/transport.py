"""Below the calls: health, reflection, malformed bytes, unknown methods.

Health and reflection use raw bytes, as their packages are not part of the light client.
"""

from typing import Final

import grpc
from google.protobuf import wrappers_pb2

from safe_psrl_conformance.check import SkippedError, check, require, same
from safe_psrl_conformance.wire import Wire

CONTROL: Final = "/safe_psrl.v1.ControlService"
SERVICES: Final = ("safe_psrl.v1.ControlService", "safe_psrl.v1.AdminService")
HEALTH: Final = "/grpc.health.v1.Health/Check"
REFLECTION: Final = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
SERVING: Final = b"\x08\x01"  # field 1, a number: 1
LIST_SERVICES: Final = b"\x3a\x01*"  # field 7, text: *
REQUEST_ID: Final = b"\x12\x01a"  # field 2, text: a
UNKNOWN_FIELD: Final = b"\xc2\x3e\x01x"  # field 1000, text: x
NO_MESSAGE: Final = b"\xff\xff\xff"  # a field's number that does not end


@check("grpc.health.v1 reports SERVING for the server and both services, and NOT_FOUND for others")
def health(wire: Wire) -> None:
    for service in ("", *SERVICES):
        same(f"the health of {service!r}", wire.raw(HEALTH, _text(service)), SERVING)
    wire.refused("NOT_FOUND", wire.raw, HEALTH, _text("nobody.Service"))


@check("server reflection, where enabled, lists both services")
def reflection(wire: Wire) -> None:
    try:
        replies = b"".join(wire.raw_stream(REFLECTION, [LIST_SERVICES]))
    except grpc.RpcError as error:
        if error.code() in {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}:
            raise SkippedError(f"reflection is not offered: {error.code().name}") from None
        raise
    for service in SERVICES:
        require(service.encode() in replies, f"{service} is not listed")


@check("malformed bytes are INVALID_ARGUMENT, MALFORMED_REQUEST")
def malformed(wire: Wire) -> None:
    for method in ("GetAction", "ReportTransition", "StartEpisode"):
        wire.refused("INVALID_ARGUMENT MALFORMED_REQUEST", wire.raw, f"{CONTROL}/{method}", NO_MESSAGE)


@check("a StepStream ends with MALFORMED_REQUEST at a malformed message; it does not end with OK")
def malformed_stream(wire: Wire) -> None:
    wire.refused("INVALID_ARGUMENT MALFORMED_REQUEST", wire.raw_stream, f"{CONTROL}/StepStream", [NO_MESSAGE])


@check("an unknown method is UNIMPLEMENTED")
def unknown_method(wire: Wire) -> None:
    wire.refused("UNIMPLEMENTED", wire.raw, f"{CONTROL}/Nothing", b"")


@check("unknown fields are ignored")
def unknown_fields(wire: Wire) -> None:
    name = wire.create()
    reply = wire.raw(f"{CONTROL}/StartEpisode", _text(name) + REQUEST_ID + UNKNOWN_FIELD, name)
    require(reply.startswith(b"\x08\x01"), "episode 1 did not begin")  # field 1, a number: 1


def _text(text: str) -> bytes:
    """A message whose field 1 is `text`."""
    return wrappers_pb2.StringValue(value=text).SerializeToString()
