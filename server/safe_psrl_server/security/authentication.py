"""From what a call carries to who makes it."""

from functools import partial
from typing import Any, Final

from safe_psrl_server.errors import UnauthenticatedError
from safe_psrl_server.security.book import IdentityBook
from safe_psrl_server.security.caller import Caller, Everybody
from safe_psrl_server.security.roles import Role

Context = Any  # grpc.aio.ServicerContext, which generated code and grpcio's stubs type differently
HEADER: Final = "authorization"
SCHEME: Final = "bearer "


class Authentication:
    """By token, or else by client certificate. Without a book everybody may do everything."""

    def __init__(self, book: IdentityBook | None) -> None:
        self._book = book
        self._anybody = Everybody()

    @property
    def is_open(self) -> bool:
        """Whether everybody may call."""
        return self._book is None

    def caller(self, context: Context) -> Caller:
        """Raises `UnauthenticatedError` if there is no credential; whether it is good, `Caller.identity` says."""
        if self._book is None:
            return self._anybody
        given = [value for key, value in context.invocation_metadata() or () if key == HEADER]
        if given:
            return self._by_token(self._book, given)
        names = certificate_names(context.auth_context())
        if not names:
            raise UnauthenticatedError("a token or a client certificate is needed", "CREDENTIAL_MISSING")
        return Caller(partial(self._book.by_certificate, names))

    def _by_token(self, book: IdentityBook, given: list[str]) -> Caller:
        text = given[0] if len(given) == 1 else ""
        if not text.lower().startswith(SCHEME):
            raise UnauthenticatedError("the credential is not valid: one 'Bearer TOKEN' is expected", "CREDENTIAL_INVALID")
        return Caller(partial(book.by_token, text[len(SCHEME) :].strip()))


def may_scrape(book: IdentityBook, authorization: str) -> bool:
    """Metrics are of all agents, so the token must be of somebody who may read them all."""
    if not authorization.lower().startswith(SCHEME):
        return False
    identity = book.by_token(authorization[len(SCHEME) :].strip())
    return identity is not None and identity.has(Role.READ) and "*" in identity.agents


def certificate_names(auth_context: Any) -> tuple[str, ...]:
    """Of a verified client certificate: its subject alternative names, or its common name if it has none."""
    for key in ("x509_subject_alternative_name", "x509_common_name"):
        names = tuple(name.decode("utf-8", "replace") for name in auth_context.get(key, ()))
        if names:
            return names
    return ()
