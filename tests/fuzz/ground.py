"""The server under test, in this process, so that every agent can be compared after every input sent to its real interfaces."""

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar

import grpc
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2

from safe_psrl.errors import SpecError
from safe_psrl.problem.documents import parse_document, spec_from_document
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl_client.documents import parse_document as client_parse
from safe_psrl_client.documents import spec_from_document as client_spec
from safe_psrl_client.errors import InvalidDocumentError
from safe_psrl_proto.v1 import admin_pb2, control_pb2
from safe_psrl_server.agents.administration import Administration
from safe_psrl_server.agents.messages import cmdp_to_message
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.snapshot import snapshot_of
from safe_psrl_server.config import load_config
from safe_psrl_server.rpc.errors import DETAILS_KEY
from safe_psrl_server.security.identities import create_token
from safe_psrl_server.security.roles import Role
from safe_psrl_server.server import Server
from tests.fuzz.inputs import METHODS, Input, path_of
from tests.fuzz.plausible import small_specs

CALL_SECONDS: Final = 60.0  # longer than any answer may take
BYSTANDERS: Final = 3
OK: Final = grpc.StatusCode.OK
Result = TypeVar("Result")
LIMITS: Final = {
    "max_table_entries": 20_000,  # more would be made slowly
    "max_message_bytes": 4 * 2**20,
    "call_seconds": 30.0,
    "planning_threads": 8,
}


class Answer(NamedTuple):
    """What came back."""

    code: grpc.StatusCode
    text: str = ""
    reason: str = ""  # as in ErrorInfo
    replies: tuple[bytes, ...] = ()
    seconds: float = 0.0

    @property
    def shape(self) -> str:
        return f"{self.code.name} {self.reason} {self.text}"


