"""`StepStream`: steps over one bidirectional call, half the price of a call each; in batches, a fraction of it.

A synchronous stream that is still open when the interpreter leaves can block it for ever. So a stream is half-closed and
drained when it is closed, when its client is, and at the latest when the interpreter begins to leave.
"""

import atexit
import queue
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import grpc

from safe_psrl_client.errors import UnavailableError, error_of_call, error_of_status
from safe_psrl_proto.v1 import control_pb2

if TYPE_CHECKING:
    Method = grpc.StreamStreamMultiCallable[control_pb2.StepStreamRequest, control_pb2.StepStreamResponse]

Call = control_pb2.StepRequest | control_pb2.StartEpisodeRequest | control_pb2.ReportEpisodeRequest
MOST_CALLS: Final = 1024  # of a batch, says the contract


def stream_request(call: Call, tag: int = 0) -> control_pb2.StepStreamRequest:
    """The message of a stream that carries `call`."""
    if isinstance(call, control_pb2.StepRequest):
        return control_pb2.StepStreamRequest(tag=tag, step=call)
    if isinstance(call, control_pb2.StartEpisodeRequest):
        return control_pb2.StepStreamRequest(tag=tag, start_episode=call)
    return control_pb2.StepStreamRequest(tag=tag, report_episode=call)


def stream_batches(calls: Iterable[Call]) -> Iterator[control_pb2.StepStreamRequest]:
    """Messages that carry `calls` together: as few as there may be. Calls are tagged by their place, 0, 1, ..."""
    tagged = (stream_request(call, tag) for tag, call in enumerate(calls))
    while some := list(islice(tagged, MOST_CALLS)):
        yield control_pb2.StepStreamRequest(batch=control_pb2.StepStreamBatch(calls=some))


class StepStream:
    """One stream, for one thread. It begins with the first message and ends by itself `timeout` seconds later.

    Either `exchange` messages one by one, or `send` several and `receive` as many replies, which come in order; or
    `exchange_all`, for many agents that go on together.
    """

    def __init__(self, method: "Method", metadata: tuple[tuple[str, str], ...], timeout: float) -> None:
        self._method = method
        self._metadata = metadata
        self._timeout = timeout
        self._requests: queue.SimpleQueue[control_pb2.StepStreamRequest | None] = queue.SimpleQueue()
        self._replies: Iterator[control_pb2.StepStreamResponse] | None = None
        self._opened = 0.0
        self._tag = 0
        self.is_usable = True  # until it is closed or fails as a whole

    @property
    def age(self) -> float:
        """Seconds since it began; 0 before."""
        return time.monotonic() - self._opened if self._replies is not None else 0.0

    def exchange(self, call: Call) -> control_pb2.StepStreamResponse:
        """The reply to `call`. Raises the error of its status; then the stream `is_usable` still, or no longer."""
        reply = self._reply_to(self.send(call))
        if reply.HasField("error"):
            raise error_of_status(reply.error)
        return reply

    def exchange_all(self, calls: Iterable[Call]) -> list[control_pb2.StepStreamResponse]:
        """The replies to `calls`, in their order: in one message, or in a few if they are more than 1,024.

        A call that failed has its `error` in its reply, for others may have succeeded; `errors.error_of_status` makes an
        exception of it. Raises only if the stream failed as a whole: which calls were carried out is then not known.
        """
        replies: list[control_pb2.StepStreamResponse] = []
        for batch in stream_batches(calls):
            reply = self._reply_to(self._put(batch))
            if reply.HasField("error"):  # of the batch itself, as of a server that does not know batches
                raise error_of_status(reply.error)
            replies += reply.batch.replies
        return replies

    def send(self, call: Call) -> int:
        """Send without waiting; returns the tag that its reply will have."""
        return self._put(stream_request(call))

    def receive(self) -> control_pb2.StepStreamResponse:
        """The next reply, which may have an error of its own. Raises if the stream failed as a whole."""
        if self._replies is None:
            raise UnavailableError("nothing was sent on this stream yet", "STREAM_ENDED")
        try:
            return next(self._replies)
        except StopIteration:
            self._forget()
            raise UnavailableError("the server ended the stream", "STREAM_ENDED") from None
        except grpc.RpcError as error:
            self._forget()
            raise error_of_call(error) from error

    def close(self) -> None:
        """Half-close, and take what is still coming. Bounded by the stream's time. Repeating it does nothing."""
        replies = self._replies
        self._forget()
        if replies is not None:
            with suppress(grpc.RpcError):
                for _ in replies:
                    pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _put(self, message: control_pb2.StepStreamRequest) -> int:
        """Tag `message`, and give it to the stream."""
        if not self.is_usable:
            raise UnavailableError("the stream has ended; open another one", "STREAM_ENDED")
        if self._replies is None:
            self._open()
        self._tag += 1
        message.tag = self._tag
        self._requests.put(message)
        return self._tag

    def _reply_to(self, tag: int) -> control_pb2.StepStreamResponse:
        reply = self.receive()
        while reply.tag != tag:  # left over from an exchange that was interrupted
            reply = self.receive()
        return reply

    def _open(self) -> None:
        self._opened = time.monotonic()
        self._replies = iter(
            self._method(iter(self._requests.get, None), timeout=self._timeout, metadata=self._metadata, wait_for_ready=True)
        )
        _OPEN.add(self)

    def _forget(self) -> None:
        """No more requests: this ends the thread that gRPC feeds the call from."""
        self._requests.put(None)
        self._replies = None
        self.is_usable = False
        _OPEN.discard(self)


_OPEN: set[StepStream] = set()


@atexit.register
def _close_all() -> None:
    for stream in list(_OPEN):
        stream.close()
