"""What is stored but could not be applied, for want of memory say, is read again: never half of it served."""

from collections.abc import Callable
from typing import Any

import pytest

from safe_psrl.learner import Transition
from safe_psrl_proto.v1 import control_pb2, model_pb2
from safe_psrl_server.errors import UnavailableError


class Failing(list[Transition]):
    """Memory runs out while steps are added to it."""

    def __iadd__(self, _steps: object) -> Any:
        raise MemoryError


async def test_a_transition_that_could_not_be_applied_is_read_again(
    bench: Any,
    make_spec: Callable[..., model_pb2.AgentSpec],
    transition: Callable[..., control_pb2.Transition],
) -> None:
    await bench.commands.create("agent", make_spec())
    started = await bench.commands.start_episode(control_pb2.StartEpisodeRequest(agent="agent", state=0))

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
    again = await report(1)
    assert again.duplicate
    last = await report(2)
    assert (last.duplicate, last.done) == (False, True)
    record = bench.record("agent")
    assert record.totals.transitions == record.state.transition_counts.sum() == 3
    assert (await bench.agents.verify("agent")).equal
