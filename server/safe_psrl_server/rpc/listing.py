"""The order, the filters and the pages of `ListAgents`."""

import re
from typing import Final

from safe_psrl_proto.v1 import admin_pb2
from safe_psrl_server.errors import InvalidArgumentError
from safe_psrl_server.store import Order, Summary, SummaryQuery, key_of

ORDERS: Final = {
    admin_pb2.AGENT_ORDER_UNSPECIFIED: Order.AGENT,
    admin_pb2.AGENT_ORDER_CONDITION: Order.CONDITION,
    admin_pb2.AGENT_ORDER_COST_RATIO: Order.COST_RATIO,
    admin_pb2.AGENT_ORDER_CHANGED: Order.CHANGED,
    admin_pb2.AGENT_ORDER_CREATED: Order.CREATED,
}
PREFIX: Final = re.compile(r"[A-Za-z0-9._:/-]{0,128}")
TOKEN: Final = re.compile(r"(-?[0-9][0-9.e+-]{0,30}) (.{1,128})")


def query_of(request: admin_pb2.ListAgentsRequest, limit: int) -> SummaryQuery:
    """Raises `InvalidArgumentError`."""
    order = ORDERS.get(request.order_by)
    if order is None:
        raise InvalidArgumentError("order_by", f"must be one of AgentOrder, got {request.order_by}")
    if request.condition not in admin_pb2.AgentCondition.values():
        raise InvalidArgumentError("condition", f"must be one of AgentCondition, got {request.condition}")
    if not PREFIX.fullmatch(request.prefix):
        raise InvalidArgumentError("prefix", "must be at most 128 letters, digits and . _ - : /")
    ratio = request.min_cost_ratio if request.HasField("min_cost_ratio") else None
    if ratio is not None and not ratio >= 0:
        raise InvalidArgumentError("min_cost_ratio", f"must be at least 0, got {ratio}")
    query = SummaryQuery(limit, request.prefix, request.condition, ratio, order, request.descending)
    return query._replace(after=_key_in(request.page_token, order)) if request.page_token else query


def token_of(last: Summary, query: SummaryQuery) -> str:
    """The page token behind `last`."""
    value, agent = key_of(last, query.order)
    return agent if query.order is Order.AGENT else f"{value!r} {agent}"


def _key_in(token: str, order: Order) -> tuple[float | str, str]:
    if order is Order.AGENT and PREFIX.fullmatch(token):
        return token, token
    found = TOKEN.fullmatch(token)
    try:
        if found is not None and order is not Order.AGENT and PREFIX.fullmatch(found[2]):
            return float(found[1]) if order is Order.COST_RATIO else int(found[1]), found[2]
    except ValueError:
        pass
    raise InvalidArgumentError("page_token", "must be that of an earlier reply to a request with the same order")
