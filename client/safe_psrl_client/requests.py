"""The contract's requests, made from plain values: shared by the clients, the episodes and the streams."""

import uuid
from collections.abc import Sequence
from typing import NamedTuple

from safe_psrl_client.errors import InvalidArgumentError
from safe_psrl_proto.v1 import admin_pb2, control_pb2, model_pb2


class Transition(NamedTuple):
    """What was seen in one step. Reward and costs, from 0 to 1, may be left out where the problem's are known."""

    state: int
    action: int
    next_state: int
    reward: float | None = None
    costs: Sequence[float] = ()
    terminal: bool = False  # the environment ended the episode with this step

    def message(self) -> control_pb2.Transition:
        return control_pb2.Transition(
            state=self.state,
            action=self.action,
            next_state=self.next_state,
            reward=self.reward,
            costs=self.costs,
            terminal=self.terminal,
        )


def new_request_id() -> str:
    """A key under which StartEpisode can be repeated."""
    return uuid.uuid4().hex


def start_episode(
    agent: str, state: int | None, request_id: str | None, *, with_policy: bool, abandon_open: bool
) -> control_pb2.StartEpisodeRequest:
    return control_pb2.StartEpisodeRequest(
        agent=agent,
        request_id=request_id or new_request_id(),
        state=state,
        with_policy=with_policy,
        abandon_open=abandon_open,
    )


def get_action(agent: str, state: int, episode: int | None, step: int | None) -> control_pb2.GetActionRequest:
    return control_pb2.GetActionRequest(agent=agent, state=state, episode=episode, step=step)


def report_transition(agent: str, episode: int, step: int, seen: Transition) -> control_pb2.ReportTransitionRequest:
    return control_pb2.ReportTransitionRequest(agent=agent, episode=episode, step=step, transition=seen.message())


def step(agent: str, episode: int, step: int, seen: Transition) -> control_pb2.StepRequest:
    return control_pb2.StepRequest(agent=agent, episode=episode, step=step, transition=seen.message())


def report_episode(agent: str, episode: int, seen: Sequence[Transition]) -> control_pb2.ReportEpisodeRequest:
    return control_pb2.ReportEpisodeRequest(agent=agent, episode=episode, transitions=[one.message() for one in seen])


def create_agent(
    agent: str, definition: model_pb2.AgentSpec | str, options: model_pb2.SafePsrlOptions | None, seed: int
) -> admin_pb2.CreateAgentRequest:
    """`definition` in full, or the name of a preset, which `options` and `seed` complete."""
    if isinstance(definition, str):
        return admin_pb2.CreateAgentRequest(agent=agent, preset=definition, options=options, seed=seed)
    if options is not None or seed:
        raise InvalidArgumentError("options and seed belong into a full specification, not beside it")
    return admin_pb2.CreateAgentRequest(agent=agent, spec=definition)
