"""The exceptions, as one tree, and the tables that map the service's statuses to them.

SafePsrlClientError
├── InvalidTargetError         the address is malformed                    (also a ValueError)
├── InvalidCredentialsError    a token or certificate cannot be used        (also a ValueError)
├── InvalidDocumentError       a file or document cannot be used           (also a ValueError)
├── InvalidArgumentError       malformed, non-finite or out of range       (also a ValueError); `violations`
├── NotFoundError              no such agent or episode
├── AlreadyExistsError         the same name, key or step with another payload; nothing was changed
├── StepGapError               a step beyond the next one; `expected_step`
├── FailedPreconditionError    the state of the agent does not allow it
│   ├── EpisodeClosedError     the episode has ended, or none is open
│   ├── EpisodeOpenError       another episode is open; `open_episode`, `expected_step`
│   └── AgentPausedError       an operator paused the agent, and it has no fallback policy
├── AbortedError               lost a race; may be retried
├── ResourceExhaustedError     a limit of the server; `retry_after` seconds if waiting helps
├── UnavailableError           no connection, or the server is starting or draining
├── DeadlineExceededError      no answer in time; the call may have been carried out
├── UnauthenticatedError       missing or unknown credentials
├── PermissionDeniedError      the identity may not do this
├── DataLossError              stored or received data is damaged
├── CancelledError             the call was cancelled by this client
├── UnimplementedError         the server is older than this client
└── InternalError              anything else: a defect
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from safe_psrl_proto.v1 import control_pb2

DOMAIN: Final = "safe_psrl"
# A gRPC server that stops ends calls that it has not begun with CANCELLED and this text (grpc/grpc#41785). A call that this
# client cancelled has another text.
ENDED_BY_SERVER: Final = "CANCELLED"
# grpc.aio ends a stream with INTERNAL and this text if the connection is lost while a message is being sent.
SENDING_FAILED: Final = "Internal error from Core"


class SafePsrlClientError(Exception):
    """Base of every error that this package raises. `reason` and `metadata` are for programs."""

    code: ClassVar[grpc.StatusCode | None] = None  # None: raised without a reply of the server

    def __init__(
        self,
        message: str,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        violations: Mapping[str, str] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.metadata = dict(metadata or {})
        self.violations = dict(violations or {})
        self.retry_after = retry_after

    def _number(self, key: str) -> int | None:
        value = self.metadata.get(key, "")
        return int(value) if value.isdecimal() else None


class InvalidTargetError(SafePsrlClientError, ValueError):
    """The address is malformed."""


class InvalidCredentialsError(SafePsrlClientError, ValueError):
    """A token or certificate cannot be used."""


class InvalidDocumentError(SafePsrlClientError, ValueError):
    """A file or document cannot be used."""


class InvalidArgumentError(SafePsrlClientError, ValueError):
    """`violations` has, by field, what is wrong with it."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class NotFoundError(SafePsrlClientError):
    """There is no such agent or episode."""

    code = grpc.StatusCode.NOT_FOUND


class AlreadyExistsError(SafePsrlClientError):
    """The name, key or step exists with another payload; nothing was changed."""

    code = grpc.StatusCode.ALREADY_EXISTS


class StepGapError(SafePsrlClientError):
    """A step beyond the next one was reported."""

    code = grpc.StatusCode.OUT_OF_RANGE

    @property
    def expected_step(self) -> int | None:
        """The step that the server waits for."""
        return self._number("expected_step")


class FailedPreconditionError(SafePsrlClientError):
    """The state of the agent does not allow the call."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class EpisodeClosedError(FailedPreconditionError):
    """The episode has ended, or none is open."""


class EpisodeOpenError(FailedPreconditionError):
    """Another episode is open."""

    @property
    def open_episode(self) -> int | None:
        """Its number."""
        return self._number("open_episode")

    @property
    def expected_step(self) -> int | None:
        """The next step of the open episode."""
        return self._number("expected_step")


class AgentPausedError(FailedPreconditionError):
    """An operator paused the agent, and it has no fallback policy."""


class AbortedError(SafePsrlClientError):
    """The call lost a race; it may be retried."""

    code = grpc.StatusCode.ABORTED


class ResourceExhaustedError(SafePsrlClientError):
    """A limit of the server is reached; `retry_after` seconds if waiting helps."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class UnavailableError(SafePsrlClientError):
    """There is no connection, or the server is starting or draining."""

    code = grpc.StatusCode.UNAVAILABLE


