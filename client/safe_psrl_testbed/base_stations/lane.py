"""One stream of steps for many agents, renewed as it ages or breaks. What gets no answer is sent again, which does no harm."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from safe_psrl_client import AsyncClient, SafePsrlClientError, UnavailableError
from safe_psrl_client.errors import error_of_status
from safe_psrl_client.patience import patiently_async
from safe_psrl_proto.v1 import control_pb2

Call = control_pb2.StepRequest | control_pb2.StartEpisodeRequest
Replies = AsyncIterator[control_pb2.StepStreamResponse]


class Lane:
    """For one task. `exchange` sends all of a batch before it waits for replies."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._requests: asyncio.Queue[control_pb2.StepStreamRequest | None] = asyncio.Queue()
        self._replies: Replies | None = None
        self._opened = 0.0

    async def exchange(self, calls: Sequence[Call]) -> list[control_pb2.StepStreamResponse]:
        """The replies, in order. Raises the error of the first call that fails for good."""
        replies: dict[int, control_pb2.StepStreamResponse] = {}

        async def attempt() -> None:
            missing = [i for i in range(len(calls)) if i not in replies]
            try:
                await self._answer(calls, missing, replies)
            except (SafePsrlClientError, asyncio.CancelledError):
                self._forget()  # what is still on its way is asked for again
                raise

        await patiently_async(attempt, self._client.patience)
        return [replies[i] for i in range(len(calls))]

    async def close(self) -> None:
        """Half-close, and take what is still coming."""
        replies = self._replies
        self._forget()
        if replies is not None:
            with suppress(SafePsrlClientError):
                async for _ in replies:
                    pass

    async def _answer(
        self, calls: Sequence[Call], missing: list[int], answers: dict[int, control_pb2.StepStreamResponse]
    ) -> None:
        replies = await self._fresh()
        for i in missing:
            self._requests.put_nowait(_message(i, calls[i]))
        for _ in missing:
            reply = await anext(replies, None)
            if reply is None:
                raise UnavailableError("the server ended the stream", "STREAM_ENDED")
            if reply.HasField("error"):
                raise error_of_status(reply.error)
            answers[reply.tag] = reply

    async def _fresh(self) -> Replies:
        if self._replies is not None and time.monotonic() - self._opened > self._client.timeout:
            await self.close()
        if self._replies is None:
            self._requests = asyncio.Queue()
            self._opened = time.monotonic()
            self._replies = self._client.step_stream(_until_none(self._requests), timeout=2 * self._client.timeout)
        return self._replies

    def _forget(self) -> None:
        self._requests.put_nowait(None)
        self._replies = None


async def _until_none(
    queue: "asyncio.Queue[control_pb2.StepStreamRequest | None]",
) -> AsyncIterator[control_pb2.StepStreamRequest]:
    while (request := await queue.get()) is not None:
        yield request


def _message(tag: int, call: Call) -> control_pb2.StepStreamRequest:
    if isinstance(call, control_pb2.StepRequest):
        return control_pb2.StepStreamRequest(tag=tag, step=call)
    return control_pb2.StepStreamRequest(tag=tag, start_episode=call)
