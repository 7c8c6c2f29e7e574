"""The contract's requests, made from plain values, and the position in an episode. No I/O; all clients and modes share it."""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from safe_psrl_client.documents import fill_agent, options_from_document
from safe_psrl_client.errors import EpisodeClosedError, InvalidArgumentError
from safe_psrl_client.fields import message_of
from safe_psrl_client.updates import update_from_document
from safe_psrl_proto.v1 import admin_pb2, control_pb2, events_pb2, model_pb2

StreamCall = control_pb2.StepRequest | control_pb2.StartEpisodeRequest | control_pb2.ReportEpisodeRequest
MAX_BATCH_CALLS: Final = 1024  # the protocol's limit
TRUNCATED: Final = events_pb2.EPISODE_END_TRUNCATED
ABANDONED: Final = events_pb2.EPISODE_END_ABANDONED


class Transition(NamedTuple):
    """One observed step. Reward and costs, from 0 to 1, may be omitted where the specification knows them."""

    state: int
    action: int
    next_state: int
    reward: float | None = None
    costs: Sequence[float] = ()
    terminal: bool = False  # the environment ended the episode with this step

    def message(self) -> control_pb2.Transition:
        """The transition as a message of the protocol. Raises `InvalidArgumentError` that names a field of the wrong type."""
        return message_of(
            control_pb2.Transition,
            state=self.state,
            action=self.action,
            next_state=self.next_state,
            reward=self.reward,
            costs=self.costs,
            terminal=self.terminal,
        )


def start_episode(
    agent: str, state: int | None, request_id: str | None, *, with_policy: bool, abandon_open: bool
) -> control_pb2.StartEpisodeRequest:
    return message_of(
        control_pb2.StartEpisodeRequest,
        agent=agent,
        request_id=request_id or uuid.uuid4().hex,  # the key under which it can be repeated
        state=state,
        with_policy=with_policy,
        abandon_open=abandon_open,
    )


def step(agent: str, episode: int, step: int, seen: Transition, incarnation: int = 0) -> control_pb2.StepRequest:
    moved = _checked(seen).message()
    kind = control_pb2.StepRequest
    return message_of(kind, agent=agent, episode=episode, step=step, transition=moved, incarnation=incarnation)


def report_transition(agent: str, episode: int, step: int, seen: Transition) -> control_pb2.ReportTransitionRequest:
    moved = _checked(seen).message()
    return message_of(control_pb2.ReportTransitionRequest, agent=agent, episode=episode, step=step, transition=moved)


def _checked(seen: Transition) -> Transition:
    if not isinstance(seen, Transition):
        raise InvalidArgumentError(f"seen = {seen!r:.60}: must be Transition(state, action, next_state, …)")
    return seen


def report_episode(
    agent: str,
    episode: int,
    seen: Sequence[Transition],
    incarnation: int = 0,
    first_step: int = 0,
    following: control_pb2.StartEpisodeRequest | None = None,
) -> control_pb2.ReportEpisodeRequest:
    moves = [_checked(one).message() for one in seen]
    kind = control_pb2.ReportEpisodeRequest
    named = {"agent": agent, "episode": episode, "first_step": first_step, "next": following}
    return message_of(kind, **named, transitions=moves, incarnation=incarnation)


