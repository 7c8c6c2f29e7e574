"""What is stored but could not be applied, for want of memory say, is read again: never half of it served."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from safe_psrl.learner import Transition
from safe_psrl_proto.v1 import control_pb2, model_pb2
from safe_psrl_server.agent_record import Episode
from safe_psrl_server.errors import UnavailableError


def fail_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory runs out in the midst of applying a transition, and is there again after that."""
    add = Episode.add

    def fail(episode: Episode, steps: Sequence[Transition], time_micros: int) -> None:
        monkeypatch.setattr(Episode, "add", add)
        add(episode, steps, time_micros)
        raise MemoryError

    monkeypatch.setattr(Episode, "add", fail)


async def test_a_transition_that_could_not_be_applied_is_read_again(
    bench: Any,
    monkeypatch: pytest.MonkeyPatch,
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
    fail_once(monkeypatch)
    with pytest.raises(UnavailableError, match="try again"):
        await report(1)
    _, again = await report(1)
    assert again.duplicate
    _, last = await report(2)
    assert (last.duplicate, last.done) == (False, True)
    record = bench.host.record("agent")
    assert record.totals.transitions == record.settled_state().transition_counts.sum() == 3
    assert (await bench.host.verify("agent")).same
