"""What is stored but could not be applied, for want of memory say, is read again: never half of it served."""

from typing import Any

import pytest

from safe_psrl.learner import Transition
from safe_psrl_proto.v1 import control_pb2
from safe_psrl_server.errors import UnavailableError
from tests.safe_psrl_server.specs import make_spec, transition


class Failing(list[Transition]):
    """Memory runs out while steps are added to it."""

    def __iadd__(self, _steps: object) -> Any:
        raise MemoryError


async def test_a_transition_that_could_not_be_applied_is_read_again(bench: Any) -> None:
    await bench.commands.create("agent", make_spec())
    started = await bench.start("agent")

    def report(step: int) -> Any:
        request = control_pb2.ReportTransitionRequest(
            agent="agent", episode=started.episode, step=step, transition=transition(0, 1, 0)
        )
        return bench.commands.report(request, wants_action=False)

    await report(0)
    episode = bench.record("agent").episodes[started.episode]
    episode.transitions = Failing(episode.transitions)
    with pytest.raises(UnavailableError, match="try again"):
        await report(1)
    _, again = await report(1)
    assert again.duplicate
    _, last = await report(2)
    assert (last.duplicate, last.done) == (False, True)
    record = bench.record("agent")
    assert record.totals.transitions == record.state.transition_counts.sum() == 3
    assert (await bench.agents.verify("agent")).equal
