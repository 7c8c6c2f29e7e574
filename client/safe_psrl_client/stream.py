"""`StepStream`: steps over one bidirectional call, half the price of a call each.

A synchronous stream that is still open when the interpreter leaves can block it for ever. So a stream is half-closed and
drained when it is closed, when its client is, and at the latest when the interpreter begins to leave.
"""

import atexit
import queue
import time
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

import grpc

from safe_psrl_client.errors import UnavailableError, error_of_call, error_of_status
from safe_psrl_proto.v1 import control_pb2

if TYPE_CHECKING:
    Method = grpc.StreamStreamMultiCallable[control_pb2.StepStreamRequest, control_pb2.StepStreamResponse]


class StepStream:
    """One stream, for one thread. It begins with the first message and ends by itself `timeout` seconds later.

    Either `exchange` messages one by one, or `send` several and `receive` as many replies, which come in order.
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

    def exchange(self, call: control_pb2.StepRequest | control_pb2.StartEpisodeRequest) -> control_pb2.StepStreamResponse:
        """The reply to `call`. Raises the error of its status; then the stream `is_usable` still, or no longer."""
        tag = self.send(call)
        reply = self.receive()
        while reply.tag != tag:  # left over from an exchange that was interrupted
            reply = self.receive()
        if reply.HasField("error"):
            raise error_of_status(reply.error)
        return reply

    def send(self, call: control_pb2.StepRequest | control_pb2.StartEpisodeRequest) -> int:
        """Send without waiting; returns the tag that its reply will have."""
        if not self.is_usable:
            raise UnavailableError("the stream has ended; open another one", "STREAM_ENDED")
        if self._replies is None:
            self._open()
        self._tag += 1
        if isinstance(call, control_pb2.StepRequest):
            self._requests.put(control_pb2.StepStreamRequest(tag=self._tag, step=call))
        else:
            self._requests.put(control_pb2.StepStreamRequest(tag=self._tag, start_episode=call))
        return self._tag

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