class DeadlineExceededError(SafePsrlClientError):
    """There was no answer in time; the call may have been carried out."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class UnauthenticatedError(SafePsrlClientError):
    """The credentials are missing or unknown."""

    code = grpc.StatusCode.UNAUTHENTICATED


class PermissionDeniedError(SafePsrlClientError):
    """The identity may not do this."""

    code = grpc.StatusCode.PERMISSION_DENIED


class DataLossError(SafePsrlClientError):
    """Stored or received data is damaged."""

    code = grpc.StatusCode.DATA_LOSS


class CancelledError(SafePsrlClientError):
    """This client cancelled the call."""

    code = grpc.StatusCode.CANCELLED


class UnimplementedError(SafePsrlClientError):
    """The server is older than this client."""

    code = grpc.StatusCode.UNIMPLEMENTED


class InternalError(SafePsrlClientError):
    """Anything else: a defect."""

    code = grpc.StatusCode.INTERNAL


BY_CODE: Final = {kind.code.value[0]: kind for kind in SafePsrlClientError.__subclasses__() if kind.code is not None}
FAILED_PRECONDITIONS: Final[dict[str, type[FailedPreconditionError]]] = {  # by reason
    "EPISODE_CLOSED": EpisodeClosedError,
    "NO_EPISODE": EpisodeClosedError,
    "EPISODE_OPEN": EpisodeOpenError,
    "AGENT_PAUSED": AgentPausedError,
}


def error_of(
    code: int, message: str, reason: str = "", metadata: Mapping[str, str] | None = None, **details: Any
) -> SafePsrlClientError:
    """The exception for a status."""
    kind = BY_CODE.get(code, InternalError)
    if kind is FailedPreconditionError:
        kind = FAILED_PRECONDITIONS.get(reason, kind)
    return kind(message, reason, metadata, **details)


def error_of_status(status: control_pb2.CallStatus) -> SafePsrlClientError:
    """The exception for a message of a stream that failed by itself."""
    return error_of(status.code, status.message, status.reason, status.metadata)


def error_of_call(error: grpc.RpcError) -> SafePsrlClientError:
    """The exception for a failed call, with the details of its google.rpc.Status if it has one."""
    code, message = error.code(), error.details() or ""
    if code is grpc.StatusCode.CANCELLED and message == ENDED_BY_SERVER:
        code, message = grpc.StatusCode.UNAVAILABLE, "the server stopped before it began the call"
    if code is grpc.StatusCode.INTERNAL and message == SENDING_FAILED:
        code, message = grpc.StatusCode.UNAVAILABLE, "the connection was lost while a message was sent"
    info = error_details_pb2.ErrorInfo()
    violations: dict[str, str] = {}
    retry_after = None
    for detail in _details(error):
        candidate = error_details_pb2.ErrorInfo()
        request, retry = error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
        if detail.Unpack(candidate) and candidate.domain == DOMAIN:
            info = candidate
        elif detail.Unpack(request):
            violations = {violation.field: violation.description for violation in request.field_violations}
        elif detail.Unpack(retry):
            retry_after = retry.retry_delay.ToTimedelta().total_seconds()
    return error_of(
        code.value[0],
        message or code.name.lower().replace("_", " "),
        info.reason,
        info.metadata,
        violations=violations,
        retry_after=retry_after,
    )


def _details(error: grpc.RpcError) -> list[Any]:
    try:
        status = rpc_status.from_call(error)
    except ValueError:  # a proxy in between has rewritten the status
        return []
    return [] if status is None else list(status.details)
