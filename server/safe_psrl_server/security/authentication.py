"""From a call's credentials to its caller."""

from functools import partial
from typing import Any, Final

from safe_psrl_server.errors import UnauthenticatedError
from safe_psrl_server.security.caller import Caller, OpenCaller
from safe_psrl_server.security.identity_store import IdentityStore
from safe_psrl_server.security.roles import Role

Context = Any  # grpc.aio.ServicerContext, which generated code and grpcio's stubs type differently
HEADER: Final = "authorization"
SCHEME: Final = "bearer "


class Authentication:
    """By token, or else by client certificate. Without identities every caller may do everything."""

    def __init__(self, identities: IdentityStore | None) -> None:
        self._identities = identities
        self._open_caller = OpenCaller()

    def caller(self, context: Context) -> Caller:
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
