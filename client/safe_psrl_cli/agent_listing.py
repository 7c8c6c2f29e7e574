"""The filters and the order of `safe-psrl agent list`, as fields of `ListAgentsRequest`."""

from enum import StrEnum
from typing import Any, Final

MOST_OF_A_PAGE: Final = 1000


class Condition(StrEnum):
    """How an agent is doing."""

    ACTIVE = "active"
    PAUSED = "paused"
    QUARANTINED = "quarantined"


class Sort(StrEnum):
    """What orders the list."""

    NAME = "name"
    CONDITION = "condition"
    RATIO = "ratio"
    CHANGED = "changed"
    CREATED = "created"
    EVENTS = "events"
    SIZE = "size"


def query_of(prefix: str, condition: Condition | None, min_ratio: float | None, sort: Sort, limit: int) -> dict[str, Any]:
    from safe_psrl_proto.v1 import admin_pb2  # noqa: PLC0415  # as in all commands

    orders = {
        Sort.NAME: admin_pb2.AGENT_ORDER_UNSPECIFIED,
        Sort.CONDITION: admin_pb2.AGENT_ORDER_CONDITION,
        Sort.RATIO: admin_pb2.AGENT_ORDER_COST_RATIO,
        Sort.CHANGED: admin_pb2.AGENT_ORDER_CHANGED,
        Sort.CREATED: admin_pb2.AGENT_ORDER_CREATED,
        Sort.EVENTS: admin_pb2.AGENT_ORDER_EVENTS,
        Sort.SIZE: admin_pb2.AGENT_ORDER_SIZE,
    }
    query: dict[str, Any] = {"prefix": prefix, "order_by": orders[sort]}
    query["descending"] = sort not in {Sort.NAME, Sort.CONDITION}
    if condition is not None:
        query["condition"] = admin_pb2.AgentCondition.Value(f"AGENT_CONDITION_{condition.name}")
    if min_ratio is not None:
        query["min_cost_ratio"] = min_ratio
    if 0 < limit < MOST_OF_A_PAGE:
        query["page_size"] = limit
    return query
