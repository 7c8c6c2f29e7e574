"""Exported agents notice damage."""

import hashlib

import pytest

from safe_psrl_client import DataLossError, InvalidDocumentError, exports
from safe_psrl_proto.v1 import admin_pb2


def test_unsealing_returns_what_was_sealed() -> None:
    snapshot = bytes(range(256)) * 10
    assert exports.unseal(exports.seal(snapshot)) == snapshot


def test_every_flipped_byte_is_detected() -> None:
    sealed = exports.seal(b"a snapshot\n")
    for place in range(len(sealed)):
        damaged = bytearray(sealed)
        damaged[place] ^= 1
        with pytest.raises(InvalidDocumentError):
            exports.unseal(bytes(damaged))
    for length in range(len(sealed)):
        with pytest.raises(InvalidDocumentError):
            exports.unseal(sealed[:length])


def test_chunks_are_put_together_and_compared_with_the_digest() -> None:
    digest = hashlib.sha256(b"abc").digest()
    parts = [admin_pb2.ExportAgentResponse(chunk=b"ab"), admin_pb2.ExportAgentResponse(chunk=b"c", digest=digest)]
    assert exports.unseal(exports.seal_parts(parts)) == b"abc"
    with pytest.raises(DataLossError):
        exports.seal_parts([*parts, admin_pb2.ExportAgentResponse(chunk=b"d")])


def test_an_import_names_the_agent_first_and_the_digest_last() -> None:
    snapshot = b"x" * (2 * exports.CHUNK_BYTES + 1)
    messages = list(exports.import_requests("a", exports.seal(snapshot)))
    assert [message.agent for message in messages] == ["a", "", "", ""]
    assert b"".join(message.chunk for message in messages) == snapshot
    assert [bool(message.digest) for message in messages] == [False, False, False, True]
