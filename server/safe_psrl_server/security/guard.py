"""The guard at the door: who calls, whether they may, and whether it is too much. Services see only calls that passed."""

import asyncio
import weakref
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Self

from safe_psrl_server.errors import InvalidArgumentError, PermissionDeniedError, ServiceError, UnavailableError
from safe_psrl_server.rpc.errors import Refusals
from safe_psrl_server.rpc.middleware import Behaviour, Context, Handler, Malformed, Wrapper, calls_in, rebuilt, tolerant
from safe_psrl_server.security.authentication import Authentication
from safe_psrl_server.security.caller import Caller, call_for, require
from safe_psrl_server.security.identities import Identity
from safe_psrl_server.security.quotas import Accounts
from safe_psrl_server.security.roles import RULES, Rule, Scope


class Guard(Wrapper):
    """Put inside the call counter, so that what it refuses is counted like any other call."""

    def __init__(
        self,
        authentication: Authentication,
        accounts: Accounts,
        refusals: Refusals,
        idle_seconds: float,
        *,
        open_reflection: bool = False,
    ) -> None:
        self.authentication = authentication
        self.accounts = accounts
        self.refusals = refusals
        self.idle_seconds = idle_seconds
        self._open_reflection = open_reflection

    def wrap(self, method: str, handler: Handler) -> Handler:
        guarded = _Method(self, self._rule(method), bool(handler.request_streaming))
        if guarded.is_public and handler.request_streaming:  # open reflection, whose messages the guard does not see
            return rebuilt(handler, guarded.single, guarded.streamed)
        single = guarded.open if self._admits_everybody and guarded.is_known else guarded.single
        return rebuilt(handler, single, guarded.streamed, tolerant(handler.request_deserializer))

    @property
    def _admits_everybody(self) -> bool:
        """Whether nobody has to say who they are, and nobody's calls are counted."""
        return self.authentication.is_open and self.accounts.are_unlimited

    def meet_unknown(self) -> None:
        """Nobody is there to be guarded."""

    def _rule(self, name: str) -> Rule | None:
        rule = RULES.get(name)
        if rule is not None and self._open_reflection and name.startswith("/grpc.reflection."):
            return rule._replace(public=True)
        return rule


class _Method:
    """One method's calls. `rule` is None for a method that nobody has thought about: it is refused."""

    def __init__(self, guard: Guard, rule: Rule | None, request_streaming: bool) -> None:
        self._guard = guard
        self._rule = rule
        self._request_streaming = request_streaming

    @property
    def is_public(self) -> bool:
        return self._rule is not None and self._rule.public

    @property
    def is_known(self) -> bool:
        return self._rule is not None

    def open(self, inner: Behaviour) -> Behaviour:
        """For one request, where everybody is admitted: it must be readable, and that is all."""
        if self._request_streaming:
            return self.single(inner)

        async def call(request: Any, context: Context) -> Any:
            if isinstance(request, Malformed):
                await self._refuse_malformed(request, context)
            return await inner(request, context)

        return call

    def single(self, inner: Behaviour) -> Behaviour:
        async def call(request: Any, context: Context) -> Any:
            if self.is_public:
                await self._refuse_malformed(request, context)
                return await inner(request, context)
            who, identity = await self._admitted(request, context)
            try:
                with self._guard.accounts.under_way(identity):
                    return await inner(self._requests(request, who), context)
            except ServiceError as error:  # of the guard: services answer theirs
                await self._guard.refusals.abort(context, error)

        return call

    def streamed(self, inner: Behaviour) -> Behaviour:
        async def call(request: Any, context: Context) -> AsyncIterator[Any]:
            if self.is_public:
                await self._refuse_malformed(request, context)
                async with aclosing(inner(request, context)) as responses:
                    async for response in responses:
                        yield response
                return
            who, identity = await self._admitted(request, context)
            try:
                with self._guard.accounts.under_way(identity):
                    async with aclosing(inner(self._requests(request, who), context)) as responses:
                        async for response in responses:
                            yield response
            except ServiceError as error:
                await self._guard.refusals.abort(context, error)

        return call

    async def _admitted(self, request: Any, context: Context) -> tuple[Caller, Identity]:
        """Who calls; everything that runs for the call knows them from here on."""
        try:
            who = self._guard.authentication.caller(context)
            identity = who.identity
            self._guard.accounts.check_rate(identity)
            _check_form(request)
            self._check(identity, request)
        except ServiceError as error:
            await self._guard.refusals.abort(context, error)
        call_for(who)
        return who, identity

    async def _refuse_malformed(self, request: Any, context: Context) -> None:
        try:
            _check_form(request)
        except ServiceError as error:
            await self._guard.refusals.abort(context, error)

    def _check(self, identity: Identity, request: Any) -> None:
        if self._rule is None:
            raise PermissionDeniedError("nobody may make this call")
        if self._rule.role is not None:
            require(identity, self._rule.role, request.agent if self._rule.scope is Scope.REQUEST else None)

    def _requests(self, request: Any, who: Caller) -> Any:
        return _Requests(request, who, self._guard) if self._request_streaming else request


class _Requests:
    """The messages of a client's stream: each counts as a call, and must not be long in coming.

    Messages that come too fast are not refused but read later, so that the client's sending slows down.
    """

    def __init__(self, requests: AsyncIterator[Any], who: Caller, guard: Guard) -> None:
        self._requests = requests  # counted ones, which are iterators
        self._who = who
        self._guard = guard
        self._loop = asyncio.get_running_loop()
        self._waiting_since = 0.0
        self._reader: asyncio.Task[Any] | None = None  # while it waits for a message
        self._is_idle = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        reader = asyncio.current_task()
        if not self._waiting_since:
            self._watch(self._guard.idle_seconds)
        self._waiting_since, self._reader = self._loop.time(), reader
        try:
            request = await self._requests.__anext__()
        except asyncio.CancelledError:
            if self._is_idle and reader is not None and not reader.uncancel():
                idle = self._guard.idle_seconds
                raise UnavailableError(f"nothing came for {idle:g} s; open another stream", "STREAM_IDLE") from None
            raise
        finally:
            self._reader = None
        _check_form(request)
        for _ in range(calls_in(request)):
            while (seconds := self._guard.accounts.wait(self._who.identity)) > 0:  # noqa: ASYNC110  # only time helps
                await asyncio.sleep(seconds)
        return request

    def _watch(self, seconds: float) -> None:
        """One timer a stream, not one a message: it looks how long the present wait has lasted, and comes back."""
        self._loop.call_later(seconds, _look_at, weakref.ref(self))

    def look(self) -> None:
        left = self._guard.idle_seconds
        if self._reader is not None:
            left += self._waiting_since - self._loop.time()
        if left > 0:
            self._watch(left)
        elif self._reader is not None:
            self._is_idle = True
            self._reader.cancel()


def _look_at(requests: "weakref.ref[_Requests]") -> None:
    """A stream that has ended is not kept for its timer's sake."""
    if (still := requests()) is not None:
        still.look()


def _check_form(request: Any) -> None:
    if isinstance(request, Malformed):
        raise InvalidArgumentError("request", f"cannot be read: {request.problem}", "MALFORMED_REQUEST")
