"""Creating and deleting agents."""

from safe_psrl_conformance.check import check, require, same
from safe_psrl_conformance.problem import agent_spec
from safe_psrl_conformance.wire import Wire
from safe_psrl_proto.v1 import admin_pb2


@check("CreateAgent repeated with the same definition returns the agent, existed = true, and changes nothing")
def creation_is_idempotent(wire: Wire) -> None:
    request = admin_pb2.CreateAgentRequest(agent=wire.new_name(), spec=agent_spec())
    first = wire.call(wire.admin.CreateAgent, request)
    require(not first.existed, "the first reply reports that the agent existed")
    again = wire.call(wire.admin.CreateAgent, request)
    require(again.existed, "the second reply does not report that the agent existed")
    same("the version", again.status.version, first.status.version)


@check("CreateAgent with another definition is ALREADY_EXISTS, AGENT_EXISTS, and changes nothing")
def creation_conflict(wire: Wire) -> None:
    name = wire.create()
    request = admin_pb2.CreateAgentRequest(agent=name, spec=agent_spec(seed=8))
    found = wire.refused_unchanged(name, "ALREADY_EXISTS AGENT_EXISTS", wire.call, wire.admin.CreateAgent, request)
    same("metadata `agent`", found.metadata.get("agent"), name)


@check("a deleted agent is NOT_FOUND, AGENT_NOT_FOUND, in both services")
def deleted_is_gone(wire: Wire) -> None:
    name = wire.create()
    wire.call(wire.admin.DeleteAgent, admin_pb2.DeleteAgentRequest(agent=name))
    wire.refused("NOT_FOUND AGENT_NOT_FOUND", wire.status, name)
    wire.refused("NOT_FOUND AGENT_NOT_FOUND", wire.act, name, 0)


@check("ListAgents is ordered by name, and pages neither repeat nor omit an agent")
def listing_in_pages(wire: Wire) -> None:
    made = sorted(wire.create() for _ in range(3))
    first = wire.call(wire.admin.ListAgents, admin_pb2.ListAgentsRequest(page_size=1000))
    size = 1000 if first.next_page_token else 2  # many small pages, unless there are many agents
    listed: list[str] = []
    token = ""
    while True:
        page = wire.call(wire.admin.ListAgents, admin_pb2.ListAgentsRequest(page_size=size, page_token=token))
        require(len(page.agents) <= size, f"a page of size {size} has {len(page.agents)} agents")
        listed += [status.agent for status in page.agents]
        token = page.next_page_token
        if not token:
            break
    same("the order of names", listed, sorted(listed))
    same("the kit's agents in it", [name for name in listed if name.startswith(wire.prefix)], made)
