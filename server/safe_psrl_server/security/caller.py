"""Who makes the call that is being answered. Known to everything that runs for it, and looked up anew each time.

So a token that is revoked stops a stream that it began.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

from safe_psrl_server.errors import PermissionDeniedError, UnauthenticatedError
from safe_psrl_server.security.identities import Identity
from safe_psrl_server.security.roles import Role


class Caller:
    """`identity` gives None once the credential is no longer good."""

    def __init__(self, identity: Callable[[], Identity | None]) -> None:
        self._identity = identity
        self.name = ""  # as it was last known

    @property
    def identity(self) -> Identity:
        """Raises `UnauthenticatedError`."""
        identity = self._identity()
        if identity is None:
            raise UnauthenticatedError("the credential is not valid", "CREDENTIAL_INVALID")
        self.name = identity.name
        return identity

    def check(self, role: Role, agent: str) -> None:
        """Raise unless the caller has `role` for `agent`."""
        require(self.identity, role, agent)


def require(identity: Identity, role: Role, agent: str | None) -> None:
    """Raise `PermissionDeniedError` unless `identity` has `role` for `agent`; None: for some agents.

    The agent may exist or not: the answer is the same.
    """
    if agent is None:
        if not identity.has(role):
            raise PermissionDeniedError(f"{identity.name!r} has not the role {role}")
    elif not identity.may(role, agent):
        raise PermissionDeniedError(f"{identity.name!r} has not the role {role} for agent {agent[:128]!r}")


class Everybody(Caller):
    """While nobody has to say who they are."""

    def __init__(self) -> None:
        super().__init__(lambda: ANYBODY)
        self.name = ANYBODY.name

    def check(self, role: Role, agent: str) -> None:
        """They may do everything."""


ANYBODY: Final = Identity(name="anybody", roles=[Role.ADMIN], agents=["*"])
_EVERYBODY: Final = Everybody()
_current: ContextVar[Caller] = ContextVar("caller", default=_EVERYBODY)


def caller() -> Caller:
    return _current.get()


def call_for(who: Caller) -> None:
    """From here on, this task and those that it starts work for `who`."""
    _current.set(who)
