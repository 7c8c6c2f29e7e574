"""Room for one more agent: in what its creator may have, and in the server's memory.

Counted over what exists, so nothing has to be stored. Creations at the same moment are not seen by each other.
"""

from safe_psrl_proto.v1 import model_pb2
from safe_psrl_server.agents.definition import table_entries
from safe_psrl_server.agents.service import AgentService
from safe_psrl_server.config import Quotas
from safe_psrl_server.errors import LimitExceededError
from safe_psrl_server.security.caller import caller
from safe_psrl_server.security.identities import Identity
from safe_psrl_server.security.roles import Role


async def check_room(agents: AgentService, quotas: Quotas, name: str, spec: model_pb2.AgentSpec) -> None:
    """Raise `LimitExceededError` if there is none. An agent that exists needs none: creating it again changes nothing."""
    if name in agents.registry:
        return
    if not agents.registry.complete.is_set():  # after a start: the size of every agent must be known
        await agents.refresh()
    _check_quota(agents, quotas, caller().identity)
    used = agents.registry.size.table_entries
    needed, most = table_entries(spec.cmdp), agents.limits.max_total_table_entries
    if used + needed > most and needed <= agents.limits.max_table_entries:  # a larger one is malformed, whatever there is
        raise LimitExceededError(f"the agents' tables have {used} entries, and may have {most}", "MEMORY_QUOTA")


def _check_quota(agents: AgentService, quotas: Quotas, identity: Identity) -> None:
    """The agents of an identity are those that it may administer, regardless of who created them."""
    most = identity.max_agents if identity.max_agents is not None else quotas.max_agents or None
    if most is None:
        return
    count = sum(identity.may(Role.ADMIN, agent.name) for agent in agents.agents())
    if count >= most:
        raise LimitExceededError(f"{identity.name!r} has {count} agents, and may have {most}", "AGENT_QUOTA")
