"""One table from statuses to exceptions, for calls and for messages of a stream."""

import grpc
import pytest
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from safe_psrl_client import errors
from safe_psrl_proto.v1 import control_pb2


def failure(code: grpc.StatusCode, *details: object, message: str = "no") -> grpc.aio.AioRpcError:
    status = status_pb2.Status(code=code.value[0], message=message)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    trailing = grpc.aio.Metadata(("grpc-status-details-bin", status.SerializeToString()))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, message)


def info(reason: str, domain: str = "safe_psrl", **metadata: str) -> error_details_pb2.ErrorInfo:
    return error_details_pb2.ErrorInfo(reason=reason, domain=domain, metadata=metadata)


def test_every_code_has_its_exception_and_the_rest_is_internal() -> None:
    for code in grpc.StatusCode:
        error = errors.error_of_call(failure(code))
        assert isinstance(error, errors.SafePsrlClientError)
        if code in {grpc.StatusCode.OK, grpc.StatusCode.UNKNOWN}:
            assert type(error) is errors.InternalError
        else:
            assert error.code is code


def test_the_docstring_lists_every_exception() -> None:
    drawn = set(filter(lambda word: word.endswith("Error"), (errors.__doc__ or "").replace("(also a ValueError)", "").split()))
    defined = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert drawn == defined


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("EPISODE_CLOSED", errors.EpisodeClosedError),
        ("NO_EPISODE", errors.EpisodeClosedError),
        ("EPISODE_OPEN", errors.EpisodeOpenError),
        ("AGENT_PAUSED", errors.AgentPausedError),
        ("SOMETHING_NEW", errors.FailedPreconditionError),
    ],
)
def test_a_reason_refines_a_failed_precondition_in_calls_and_in_streams(
    reason: str, kind: type[errors.SafePsrlClientError]
) -> None:
    code = grpc.StatusCode.FAILED_PRECONDITION
    assert type(errors.error_of_call(failure(code, info(reason)))) is kind
    assert type(errors.error_of_status(control_pb2.CallStatus(code=code.value[0], message="no", reason=reason))) is kind


def test_a_step_gap_has_the_expected_step() -> None:
    error = errors.error_of_call(failure(grpc.StatusCode.OUT_OF_RANGE, info("STEP_GAP", expected_step="3")))
    assert isinstance(error, errors.StepGapError)
    assert error.expected_step == 3
    assert errors.StepGapError("no").expected_step is None


def test_violations_name_their_fields_and_are_value_errors() -> None:
    request = error_details_pb2.BadRequest()
    request.field_violations.add(field="reward", description="must be from 0 to 1")
    error = errors.error_of_call(failure(grpc.StatusCode.INVALID_ARGUMENT, info("INVALID_ARGUMENT"), request))
    assert isinstance(error, ValueError)
    assert error.violations == {"reward": "must be from 0 to 1"}
    assert error.reason == "INVALID_ARGUMENT"


def test_a_limit_has_the_retry_delay() -> None:
    retry = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=1, nanos=500_000_000))
    assert errors.error_of_call(failure(grpc.StatusCode.RESOURCE_EXHAUSTED, retry)).retry_after == 1.5
    assert errors.error_of_call(failure(grpc.StatusCode.RESOURCE_EXHAUSTED)).retry_after is None


def test_the_reason_of_another_domain_is_ignored() -> None:
    error = errors.error_of_call(failure(grpc.StatusCode.FAILED_PRECONDITION, info("AGENT_PAUSED", domain="elsewhere")))
    assert type(error) is errors.FailedPreconditionError


def test_a_status_that_a_proxy_rewrote_is_read_without_its_details() -> None:
    status = status_pb2.Status(code=5, message="other")
    trailing = grpc.aio.Metadata(("grpc-status-details-bin", status.SerializeToString()))
    error = errors.error_of_call(grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), trailing, ""))
    assert isinstance(error, errors.UnavailableError)
    assert str(error) == "unavailable"


def test_a_connection_that_is_lost_while_sending_is_unavailable() -> None:
    """grpc.aio itself calls it an internal error, which would not be retried."""
    details = grpc.aio.Metadata()
    lost = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, details, details, "Internal error from Core")
    assert type(errors.error_of_call(lost)) is errors.UnavailableError
    defect = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, details, details, "a defect")
    assert type(errors.error_of_call(defect)) is errors.InternalError
