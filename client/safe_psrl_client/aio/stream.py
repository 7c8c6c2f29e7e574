"""Steps over one bidirectional call, which costs half of a unary call each, and in batches a fraction of it.

A synchronous stream that is open when the interpreter exits can deadlock it. So a stream is half-closed and drained when it is
closed, when its client is closed, and at the latest at exit.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import grpc

from safe_psrl_client.aio.retry import retry
from safe_psrl_client.errors import SafePsrlClientError, UnavailableError, error_of_call, error_of_status
from safe_psrl_client.requests import StreamCall, stream_batches, stream_request
from safe_psrl_proto.v1 import control_pb2

if TYPE_CHECKING:
    from safe_psrl_client.aio.client import AsyncClient

    Method = grpc.aio.StreamStreamMultiCallable[control_pb2.StepStreamRequest, control_pb2.StepStreamResponse]


class AsyncStepStream:
    """One stream, for one task or thread. It opens with the first message and ends by itself `timeout` seconds later.

    Either `exchange` messages one by one, or `send` several and `receive` as many replies, which arrive in order; or
    `exchange_all`, for many agents that advance together.
    """

    def __init__(self, method: "Method", metadata: tuple[tuple[str, str], ...], timeout: float) -> None:
        self._method = method
        self._metadata = metadata
        self._timeout = timeout
        self._queue: asyncio.Queue[control_pb2.StepStreamRequest | None] = asyncio.Queue()
        self._replies: AsyncIterator[control_pb2.StepStreamResponse] | None = None
        self._opened = 0.0
        self._tag = 0
        self.is_usable = True  # until it is closed or fails as a whole

    @property
    def age(self) -> float:
        """Seconds since it opened; 0 before."""
        return time.monotonic() - self._opened if self._replies is not None else 0.0

    async def exchange(self, call: StreamCall) -> control_pb2.StepStreamResponse:
        """The reply to `call`. Raises the error of its status, after which the stream may still be usable (`is_usable`)."""
        reply = await self._reply_to(await self.send(call))
        if reply.HasField("error"):
            raise error_of_status(reply.error)
        return reply

    async def exchange_all(self, calls: Iterable[StreamCall]) -> list[control_pb2.StepStreamResponse]:
        """The replies to `calls`, in their order: in one message, or in several if they are more than 1,024.

        A call that failed has its `error` in its reply, as others may have succeeded; `errors.error_of_status` converts it
        to an exception. Raises only if the stream failed as a whole: which calls were carried out is then unknown.
        """
        replies: list[control_pb2.StepStreamResponse] = []
        for batch in stream_batches(calls):
            reply = await self._reply_to(self._put(batch))
            if reply.HasField("error"):  # of the batch itself
                raise error_of_status(reply.error)
            replies += reply.batch.replies
        return replies

    async def send(self, call: StreamCall) -> int:
        """Send without waiting; returns the tag that the reply will have."""
        return self._put(stream_request(call))

    async def receive(self) -> control_pb2.StepStreamResponse:
        """The next reply, which may have an error of its own. Raises if the stream failed as a whole."""
        if self._replies is None:
            raise UnavailableError("nothing was sent on this stream yet", "STREAM_ENDED")
        try:
            return await anext(self._replies)
        except StopAsyncIteration:
            self._release()
            raise UnavailableError("the server ended the stream", "STREAM_ENDED") from None
        except grpc.RpcError as error:
            self._release()
            raise error_of_call(error) from error

    async def close(self) -> None:
        """Half-close and drain, bounded by the stream's timeout. Repeating it does nothing."""
        replies = self._replies
        self._release()
        if replies is not None:
            with suppress(grpc.RpcError):
                async for _ in replies:
                    pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _put(self, message: control_pb2.StepStreamRequest) -> int:
        """Tag `message` and queue it for the stream, which is opened if this is the first."""
        if not self.is_usable:
            raise UnavailableError("the stream has ended; open another one", "STREAM_ENDED")
        if self._replies is None:
            call = self._method(self._requests(), timeout=self._timeout, metadata=self._metadata)
            self._replies = aiter(call)
            self._opened = time.monotonic()
            OPEN_STREAMS.add(self)
        self._tag += 1
        message.tag = self._tag
        self._queue.put_nowait(message)
        return self._tag

    async def _requests(self) -> AsyncIterator[control_pb2.StepStreamRequest]:
        while (message := await self._queue.get()) is not None:
            yield message

    async def _reply_to(self, tag: int) -> control_pb2.StepStreamResponse:
        reply = await self.receive()
        while reply.tag != tag:  # left over from an exchange that was interrupted
            reply = await self.receive()
        return reply

    def _release(self) -> None:
        """Accept no more requests, and end the consumer of those that were queued."""
        self._queue.put_nowait(None)
        self._replies = None
        self.is_usable = False
        OPEN_STREAMS.discard(self)


class AsyncRetryingStream:
    """Calls over a stream that is replaced when it ages or breaks; UNAVAILABLE is retried for `client.patience` seconds.

    A stream is replaced once it is `client.timeout` old and ends when it is twice that: a reply has so long to arrive.
    """

    def __init__(self, client: "AsyncClient", agent: str = "") -> None:
        self._client = client
        self._agent = agent
        self._stream: AsyncStepStream | None = None

    async def exchange(self, call: StreamCall) -> control_pb2.StepStreamResponse:
        """The reply to `call`. Raises the error of its status."""

        async def attempt() -> control_pb2.StepStreamResponse:
            return await (await self._current()).exchange(call)

        return await retry(attempt, self._client.patience, self._client.contact)

    async def exchange_all(self, calls: Iterable[StreamCall]) -> list[control_pb2.StepStreamResponse]:
        """The replies to all calls, in one batch. Raises the error of the first one that failed."""
        calls = list(calls)

        async def attempt() -> list[control_pb2.StepStreamResponse]:
            replies = await (await self._current()).exchange_all(calls)
            for reply in replies:
                if reply.HasField("error"):
                    raise error_of_status(reply.error)
            return replies

        return await retry(attempt, self._client.patience, self._client.contact)

    async def close(self) -> None:
        """Close the current stream, if there is one."""
        if self._stream is not None:
            await self._stream.close()

    async def _current(self) -> AsyncStepStream:
        stream = self._stream
        if stream is None or not stream.is_usable or stream.age > self._client.timeout:
            await self.close()
            stream = self._stream = self._client.step_stream(self._agent)
        return stream


OPEN_STREAMS: set[AsyncStepStream] = set()


async def close_open_streams() -> None:
    """At exit: an open stream can deadlock the interpreter."""
    for stream in list(OPEN_STREAMS):
        with suppress(SafePsrlClientError):
            await stream.close()
