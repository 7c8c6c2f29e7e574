"""What a call can be answered with instead of a reply. `status` maps each to its code, in one table.

ServiceError
├── InvalidArgumentError      malformed, non-finite or out of range; names the field
├── NotFoundError             no such agent or episode
├── AlreadyExistsError        the same key with another payload
├── StepGapError              a step beyond the next one
├── FailedPreconditionError   paused, closed, open: the state does not allow it
├── LimitExceededError        a limit of the configuration; try again later, or never
├── DeadlineError             it takes longer than a call may
├── UnauthenticatedError      no credential, or not a valid one
├── PermissionDeniedError     the caller's role does not suffice, whether or not the agent exists
├── UnavailableError          starting, draining, or stopping after a failure
└── DataLossError             the agent's stored events are damaged
"""

from collections.abc import Mapping


class ServiceError(Exception):
    """`reason` identifies the error for programs; `metadata` has the values that they need to continue."""

    reason = "INTERNAL"

    def __init__(self, message: str, reason: str | None = None, **metadata: object) -> None:
        super().__init__(message)
        self.reason = reason or type(self).reason
        self.metadata: Mapping[str, str] = {key: str(value) for key, value in metadata.items()}


class InvalidArgumentError(ServiceError):
    reason = "INVALID_ARGUMENT"

    def __init__(self, field: str, description: str, reason: str | None = None, **metadata: object) -> None:
        super().__init__(f"{field}: {description}", reason, field=field, **metadata)
        self.field = field
        self.description = description


class NotFoundError(ServiceError):
    reason = "NOT_FOUND"


class AlreadyExistsError(ServiceError):
    reason = "ALREADY_EXISTS"


class StepGapError(ServiceError):
    reason = "STEP_GAP"


class FailedPreconditionError(ServiceError):
    reason = "FAILED_PRECONDITION"


class LimitExceededError(ServiceError):
    reason = "LIMIT_EXCEEDED"

    def __init__(self, message: str, reason: str | None = None, *, retry_seconds: float = 1.0) -> None:
        super().__init__(message, reason)
        self.retry_seconds = retry_seconds


class DeadlineError(ServiceError):
    reason = "CALL_TOO_LONG"


class UnauthenticatedError(ServiceError):
    reason = "CREDENTIAL_INVALID"


class PermissionDeniedError(ServiceError):
    reason = "PERMISSION_DENIED"


class UnavailableError(ServiceError):
    reason = "UNAVAILABLE"


class DataLossError(ServiceError):
    reason = "AGENT_QUARANTINED"
