"""A proxy that carries any gRPC method as bytes, and faulty ones that the conformance kit must detect."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Self

import grpc

from safe_psrl_proto.v1 import control_pb2

STREAMS = ("StepStream", "ServerReflectionInfo")


class Proxy(grpc.GenericRpcHandler):  # type: ignore[misc]  # untyped there
    """An honest one. The careless ones below change one of its methods."""

    def __init__(self, upstream: str) -> None:
        self._channel = grpc.insecure_channel(upstream, [("grpc.enable_retries", 0)])
        self._threads = ThreadPoolExecutor(8)
        self._server = grpc.server(self._threads, [self])
        self.target = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.stop(None).wait()
        self._channel.close()
        self._threads.shutdown()

    def service(self, details: Any) -> Any:
        """Every method is a bidirectional stream of bytes: on the wire there is no difference."""
        method = details.method

        def behave(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
            try:
                yield from self.carry(method, requests, context)
            except grpc.RpcError as error:
                self.refuse(error, context)

        return grpc.stream_stream_rpc_method_handler(behave)

    def carry(self, method: str, requests: Iterable[bytes], context: Any) -> Iterable[bytes]:
        metadata = [(key, value) for key, value in context.invocation_metadata() if not key.startswith(("grpc-", "user-agent"))]
        call = self._channel.stream_stream(method, None, None)
        return call(iter(requests), timeout=context.time_remaining(), metadata=metadata)  # type: ignore[no-any-return]

    def refuse(self, error: Any, context: Any) -> None:
        context.set_trailing_metadata(error.trailing_metadata())
        context.abort(error.code(), error.details())


class SendsTwice(Proxy):
    """Repeats requests to be on the safe side, whether or not they carry a key."""

    def carry(self, method: str, requests: Iterable[bytes], context: Any) -> Iterable[bytes]:
        kept = list(requests)
        if method.endswith(("/ReportTransition", "/StartEpisode")):
            list(super().carry(method, kept, context))
        return super().carry(method, kept, context)


class DropsDetails(Proxy):
    """Passes the code on, and not what comes with it."""

    def refuse(self, error: Any, context: Any) -> None:
        context.abort(error.code(), error.details())


class HidesCodes(Proxy):
    """Has one code for everything that goes wrong behind it."""

    def refuse(self, error: Any, context: Any) -> None:
        context.set_trailing_metadata(error.trailing_metadata())
        context.abort(grpc.StatusCode.UNKNOWN, error.details())


class ForgetsErrors(Proxy):
    """Ends a stream as if all were well."""

    def refuse(self, error: Any, context: Any) -> None:
        if error.code() != grpc.StatusCode.INVALID_ARGUMENT:
            super().refuse(error, context)


class ReordersReplies(Proxy):
    """Sends whichever reply it has at hand."""

    def carry(self, method: str, requests: Iterable[bytes], context: Any) -> Iterable[bytes]:
        replies = super().carry(method, requests, context)
        return reversed(list(replies)) if method.endswith("/StepStream") else replies


class BuffersStreams(Proxy):
    """Sends requests on when it has all of them."""

    def carry(self, method: str, requests: Iterable[bytes], context: Any) -> Iterable[bytes]:
        return super().carry(method, list(requests), context)


class Caches(Proxy):
    """Gives the same reply to the same request."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self._known: dict[tuple[str, bytes], list[bytes]] = {}

    def carry(self, method: str, requests: Iterable[bytes], context: Any) -> Iterable[bytes]:
        if method.endswith(STREAMS) or "Watch" in method:
            return super().carry(method, requests, context)
        kept = list(requests)
        key = method, b"".join(kept)
        if key not in self._known:
            self._known[key] = list(super().carry(method, kept, context))
        return self._known[key]


class LosesReplies(Proxy):
    """Ends a stream when its client has no more to say, without waiting for what is still to come."""

    def carry(self, method: str, requests: Iterable[bytes], context: Any) -> Iterable[bytes]:
        replies = list(super().carry(method, requests, context))
        return replies[:-1] if method.endswith("/StepStream") else replies


class ReversesBatches(Proxy):
    """Has the calls of a batch carried out last to first, and puts the replies back into order."""

    def carry(self, method: str, requests: Iterable[bytes], context: Any) -> Iterable[bytes]:
        if not method.endswith("/StepStream"):
            return super().carry(method, requests, context)
        turned = map(partial(_reversed, control_pb2.StepStreamRequest, "calls"), requests)
        return map(partial(_reversed, control_pb2.StepStreamResponse, "replies"), super().carry(method, turned, context))


class RefusesWholeBatches(Proxy):
    """Refuses a batch in which one call is impossible, instead of that call."""

    def carry(self, method: str, requests: Iterable[bytes], context: Any) -> Iterable[bytes]:
        if not method.endswith("/StepStream"):
            yield from super().carry(method, requests, context)
            return
        for data in requests:
            request = control_pb2.StepStreamRequest.FromString(data)
            if any(call.WhichOneof("call") in {None, "batch"} for call in request.batch.calls):
                refused = control_pb2.StepStreamResponse(tag=request.tag)
                refused.error.code, refused.error.message = grpc.StatusCode.INVALID_ARGUMENT.value[0], "an impossible call"
                yield refused.SerializeToString()
            else:
                yield from super().carry(method, [data], context)


def _reversed(kind: type[Any], field: str, data: bytes) -> bytes:
    """A message whose batch has its calls or replies last to first."""
    message = kind.FromString(data)
    if parts := list(getattr(message.batch, field))[::-1]:
        message.batch.CopyFrom(type(message.batch)(**{field: parts}))
    return bytes(message.SerializeToString())
