"""Which inputs are tried: every kind of nonsense that can reach the server, and some sense in between."""

import random
import re
import zlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from safe_psrl.problem.documents import spec_to_document, write_document
from safe_psrl_proto.v1 import events_pb2
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.snapshot import snapshot_of
from tests.fuzz.inputs import METHODS, Input, Metadata, path_of
from tests.fuzz.mutations import mutated
from tests.fuzz.plausible import importing, request_for
from tests.fuzz.values import INTEGERS, REALS, prolong, spoil

MOST_REMEMBERED: Final = 200
WEIGHTS: Final = {  # of each kind
    "plausible": 10,
    "random": 8,
    "mutated": 20,
    "edges": 26,
    "import": 12,
    "stream": 7,
    "document": 6,
    "metadata": 5,
    "sizes": 2,
    "http": 4,
    "wire": 2,
}
LENGTHS: Final = (30_000, 100_000, 300_000)  # entries of a repeated field, bytes of a text
LARGE_PAIRS: Final = 3 * 2**20  # of bytes: 6 MB
# What an agent that must be kept is not asked, as it would be gone or silent for the inputs after it.
RARE: Final = {"DeleteAgent": 0.1, "PauseAgent": 0.3}
TOKENS_OF_TEXT: Final = (
    *("nan", "inf", "-inf", "-1", "0", "1e999", "9" * 30, "9" * 5000, '"x"', "[]", "{}", "true", "null", "0x10"),
    *("-0.0", "1e-320"),
    *("[[1]]", "1979-05-27T07:32:00Z", "'''", "[" * 3000, "\0", "\ud7ff", "100000000", "2147483648"),
)
HTTP_LINES: Final = (
    *("GET /metrics HTTP/1.1", "GET /healthz HTTP/1.1", "HEAD /metrics HTTP/1.0", "POST /metrics HTTP/1.1", "GET / HTTP/1.1"),
    *("GET /metrics?x=%00 HTTP/1.1", "GET //metrics HTTP/1.1", "GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1", "GET /healthz"),
    *("OPTIONS * HTTP/1.1", "GET /metrics HTTP/9.9", "GET /metrics HTTP/x", "BREW /metrics HTTP/1.1"),
    *("", "GET", " ", "PRI * HTTP/2.0"),
)
HTTP_HEADERS: Final = (
    *("Host: x", "Accept: application/openmetrics-text; version=1.0.0"),
    *("Accept: ;q=\xff,*/*;q=nan", "Accept-Encoding: gzip;q=x"),
    *("Authorization: Bearer x", "Authorization: \xff\xfe", "Content-Length: -1", "Content-Length: 99999999999999999999"),
    *("Content-Length: x", "Transfer-Encoding: chunked", "Expect: 100-continue", "Connection: keep-alive", ": x", "X" * 70_000),
    *("X: " + "y" * 60_000, "Content-Type: \0", "Accept: " + "a/b," * 3000),
)