class Ground:
    """A running server with `lanes` agents as targets, as many names for new agents, and agents that no input names."""

    def __init__(self, lanes: int, directory: Path) -> None:
        self.lanes = [f"lane-{_spread(number)}" for number in range(lanes)]
        self.guests = [f"guest-{_spread(number)}" for number in range(lanes)]
        self.bystanders = [f"bystander-{number}" for number in range(BYSTANDERS)]
        identities, roles = directory / "identities.toml", [Role.ADMIN, Role.ACT, Role.READ]
        scopes = {"admin": "*", "elsewhere": "other/*"}
        self.tokens = {name: create_token(identities, name, roles, [scope]) for name, scope in scopes.items()}
        settings = {"listen": f"unix:{directory}/socket", "metrics": "127.0.0.1:0", "store": "memory:", "drain_seconds": 0.0}
        security = {"security": {"identities": identities}, "limits": LIMITS}
        self._socket = f"{directory}/socket"
        self.server = Server(load_config(None, {}, {**settings, **security}))
        self._administration = Administration(self.server.agents)
        self._threads = ThreadPoolExecutor(max(lanes, 1))  # of clients: the server waits for none of them

    async def __aenter__(self) -> Self:
        await self.server.start()
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._channel = grpc.aio.insecure_channel(self.server.target, unlimited)
        self._waiting = grpc.insecure_channel(self.server.target, unlimited)
        for number, name in enumerate(self.bystanders):
            await self._create(name, number)
            await self.call("StartEpisode", control_pb2.StartEpisodeRequest(agent=name, state=0))
        for lane in range(len(self.lanes)):
            await self.reset(lane)
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._channel.close()
        self._waiting.close()
        await self.server.drain()
        self._threads.shutdown()

    # --- looking

    def record(self, name: str) -> AgentRecord | None:
        """Of an agent that exists."""
        agent = self.server.agents.registry.resident(name)
        return agent.record if agent is not None and agent.exists else None

    def fingerprint(self, name: str) -> tuple[int, bytes]:
        """The agent's version, and all that is known of it."""
        record = self.record(name)
        return (0, b"") if record is None else (record.version, snapshot_of(record).SerializeToString(deterministic=True))

    def names(self) -> set[str]:
        return {agent.name for agent in self.server.agents.agents()}

    # --- changing

    async def reset(self, lane: int) -> None:
        """The lane's agent anew, and no guest."""
        for name in (self.lanes[lane], self.guests[lane]):
            await self.remove(name)
        await self._create(self.lanes[lane], lane)

    async def remove(self, name: str) -> None:
        if self.record(name) is not None:
            await self._administration.delete(name)

    async def _create(self, name: str, number: int) -> None:
        specs = small_specs()
        await self._administration.create(name, specs[number % len(specs)])

    # --- sending

    async def call(self, method: str, *messages: Any) -> Answer:
        """A call that makes sense."""
        data = tuple(message.SerializeToString() for message in messages)
        return await self.send(Input("own", "grpc", 0, data, path_of(method)))

    async def send(self, given: Input) -> Answer:
        began = time.perf_counter()
        send = {"grpc": self._send_call, "http": self._send_http, "wire": self._send_wire, "document": self._send_document}
        answer = await send[given.door](given)
        return answer._replace(seconds=time.perf_counter() - began)

    async def _send_call(self, given: Input) -> Answer:
        method = METHODS[given.call]
        metadata = given.metadata
        if given.identity:
            metadata = (("authorization", f"Bearer {self.tokens[given.identity]}"), *metadata)
        compression = grpc.Compression.Gzip if given.gzip else None
        options: dict[str, Any] = {"metadata": metadata, "timeout": CALL_SECONDS, "compression": compression}
        replies: list[bytes] = []
        try:
            if method.client_streaming:
                await self._in_thread(self._send_stream, given, options, replies)
            elif method.server_streaming:
                call = self._channel.unary_stream(given.method)(given.messages[0], **options)
                async for reply in call:
                    replies.append(reply)
                    if method.name == "WatchAgents":
                        call.cancel()
                        break
            else:
                replies.append(await self._channel.unary_unary(given.method)(given.messages[0], **options))
        except grpc.RpcError as error:
            return Answer(error.code(), error.details() or "", _reason(error), tuple(replies))
        return Answer(OK, replies=tuple(replies))

    async def _in_thread(self, work: Callable[..., Result], *given: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *given)

    def _send_stream(self, given: Input, options: dict[str, Any], replies: list[bytes]) -> None:
        """With the client that waits: that of asyncio answers INTERNAL itself where the server ends a stream early."""
        if METHODS[given.call].server_streaming:
            replies.extend(self._waiting.stream_stream(given.method)(iter(given.messages), **options))
        else:
            replies.append(self._waiting.stream_unary(given.method)(iter(given.messages), **options))

    async def _send_http(self, given: Input) -> Answer:
        """The code stands for whether the page can be had by others afterwards."""
        port = self.server.metrics_port
        assert port is not None
        reply = await _exchange(await asyncio.open_connection("127.0.0.1", port), given.messages[0])
        line = reply.partition(b"\r\n")[0]
        if line.startswith(b"HTTP/1.0 5") and not line.startswith((b"HTTP/1.0 501", b"HTTP/1.0 505")):
            return Answer(grpc.StatusCode.INTERNAL, f"HTTP: {line!r}")
        health = await _exchange(await asyncio.open_connection("127.0.0.1", port), b"GET /healthz HTTP/1.1\r\n\r\n")
        if not health.endswith(b"ok\n"):
            return Answer(grpc.StatusCode.UNAVAILABLE, f"/healthz said {health!r}")
        return Answer(grpc.StatusCode.INVALID_ARGUMENT, line.decode("latin-1"), "HTTP")

    async def _send_wire(self, given: Input) -> Answer:
        reply = await _exchange(await asyncio.open_unix_connection(self._socket), given.messages[0], seconds=0.02)
        answer = await self.call("GetAgent", admin_pb2.GetAgentRequest(agent=self.bystanders[0]))
        return answer if answer.code is not OK else Answer(grpc.StatusCode.INVALID_ARGUMENT, f"{len(reply) > 0}", "WIRE")

    async def _send_document(self, given: Input) -> Answer:
        """What the server's configuration, the command and the client make of a text; then CreateAgent."""
        try:
            spec = await self._in_thread(_read_document, given.messages[0].decode("utf-8", "replace"), given.method)
        except SpecError as error:
            return Answer(grpc.StatusCode.INVALID_ARGUMENT, str(error)[:200], "SPEC")
        except Exception as error:  # noqa: BLE001  # the finding
            return Answer(grpc.StatusCode.INTERNAL, f"a document raised {type(error).__name__}: {error}"[:300])
        request = admin_pb2.CreateAgentRequest(agent=self.guests[given.lane])
        request.spec.cmdp.CopyFrom(cmdp_to_message(spec))
        return await self.call("CreateAgent", request)


async def _exchange(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], data: bytes, seconds: float = 5.0) -> bytes:
    """What is answered to `data` before the end, or within `seconds`."""
    reader, writer = connection
    parts: list[bytes] = []
    try:
        async with asyncio.timeout(seconds):
            writer.write(data)
            await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
            while part := await reader.read(65536):
                parts.append(part)
    except (OSError, TimeoutError):
        pass
    finally:
        writer.close()
    return b"".join(parts)


def _read_document(text: str, kind: str) -> CmdpSpec:
    with contextlib.suppress(InvalidDocumentError):
        client_spec(client_parse(text, kind))
    document = parse_document(text, kind)
    document.pop("transitions", None)
    return spec_from_document(document)


def _reason(error: grpc.RpcError) -> str:
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY:
            info = error_details_pb2.ErrorInfo()
            for detail in status_pb2.Status.FromString(value).details:  # type: ignore[arg-type]
                if detail.Unpack(info):
                    return str(info.reason)
    return ""


def _spread(number: int) -> str:
    """Names so different that no mutation makes one of another."""
    return hashlib.sha256(str(number).encode()).hexdigest()[:16]


def decoded(given: Input) -> Sequence[Any]:
    """The messages of a call that can be read at all."""
    found, kind = [], GetMessageClass(METHODS[given.call].input_type)
    for data in given.messages:
        request = kind()
        try:
            request.MergeFromString(data)
        except Exception:  # noqa: BLE001, S112  # protobuf raises a type of its own for every implementation
            continue
        found.append(request)
    return found
