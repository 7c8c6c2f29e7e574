"""The access control of all calls: authentication, rate and concurrency limits, roles. Services only see admitted calls.

Requests arrive here as bytes: credentials are checked before a body is parsed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any

from safe_psrl_server.errors import InvalidArgumentError, PermissionDeniedError, ServiceError, UnavailableError
from safe_psrl_server.rpc.errors import Rejections
from safe_psrl_server.rpc.middleware import Context, Deserializer, Handler, Middleware, calls_in, surround
from safe_psrl_server.security.authentication import Authentication
from safe_psrl_server.security.caller import Caller, require, set_caller
from safe_psrl_server.security.rate_limiter import RateLimiter
from safe_psrl_server.security.roles import RULES, Rule, Scope


class AccessControl(Middleware):
    """A method without a rule is denied to every caller."""

    def __init__(
        self,
        authentication: Authentication,
        limiter: RateLimiter,
        rejections: Rejections,
        idle_seconds: float,
        *,
        open_reflection: bool = False,
    ) -> None:
        self._authentication = authentication
        self._limiter = limiter
        self._rejections = rejections
        self._idle_seconds = idle_seconds
        self._open_reflection = open_reflection

    def wrap(self, method: str, handler: Handler) -> Handler:
        rule, parse = self._rule(method), handler.request_deserializer

        @asynccontextmanager
        async def admit(request: Any, context: Context) -> AsyncIterator[Any]:
            agent = ""
            try:
                caller = None if rule is not None and rule.public else self._authentication.caller(context)
                with self._limit(caller):
                    if handler.request_streaming:
                        _check_role(caller, rule)
                        yield self._messages(request, parse, caller)
                    else:
                        message = parsed(parse, request)
                        agent = getattr(message, "agent", "")
                        _check_role(caller, rule, message)
                        yield message
            except ServiceError as error:
                await self._rejections.abort(context, error, agent)

        return surround(handler, admit, None, lambda: None)

    def on_unknown_method(self) -> None:
        """gRPC itself answers; there is nothing to protect."""

    def _rule(self, method: str) -> Rule | None:
        rule = RULES.get(method)
        if rule is not None and self._open_reflection and method.startswith("/grpc.reflection."):
            return rule._replace(public=True)
        return rule

    def _limit(self, caller: Caller | None) -> AbstractContextManager[None]:
        """The limits of an authenticated caller, known from here on to everything that runs for the call."""
        if caller is None:
            return nullcontext()
        identity = caller.identity
        self._limiter.check_rate(identity)
        set_caller(caller)
        return self._limiter.concurrent_call(identity)

    async def _messages(self, requests: AsyncIterator[bytes], parse: Deserializer, caller: Caller | None) -> AsyncIterator[Any]:
        """The messages of a client's stream. Each counts as a call and must arrive within the idle time.

        Messages above the rate are not rejected but read later, so that flow control slows the client down.
        """
        incoming = aiter(requests)
        while True:
            try:
                async with asyncio.timeout(self._idle_seconds):
                    data = await anext(incoming, None)
            except TimeoutError:
                idle = f"no message for {self._idle_seconds:g} s; open another stream"
                raise UnavailableError(idle, "STREAM_IDLE") from None
            if data is None:
                return
            message = parsed(parse, data)
            if caller is not None:
                for _ in range(calls_in(message)):
                    while (seconds := self._limiter.wait_seconds(caller.identity)) > 0:  # noqa: ASYNC110  # only time helps
                        await asyncio.sleep(seconds)
            yield message


def parsed(parse: Callable[[bytes], Any], data: bytes) -> Any:
    """Raises `InvalidArgumentError`. gRPC itself would answer UNKNOWN, or end a stream as if it were complete."""
    try:
        return parse(data)
    except Exception as error:  # noqa: BLE001  # each protobuf implementation raises its own type
        raise InvalidArgumentError("request", f"cannot be parsed: {error}", "MALFORMED_REQUEST") from None


def _check_role(caller: Caller | None, rule: Rule | None, request: Any = None) -> None:
    if rule is None:
        raise PermissionDeniedError("this method is denied to every caller")
    if caller is not None and rule.role is not None:
        require(caller.identity, rule.role, request.agent if rule.scope is Scope.REQUEST else None)
