"""Export and import."""

import hashlib

from safe_psrl_conformance.check import check, require, same
from safe_psrl_conformance.problem import HORIZON, seen
from safe_psrl_conformance.wire import Wire
from safe_psrl_proto.v1 import admin_pb2


def _exported(wire: Wire, name: str) -> tuple[bytes, bytes]:
    """The export and the digest that came with it."""
    parts = list(wire.admin.ExportAgent(admin_pb2.ExportAgentRequest(agent=name), **wire.options(name)))
    require(bool(parts), "the export is empty")
    same("messages with a digest", [bool(part.digest) for part in parts], [False] * (len(parts) - 1) + [True])
    return b"".join(part.chunk for part in parts), parts[-1].digest


def _import(wire: Wire, name: str, data: bytes, digest: bytes) -> admin_pb2.ImportAgentResponse:
    half = len(data) // 2
    requests = [
        admin_pb2.ImportAgentRequest(agent=name, chunk=data[:half]),
        admin_pb2.ImportAgentRequest(chunk=data[half:]),
        admin_pb2.ImportAgentRequest(digest=digest),
    ]
    return wire.admin.ImportAgent(iter(requests), **wire.options(name))


@check("an export, imported under another name, is the same agent: same digest, same next plan")
def round_trip(wire: Wire) -> None:
    name, copy = wire.create(), wire.new_name()
    wire.start(name, request_id="a")
    wire.report_episode(name, 1, [seen(0, 1, 2), seen(2, 2, 3), seen(3, 0, 1)])
    data, digest = _exported(wire, name)
    same("SHA-256 of the chunks", hashlib.sha256(data).digest(), digest)
    imported = _import(wire, copy, data, digest).status
    same("the digest of what was learned", imported.state_digest, wire.status(name).state_digest)
    plans = [wire.start(agent, request_id="b", state=0, with_policy=True) for agent in (name, copy)]
    for plan in plans:
        plan.ClearField("incarnation")  # that of its agent
    same("the copy's next episode", plans[1], plans[0])
    same("its horizon", plans[1].horizon, HORIZON)


@check("an import whose digest does not match is rejected with the name of the field, and no agent is created")
def damaged_import(wire: Wire) -> None:
    name, copy = wire.create(), wire.new_name()
    data, _ = _exported(wire, name)
    found = wire.refused("INVALID_ARGUMENT", _import, wire, copy, data, hashlib.sha256(b"other").digest())
    same("the field", list(found.violations), ["digest"])
    wire.refused("NOT_FOUND AGENT_NOT_FOUND", wire.status, copy)


@check("an import onto an agent that exists is ALREADY_EXISTS, AGENT_EXISTS, and changes nothing")
def import_onto_another(wire: Wire) -> None:
    name, other = wire.create(), wire.create()
    wire.refused_unchanged(other, "ALREADY_EXISTS AGENT_EXISTS", _import, wire, other, *_exported(wire, name))


@check("VerifyAgent finds that the stored events give the served state")
def verified(wire: Wire) -> None:
    name = wire.create_started()
    wire.report(name, seen(), episode=1, step=0)
    reply = wire.call(wire.admin.VerifyAgent, admin_pb2.VerifyAgentRequest(agent=name))
    require(reply.ok, f"it differs: {reply.difference}")
    same("the digest", reply.state_digest, wire.status(name).state_digest)
