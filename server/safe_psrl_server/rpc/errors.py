"""The only table from exceptions to gRPC statuses, and the details of a status."""

from collections.abc import Mapping
from typing import Any, Final, NoReturn

import grpc
import structlog
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from safe_psrl_proto.v1 import control_pb2
from safe_psrl_server.errors import (
    AlreadyExistsError,
    DataLossError,
    DeadlineError,
    FailedPreconditionError,
    InvalidArgumentError,
    LimitExceededError,
    NotFoundError,
    PermissionDeniedError,
    ServiceError,
    StepGapError,
    UnauthenticatedError,
    UnavailableError,
)
from safe_psrl_server.metrics.meter import Meter

Context = Any  # grpc.aio.ServicerContext, which generated code and grpcio's stubs type differently
log = structlog.get_logger()

DOMAIN: Final = "safe_psrl"
DETAILS_KEY: Final = "grpc-status-details-bin"
MAX_TEXT_BYTES: Final = 500  # of each text that may repeat a request: clients accept a few kilobytes of details in all

CODES: Final[Mapping[type[ServiceError], grpc.StatusCode]] = {
    InvalidArgumentError: grpc.StatusCode.INVALID_ARGUMENT,
    NotFoundError: grpc.StatusCode.NOT_FOUND,
    AlreadyExistsError: grpc.StatusCode.ALREADY_EXISTS,
    StepGapError: grpc.StatusCode.OUT_OF_RANGE,
    FailedPreconditionError: grpc.StatusCode.FAILED_PRECONDITION,
    LimitExceededError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    DeadlineError: grpc.StatusCode.DEADLINE_EXCEEDED,
    UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    PermissionDeniedError: grpc.StatusCode.PERMISSION_DENIED,
    UnavailableError: grpc.StatusCode.UNAVAILABLE,
    DataLossError: grpc.StatusCode.DATA_LOSS,
}


def draining() -> UnavailableError:
    return UnavailableError("the server is stopping; connect again", "DRAINING")


def code_of(error: ServiceError) -> grpc.StatusCode:
    return CODES[type(error)]


def call_status(error: ServiceError) -> control_pb2.CallStatus:
    """For one message of a stream."""
    return control_pb2.CallStatus(
        code=code_of(error).value[0], message=_short(str(error)), reason=error.reason, metadata=metadata_of(error)
    )


def rich_status(error: ServiceError) -> status_pb2.Status:
    """`google.rpc.Status` with `ErrorInfo` and, depending on the error, `BadRequest` or `RetryInfo`."""
    details = [error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata_of(error))]
    packed = [_packed(detail) for detail in details]
    if isinstance(error, InvalidArgumentError):
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=_short(error.description))
        packed.append(_packed(error_details_pb2.BadRequest(field_violations=[violation])))
    if isinstance(error, LimitExceededError):
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_seconds * 1e9))
        packed.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
    return status_pb2.Status(code=code_of(error).value[0], message=_short(str(error)), details=packed)


async def abort(context: "grpc.aio.ServicerContext[object, object]", error: ServiceError) -> NoReturn:
    """End the call with `error`. Raises, so that nothing after it runs."""
    trailer = ((DETAILS_KEY, rich_status(error).SerializeToString()),)
    await context.abort(code_of(error), _short(str(error)), trailer)
    raise AssertionError("unreachable: context.abort raises")


class Rejections:
    """Counts and logs each rejected call and converts its error. `agent` is the requested one, if any."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    async def abort(self, context: Context, error: ServiceError, agent: str = "") -> NoReturn:
        """End the call with `error`. Raises, so that nothing after it runs."""
        self._note(error, agent)
        await abort(context, error)

    def message_status(self, error: ServiceError, agent: str) -> control_pb2.CallStatus:
        """For one message of a stream."""
        self._note(error, agent)
        return call_status(error)

    def _note(self, error: ServiceError, agent: str) -> None:
        self._meter.rejected(error.reason, agent)
        log.debug("rejected", agent=agent, reason=error.reason, error=str(error))


def _packed(message: "error_details_pb2.ErrorInfo | error_details_pb2.BadRequest | error_details_pb2.RetryInfo") -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


def metadata_of(error: ServiceError) -> dict[str, str]:
    return {key: _short(value) for key, value in error.metadata.items()}


def _short(text: str) -> str:
    data = text.encode()
    return text if len(data) <= MAX_TEXT_BYTES else data[:MAX_TEXT_BYTES].decode(errors="ignore") + "…"