class Generator:
    """The inputs of one lane, one after the other: the same for the same seed and the same replies."""

    def __init__(self, lane: int, guest: str, seed: int, tokens: dict[str, str]) -> None:
        self._lane = lane
        self._guest = guest
        self._chosen = random.Random(f"{seed}/{lane}")
        self._tokens = tokens
        self._remembered: dict[str, dict[str, bytes]] = {name: {} for name in METHODS}  # by method, by what it was answered

    def next(self, record: AgentRecord) -> Input:
        (kind,) = self._chosen.choices(list(WEIGHTS), list(WEIGHTS.values()))
        make: Callable[[AgentRecord], Input] = getattr(self, f"_{kind}")
        return make(record)

    def remember(self, given: Input, answer: str) -> None:
        """Inputs that were answered as none was before are mutated further."""
        if given.call not in self._remembered or not given.messages:
            return
        known, shape = self._remembered[given.call], re.sub(r"[0-9]+|'[^']*'|\"[^\"]*\"", "#", answer)[:200]
        if shape not in known and len(known) < MOST_REMEMBERED:
            known[shape] = self._chosen.choice(given.messages)

    # --- kinds

    def _plausible(self, record: AgentRecord) -> Input:
        name = self._method()
        return self._call("plausible", name, [m.SerializeToString() for m in self._sensible(name, record)])

    def _random(self, _record: AgentRecord) -> Input:
        size = self._chosen.choice((0, 1, 2, 5, 20, 100, 100, 2000))
        return self._call("random", self._method(), [self._chosen.randbytes(size)])

    def _mutated(self, record: AgentRecord) -> Input:
        name = self._method()
        known = list(self._remembered[name].values())
        messages = [m.SerializeToString() for m in self._sensible(name, record)]
        if known and self._chosen.random() < 0.4:
            messages = [self._chosen.choice(known)]
        at = self._chosen.randrange(len(messages))
        messages[at] = mutated(messages[at], self._chosen, known)
        return self._call("mutated", name, messages)

    def _edges(self, record: AgentRecord) -> Input:
        name = self._method()
        messages = self._sensible(name, record)
        spoil(self._chosen.choice(messages), self._chosen, self._chosen.choice((1, 1, 1, 2, 4)))
        return self._call("edges", name, [message.SerializeToString() for message in messages])

    def _import(self, record: AgentRecord) -> Input:
        snapshot = snapshot_of(record)
        way = self._chosen.randrange(5)
        if way <= 1:
            spoil(snapshot, self._chosen, self._chosen.choice((1, 1, 1, 2, 4)))
        elif way == 2:
            self._spoil_array(snapshot)
        data = snapshot.SerializeToString()
        if way == 3:
            data = mutated(data, self._chosen)
        requests = importing(self._guest, data, self._chosen, spoiled=way == 4)
        return self._call("import", "ImportAgent", [request.SerializeToString() for request in requests])

    def _stream(self, record: AgentRecord) -> Input:
        messages = []
        for _ in range(self._chosen.randint(1, 5)):
            (message,) = request_for("StepStream", record, self._guest, self._chosen)[:1]
            if self._chosen.random() < 0.4:
                spoil(message, self._chosen, 1)
            data = message.SerializeToString()
            messages.append(mutated(data, self._chosen) if self._chosen.random() < 0.2 else data)
        if self._chosen.random() < 0.01:
            messages *= 100
        return self._call("stream", "StepStream", messages)

    def _document(self, record: AgentRecord) -> Input:
        kind = self._chosen.choice(("toml", "json"))
        text = write_document(spec_to_document(record.definition.spec), kind)
        for _ in range(self._chosen.choice((1, 1, 2, 4))):
            text = self._spoil_text(text)
        return Input("document", "document", self._lane, (text.encode("utf-8", "replace"),), method=kind)

    def _metadata(self, record: AgentRecord) -> Input:
        """Whoever is not who they say must not be heard, whatever they say."""
        name = self._method()
        messages = tuple(message.SerializeToString() for message in self._sensible(name, record))
        if self._chosen.random() < 0.2:
            return Input("metadata", "grpc", self._lane, messages, path_of(name), identity="elsewhere")
        token = self._tokens["admin"]
        at = self._chosen.randrange(len(token))
        flipped = token[:at] + chr((ord(token[at]) - 32 + 1 + self._chosen.randrange(93)) % 95 + 32) + token[at + 1 :]
        said = self._chosen.choice(
            (
                *("", "Bearer", "Bearer ", f"Basic {token}", token, f"Bearer {token[:at]}", f"Bearer {token}{token}"),
                *(f"Bearer {flipped}", "Bearer " + "x" * 4000, "Bearer ~", "Bearer a b c"),
            )
        )
        extras = {"x-request-id": "y" * 2000, "anything-bin": self._chosen.randbytes(50), "authorization": "Bearer y"}
        more: Metadata = self._chosen.choice(((), *((pair,) for pair in extras.items()), (("grpc-accept-encoding", "none"),)))
        return Input("metadata", "grpc", self._lane, messages, path_of(name), "", (("authorization", said), *more))

    def _sizes(self, record: AgentRecord) -> Input:
        """More of one field than any caller needs, at any depth; half of them compressed, some above the message limit."""
        name, gzip = self._method(), self._chosen.random() < 0.5
        message = self._chosen.choice(self._sensible(name, record))
        prolong(message, self._chosen, self._chosen.choice(LENGTHS))
        data = message.SerializeToString()
        if gzip and self._chosen.random() < 0.2:
            data += b"\x78\x01" * LARGE_PAIRS  # an unknown field
        return Input("sizes", "grpc", self._lane, (data,), path_of(name), gzip=gzip)

    def _http(self, _record: AgentRecord) -> Input:
        chosen = self._chosen
        lines = [chosen.choice(HTTP_LINES), *chosen.choices(HTTP_HEADERS, k=chosen.choice((0, 1, 1, 2, 4)))]
        data = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        if chosen.random() < 0.3:
            data = mutated(data, chosen)
        if chosen.random() < 0.02:
            data = b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 150 + b"\r\n"
        return Input("http", "http", self._lane, (data,))

    def _wire(self, _record: AgentRecord) -> Input:
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        settings = b"\0\0\0\4\0\0\0\0\0"
        data = self._chosen.choice((self._chosen.randbytes(100), preface, preface + settings, b"GET / HTTP/1.1\r\n\r\n"))
        return Input("wire", "wire", self._lane, (mutated(data, self._chosen) + self._chosen.randbytes(20),))

    # --- inside

    def _method(self) -> str:
        while True:
            name = self._chosen.choice(list(METHODS))
            if self._chosen.random() < RARE.get(name, 1.0):
                return name

    def _sensible(self, name: str, record: AgentRecord) -> list[Any]:
        return request_for(name, record, self._guest, self._chosen)

    def _call(self, kind: str, name: str, messages: list[bytes]) -> Input:
        return Input(kind, "grpc", self._lane, tuple(messages), path_of(name))

    def _spoil_array(self, snapshot: events_pb2.Snapshot) -> None:
        packed = self._chosen.choice((snapshot.transition_counts, snapshot.signal_sums, snapshot.visits))
        dtype = self._chosen.choice(("<i8", "<f8")) if self._chosen.random() < 0.2 else packed.dtype
        array = np.frombuffer(zlib.decompress(packed.data), packed.dtype).astype(dtype)
        if array.size:
            value = self._chosen.choice(REALS if dtype == "<f8" else [n for n in INTEGERS if n < 2**63])
            array[self._chosen.randrange(array.size)] = value
        if self._chosen.random() < 0.2:
            array = np.concatenate([array, array])
        packed.dtype, packed.data = dtype, zlib.compress(array.tobytes())

    def _spoil_text(self, text: str) -> str:
        chosen = self._chosen
        if chosen.random() < 0.7 and (numbers := list(re.finditer(r"-?\d+(\.\d+)?|true|false|\"[^\"]*\"", text))):
            found = chosen.choice(numbers)
            return text[: found.start()] + chosen.choice(TOKENS_OF_TEXT) + text[found.end() :]
        return mutated(text.encode("utf-8", "replace"), chosen).decode("utf-8", "replace")
