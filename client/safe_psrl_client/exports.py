"""The file format of an exported agent: a line with format and digest, then the snapshot."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final

from safe_psrl_client.errors import DataLossError, InvalidDocumentError
from safe_psrl_proto.v1 import admin_pb2

FORMAT: Final = b"safe-psrl agent 1 "
CHUNK_BYTES: Final = 2**20


def seal(snapshot: bytes) -> bytes:
    return FORMAT + hashlib.sha256(snapshot).hexdigest().encode() + b"\n" + snapshot


def unseal(content: bytes) -> bytes:
    """The snapshot in `content`. Raises `InvalidDocumentError` if it is malformed or damaged."""
    heading, newline, snapshot = content.partition(b"\n")
    if not newline or not heading.startswith(FORMAT):
        raise InvalidDocumentError("this is not an exported agent (format 1)")
    if heading.removeprefix(FORMAT) != hashlib.sha256(snapshot).hexdigest().encode():
        raise InvalidDocumentError("this exported agent is damaged: its digest does not match")
    return snapshot


def seal_parts(parts: Sequence[admin_pb2.ExportAgentResponse]) -> bytes:
    """Join and seal the chunks of an export. Raises `DataLossError` if they do not match the last digest."""
    snapshot = b"".join(part.chunk for part in parts)
    digest = next((part.digest for part in reversed(parts) if part.digest), b"")
    if hashlib.sha256(snapshot).digest() != digest:
        raise DataLossError("the export was damaged in transit: its digest does not match", "DIGEST_MISMATCH")
    return seal(snapshot)


def import_requests(agent: str, content: bytes) -> Iterator[admin_pb2.ImportAgentRequest]:
    """The messages that import the sealed `content` as `agent`."""
    snapshot = unseal(content)
    for start in range(0, len(snapshot), CHUNK_BYTES):
        yield admin_pb2.ImportAgentRequest(agent="" if start else agent, chunk=snapshot[start : start + CHUNK_BYTES])
    yield admin_pb2.ImportAgentRequest(agent="" if snapshot else agent, digest=hashlib.sha256(snapshot).digest())
