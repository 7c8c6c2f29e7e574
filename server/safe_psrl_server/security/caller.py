"""The caller of the call in progress, known to everything that runs for it.

The identity is looked up at each use, so that revoking a token also stops the streams that it opened.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

from safe_psrl_server.errors import PermissionDeniedError, UnauthenticatedError
from safe_psrl_server.security.identities import Identity
from safe_psrl_server.security.roles import Role


class Caller:
    """`look_up` returns None once the credential is no longer valid."""

    def __init__(self, look_up: Callable[[], Identity | None]) -> None:
        self._look_up = look_up
        self.name = ""  # as last looked up

    @property
    def identity(self) -> Identity:
        """Raises `UnauthenticatedError`."""
        identity = self._look_up()
        if identity is None:
            raise UnauthenticatedError("the credential is not valid", "CREDENTIAL_INVALID")
        self.name = identity.name
        return identity

    @property
    def owner(self) -> str:
        """The identity whose share of the server a call takes; empty if there are none."""
        return self.name

    def check(self, role: Role, agent: str | None) -> None:
        """Raise unless the caller has `role` for `agent`, or for any agent if that is None."""
        require(self.identity, role, agent)


class OpenCaller(Caller):
    """Any caller of a server without identities."""

    def __init__(self) -> None:
        super().__init__(lambda: ANYONE)
        self.name = ANYONE.name

    @property
    def owner(self) -> str:
        return ""

    def check(self, role: Role, agent: str | None) -> None:
        """Everything is allowed."""


def require(identity: Identity, role: Role, agent: str | None) -> None:
    """Raise `PermissionDeniedError` unless `identity` has `role` for `agent`, or for any agent if that is None.

    Whether the agent exists makes no difference.
    """
    if agent is None:
        if not identity.has(role):
            raise PermissionDeniedError(f"{identity.name!r} does not have the role {role}")
    elif not identity.may(role, agent):
        raise PermissionDeniedError(f"{identity.name!r} does not have the role {role} for agent {agent[:128]!r}")


ANYONE: Final = Identity(name="anybody", roles=[Role.ADMIN], agents=["*"])
_OPEN_CALLER: Final = OpenCaller()
_current: ContextVar[Caller] = ContextVar("caller", default=_OPEN_CALLER)


def caller() -> Caller:
    return _current.get()


def set_caller(new: Caller) -> None:
    """For the current task and those that it starts."""
    _current.set(new)
