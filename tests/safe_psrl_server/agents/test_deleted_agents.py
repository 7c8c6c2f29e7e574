"""A deleted agent leaves its name, and no more."""

import gc
import weakref
from typing import Any

import pytest

from safe_psrl_server.errors import NotFoundError
from tests.safe_psrl_server.specs import make_spec


async def test_the_tables_of_a_deleted_agent_are_let_go(bench: Any) -> None:
    """Or whoever creates and deletes agents under ever new names would fill the memory."""
    await bench.begin()
    record = weakref.ref(bench.record("a"))
    await bench.commands.delete("a")
    await bench.agents.runtime.finish()
    gc.collect()
    assert record() is None
    with pytest.raises(NotFoundError):
        await bench.agents.record("a")


async def test_the_name_can_be_used_again_and_its_stream_goes_on(bench: Any) -> None:
    await bench.create()
    await bench.commands.delete("a")
    await bench.snapshot("a")
    record, existed = await bench.commands.create("a", make_spec(seed=1))
    assert not existed
    assert record.version == 3
    assert await bench.is_verified()
