"""Late feedback: replacing the reward or the costs that were reported of a step, once. Pure, as `decisions` is."""

from safe_psrl.transition import Transition
from safe_psrl_proto.v1 import control_pb2, events_pb2
from safe_psrl_server.agents.decisions import Decision
from safe_psrl_server.agents.definition import Definition
from safe_psrl_server.agents.episode import COMPLETED, Episode
from safe_psrl_server.agents.episode_events import guarding
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.validation import check_incarnation, check_signal, check_step, find_episode
from safe_psrl_server.errors import AlreadyExistsError, FailedPreconditionError, InvalidArgumentError


def correct(record: AgentRecord, request: control_pb2.CorrectSignalRequest, now_micros: int) -> Decision[bool]:
    """The reply is whether the same correction was made before."""
    check_incarnation(record, request.incarnation)
    episode, step = find_episode(record, request.episode), request.step
    check_step(record, step)
    if step >= episode.next_step:
        message = f"step {step} of episode {episode.number} was not reported: report it instead"
        raise FailedPreconditionError(message, "STEP_NOT_REPORTED", expected_step=episode.next_step)
    correction = events_pb2.SignalCorrected(episode=episode.number, step=step, costs=request.costs)
    if request.HasField("reward"):
        correction.reward = request.reward
    _check(episode.definition, episode.transitions[step], correction)
    known = episode.corrections.get(step)
    if known is not None and known != correction:
        message = f"step {step} of episode {episode.number} was corrected with other values"
        raise AlreadyExistsError(message, "CORRECTION_CONFLICT", episode=episode.number, step=step)
    if known is not None:
        return Decision([], True)
    if episode.number <= record.discounted_episode or record.definition.learner.problem.keep < 1.0:
        raise FailedPreconditionError(
            f"episode {episode.number} cannot be corrected: half_life_visits or forgetting after drift has reduced the "
            "weight of its steps since, and by how much is not stored",
            "OBSERVATION_DISCOUNTED",
        )
    event = events_pb2.Event(time_micros=now_micros, signal_corrected=correction)
    return Decision([event, *_guarding(record, episode, correction, now_micros)], False)


def _check(definition: Definition, seen: Transition, correction: events_pb2.SignalCorrected) -> None:
    """Values are possible, and those that are known stay."""
    spec = definition.spec
    learned = spec.learned[:, seen.step % spec.learned.shape[1], seen.state, seen.action].tolist()
    if not correction.HasField("reward") and not correction.costs:
        raise InvalidArgumentError("reward", "or costs must be given")
    where = f"in state {seen.state} with action {seen.action}: only what is learned can be corrected"
    if correction.HasField("reward"):
        check_signal("reward", correction.reward)
        if not learned[0]:
            raise InvalidArgumentError("reward", f"is known {where}", "SIGNAL_KNOWN")
    if correction.costs and len(correction.costs) != spec.num_constraints:
        wanted = f"must have {spec.num_constraints} entries, one per constraint"
        raise InvalidArgumentError("costs", f"{wanted}, got {len(correction.costs)}")
    for i, cost in enumerate(correction.costs):
        check_signal(f"costs[{i}]", cost)
        if not learned[1 + i] and cost != seen.costs[i]:
            raise InvalidArgumentError(f"costs[{i}]", f"is known {where}", "SIGNAL_KNOWN")
    if correction.costs and not any(learned[1:]):
        raise InvalidArgumentError("costs", f"are known {where}", "SIGNAL_KNOWN")


def _guarding(
    record: AgentRecord, episode: Episode, correction: events_pb2.SignalCorrected, now_micros: int
) -> list[events_pb2.Event]:
    if episode.end != COMPLETED:
        return []
    costs = episode.sums([*episode.corrections.values(), correction]).costs
    return guarding(record, episode, costs, episode.next_step, now_micros, replaced=episode.sums().costs)
