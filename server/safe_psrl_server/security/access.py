"""Who calls, and whether the call is admitted: authentication, rate and concurrency limits, roles."""

import asyncio
from functools import partial
from typing import Any, Final

from safe_psrl_server.config import Limits, Quotas
from safe_psrl_server.errors import PermissionDeniedError, UnauthenticatedError
from safe_psrl_server.security.caller import Caller, OpenCaller, set_caller
from safe_psrl_server.security.identities import IdentityStore
from safe_psrl_server.security.quotas import CallSlots, RateLimiter
from safe_psrl_server.security.roles import RULES, Role, Rule, Scope

Context = Any  # grpc.aio.ServicerContext, which generated code and grpcio's stubs type differently
HEADER: Final = "authorization"
SCHEME: Final = "bearer "


class AccessControl:
    """By token, or else by client certificate. Without identities every caller may do everything.

    Calls that need no credential have slots of their own, a few for each address: they cannot use up those of others.
    """

    def __init__(
        self, identities: IdentityStore | None, quotas: Quotas, limits: Limits, *, open_reflection: bool = False
    ) -> None:
        self._identities = identities
        self._quotas = quotas
        self._limits = limits
        self._limiter = RateLimiter(quotas)
        self._slots = CallSlots(limits.max_concurrent_calls)
        self._public_slots = CallSlots(limits.max_public_calls)
        self._open_reflection = open_reflection
        self._open_caller = OpenCaller()

    def rule(self, method: str) -> Rule | None:
        """None for a method that is denied to every caller."""
        rule = RULES.get(method)
        if rule is not None and self._open_reflection and method.startswith("/grpc.reflection."):
            return rule._replace(public=True)
        return rule

    def admit(self, context: Context, rule: Rule | None) -> "Admission":
        """The caller of a call, until it ends. Raises if the call is not admitted."""
        if rule is not None and rule.public:
            return Admission(None, self._public_slots, _address(context), self._limits.max_public_calls_per_address)
        caller = self._caller(context)
        identity = caller.identity
        self._limiter.check_rate(identity)
        most = identity.concurrent_calls or (self._quotas.concurrent_calls if self._identities is not None else 0)
        return Admission(caller, self._slots, identity.name, most or self._limits.max_concurrent_calls)

    async def pace(self, caller: Caller, calls: int) -> None:
        """Wait until the rate of the caller admits `calls` more."""
        for _ in range(calls):
            while (seconds := self._limiter.wait_seconds(caller.identity)) > 0:  # noqa: ASYNC110  # only time helps
                await asyncio.sleep(seconds)

    def _caller(self, context: Context) -> Caller:
        """Raises `UnauthenticatedError` without a credential; `Caller.identity` checks whether it is valid."""
        if self._identities is None:
            return self._open_caller
        headers = [value for key, value in context.invocation_metadata() or () if key == HEADER]
        if headers:
            token = bearer_token(headers[0]) if len(headers) == 1 else None
            if token is None:
                raise UnauthenticatedError("the credential is not valid: one 'Bearer TOKEN' is expected", "CREDENTIAL_INVALID")
            return Caller(partial(self._identities.by_token, token))
        names = certificate_names(context.auth_context())
        if not names:
            raise UnauthenticatedError("a token or a client certificate is required", "CREDENTIAL_MISSING")
        return Caller(partial(self._identities.by_certificate, names))


class Admission:
    """A context manager: the caller, known until the end to everything that runs for the call; None for a public method."""

    __slots__ = ("_caller", "_holder", "_most", "_slots")

    def __init__(self, caller: Caller | None, slots: CallSlots, holder: str, most: int) -> None:
        self._caller = caller
        self._slots = slots
        self._holder = holder
        self._most = most

    def __enter__(self) -> Caller | None:
        self._slots.take(self._holder, self._most)
        if self._caller is not None:
            set_caller(self._caller)
        return self._caller

    def __exit__(self, *_error: object) -> None:
        self._slots.give_back(self._holder)


def _address(context: Context) -> str:
    """The caller's address without its port."""
    peer: str = context.peer() or ""
    return peer.rpartition(":")[0] or peer


def check_role(caller: Caller | None, rule: Rule | None, request: Any = None) -> None:
    """Raise `PermissionDeniedError` unless the caller's role suffices for the agent that `request` names."""
    if rule is None:
        raise PermissionDeniedError("this method is denied to every caller")
    if caller is not None and rule.role is not None:
        caller.check(rule.role, request.agent if rule.scope is Scope.REQUEST else None)


def may_scrape(identities: IdentityStore, authorization: str) -> bool:
    """Metrics show all agents, so the token's identity must be allowed to read all of them."""
    token = bearer_token(authorization)
    identity = None if token is None else identities.by_token(token)
    return identity is not None and identity.has(Role.READ) and "*" in identity.agents


def bearer_token(header: str) -> str | None:
    return header[len(SCHEME) :].strip() if header.lower().startswith(SCHEME) else None


def certificate_names(auth_context: Any) -> tuple[str, ...]:
    """The subject alternative names of a verified client certificate, or its common name if it has none."""
    for key in ("x509_subject_alternative_name", "x509_common_name"):
        names = tuple(name.decode("utf-8", "replace") for name in auth_context.get(key, ()))
        if names:
            return names
    return ()
