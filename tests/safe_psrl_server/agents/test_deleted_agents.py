"""A deleted agent leaves its name, and no more."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from safe_psrl_proto.v1 import control_pb2, model_pb2
from safe_psrl_server.errors import NotFoundError

NewSpec = Callable[..., model_pb2.AgentSpec]


async def test_the_tables_of_a_deleted_agent_are_let_go(bench: Any, make_spec: NewSpec) -> None:
    """Or whoever creates and deletes agents under ever new names would fill the memory."""
    await bench.commands.create("a", make_spec())
    await bench.commands.start_episode(control_pb2.StartEpisodeRequest(agent="a"))
    record = weakref.ref(bench.record("a"))
    await bench.commands.delete("a")
    await bench.agents.runtime.finish()
    gc.collect()
    assert record() is None
    with pytest.raises(NotFoundError):
        await bench.agents.record("a")


async def test_the_name_can_be_used_again_and_its_stream_goes_on(bench: Any, make_spec: NewSpec) -> None:
    await bench.commands.create("a", make_spec())
    await bench.commands.delete("a")
    await bench.snapshot("a")
    record, existed = await bench.commands.create("a", make_spec(seed=1))
    assert not existed
    assert record.version == 3
    assert (await bench.agents.verify("a")).equal
