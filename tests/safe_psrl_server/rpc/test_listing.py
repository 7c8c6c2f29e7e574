"""`ListAgents`: filters, orders, pages."""

from typing import Any

import grpc
import pytest

from safe_psrl_proto.v1 import admin_pb2
from tests.safe_psrl_server.specs import transition
from tests.safe_psrl_server.wire import Wire, serving


def test_a_list_is_filtered_and_ordered_and_its_pages_are_the_whole() -> None:
    with serving() as wire:
        for name in ("cell/a", "cell/b", "player"):
            wire.create(name=name)
        wire.admin.PauseAgent(admin_pb2.PauseAgentRequest(agent="cell/b"))
        episode = wire.start("cell/a").episode
        wire.report_episode("cell/a", episode, *[transition(s, 1, 2) for s in (0, 2, 2)])

        def names(**query: Any) -> list[str]:
            found, token = list[str](), ""
            while True:
                page = wire.list(page_size=1, page_token=token, **query)
                found += [status.agent for status in page.agents]
                token = page.next_page_token
                if not token:
                    return found

        assert names() == ["cell/a", "cell/b", "player"]
        assert names(prefix="cell/") == ["cell/a", "cell/b"]
        assert names(condition=admin_pb2.AGENT_CONDITION_PAUSED) == ["cell/b"]
        assert names(min_cost_ratio=0.1) == ["cell/a"]
        assert names(order_by=admin_pb2.AGENT_ORDER_COST_RATIO, descending=True)[0] == "cell/a"
        assert names(order_by=admin_pb2.AGENT_ORDER_CHANGED, descending=True) == ["cell/a", "cell/b", "player"]
        assert names(order_by=admin_pb2.AGENT_ORDER_CREATED) == ["cell/a", "cell/b", "player"]
        assert names(order_by=admin_pb2.AGENT_ORDER_EVENTS, descending=True) == ["cell/a", "cell/b", "player"]
        assert names(order_by=admin_pb2.AGENT_ORDER_SIZE) == ["cell/a", "cell/b", "player"]  # all of one size
        assert names(order_by=admin_pb2.AGENT_ORDER_CONDITION) == ["cell/a", "player", "cell/b"]


@pytest.mark.parametrize(
    ("field", "query"),
    [
        ("order_by", {"order_by": 9}),
        ("condition", {"condition": 9}),
        ("prefix", {"prefix": "a\0"}),
        ("min_cost_ratio", {"min_cost_ratio": float("nan")}),
        ("page_token", {"page_token": "a", "order_by": 2}),
        ("page_token", {"page_token": "1e999999 a b", "order_by": 3}),
        ("page_token", {"page_token": "0.5 a"}),
    ],
)
def test_a_list_that_cannot_be_made_is_rejected(wire: Wire, field: str, query: dict[str, Any]) -> None:
    with pytest.raises(grpc.RpcError, match=field) as rejected:
        wire.list(**query)
    assert rejected.value.code() == grpc.StatusCode.INVALID_ARGUMENT