class EpisodeCursor:
    """The position in an episode. Its requests carry the episode, the step, and for the start a key: each can be repeated."""

    def __init__(self, agent: str, state: int, *, with_policy: bool = False, abandon_open: bool = False) -> None:
        self.agent = agent
        self.start = start_episode(agent, state, None, with_policy=with_policy, abandon_open=abandon_open)
        self.state = state
        self.number = 0  # from 1 on once it has started
        self.incarnation = 0  # of the agent: another one of the same name does not take the episode's calls
        self.horizon = 0
        self.step = 0  # the step to be played next
        self.next_action: int | None = None
        self.advisory = False  # the agent is in shadow: its actions are proposals
        self.is_open = False

    def started(self, reply: control_pb2.StartEpisodeResponse) -> None:
        """The service has begun the episode."""
        self.number, self.horizon, self.next_action = reply.episode, reply.horizon, reply.action
        self.incarnation, self.advisory = reply.incarnation, reply.advisory
        self.step = reply.step  # above 0 if a continuing task runs already
        self.is_open = True

    def reported(self, steps: int, reply: control_pb2.ReportEpisodeResponse) -> int | None:
        """Steps of a continuing task were reported at once; the next action, or None if the agent is paused."""
        self.step += steps
        if not reply.HasField("next"):
            self.accept_no_more()
            return None
        self.started(reply.next)
        return self.next_action

    @property
    def is_continuing(self) -> bool:
        """Whether the task has no episodes: it never ends, and the server keeps its place."""
        return self.horizon == 0

    def step_request(self, seen: Transition) -> control_pb2.StepRequest:
        """The request that reports `seen` as the next step. Raises `EpisodeClosedError` if the episode is not open."""
        if not self.is_open:
            raise EpisodeClosedError(f"agent {self.agent}: no episode is open; begin one first", "NO_EPISODE")
        return step(self.agent, self.number, self.step, seen, self.incarnation)

    def advance(self, seen: Transition, reply: control_pb2.StepResponse) -> int | None:
        """Advance to the state after `seen`; the action to play there, or None at the end."""
        self.state, self.step = seen.next_state, self.step + 1
        if reply.next_episode:
            self.number, self.step = reply.next_episode, reply.next_step
        self.is_open = reply.HasField("action")
        self.next_action = reply.action if self.is_open else None
        self.advisory = reply.advisory or (self.advisory and not self.is_open)
        return self.next_action

    def accept_no_more(self) -> None:
        """Close the episode on this side."""
        self.is_open = False
        self.next_action = None


def stream_request(call: StreamCall, tag: int = 0) -> control_pb2.StepStreamRequest:
    """The message of a stream that carries `call`."""
    if isinstance(call, control_pb2.StepRequest):
        return control_pb2.StepStreamRequest(tag=tag, step=call)
    if isinstance(call, control_pb2.StartEpisodeRequest):
        return control_pb2.StepStreamRequest(tag=tag, start_episode=call)
    return control_pb2.StepStreamRequest(tag=tag, report_episode=call)


def stream_batches(calls: Iterable[StreamCall]) -> Iterator[control_pb2.StepStreamRequest]:
    """The fewest messages that carry `calls`, which are tagged 0, 1, ... by their position."""
    tagged = (stream_request(call, tag) for tag, call in enumerate(calls))
    while some := list(islice(tagged, MAX_BATCH_CALLS)):
        yield control_pb2.StepStreamRequest(batch=control_pb2.StepStreamBatch(calls=some))


def update_agent(
    agent: str, changes: Mapping[str, Any], reason: str, expected_version: int, *, dry_run: bool, force: bool = False
) -> admin_pb2.UpdateAgentRequest:
    """New values by field; see `updates`."""
    update, paths = update_from_document(changes)
    request = message_of(
        admin_pb2.UpdateAgentRequest,
        agent=agent,
        update=update,
        expected_version=expected_version,
        reason=reason,
        dry_run=dry_run,
        force=force,
    )
    request.update_mask.paths.extend(paths)
    return request


def compare_agent(agent: str, policy: Sequence[Sequence[int]] | None) -> admin_pb2.CompareAgentRequest:
    """`policy` has the action by step and state."""
    request = message_of(admin_pb2.CompareAgentRequest, agent=agent)
    if policy is not None:
        spec = model_pb2.AgentSpec()
        fill_agent(spec, {"fallback_policy": policy})
        request.policy.CopyFrom(spec.fallback_policy)
    return request


def create_agent(
    agent: str,
    definition: model_pb2.AgentSpec | str,
    options: model_pb2.SafePsrlOptions | Mapping[str, Any] | None,
    seed: int,
) -> admin_pb2.CreateAgentRequest:
    """`definition` in full, or the name of a preset, which `options` and `seed` complete."""
    if isinstance(options, Mapping):
        options = options_from_document(options)
    if isinstance(definition, str):
        return message_of(admin_pb2.CreateAgentRequest, agent=agent, preset=definition, options=options, seed=seed)
    if not isinstance(definition, model_pb2.AgentSpec):
        raise InvalidArgumentError(f"definition = {definition!r:.60}: must be AgentSpec or the name of a preset")
    if options is not None or seed:
        raise InvalidArgumentError("options and seed belong in the specification: set definition.options and definition.seed")
    return message_of(admin_pb2.CreateAgentRequest, agent=agent, spec=definition)
