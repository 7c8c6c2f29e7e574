"""The algorithm on its own, fed with what was acknowledged: it must decide what the service decided."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from safe_psrl import CmdpSpec, SafePsrl, Transition
from safe_psrl.problem.documents import spec_from_document
from safe_psrl_client import spec_to_document
from tests.faults.fold import Expected


def replayed(agent: Expected) -> Iterator[str]:
    """What the service decided otherwise than a run that nothing ever interrupted."""
    learner = learner_of(agent, 1)
    memory, told = learner.initial_state(), defaultdict(list)
    for (episode, step, state), action in agent.actions.items():
        told[episode].append(((step, state), action))
    for number, steps in agent.episodes().items():
        learner = learner_of(agent, number)
        memory, plan = learner.start_episode(memory)
        if plan.episode != number:
            yield f"episode {number} comes where {plan.episode} should"
            return
        reply = agent.starts.get(number)
        if reply is not None and hasattr(reply, "dual_variables"):
            if list(reply.dual_variables) != plan.next_dual_variables.tolist():
                yield f"episode {number} began with another dual variable than without interruption"
            if list(reply.predicted_costs) != plan.predicted_costs.tolist():
                yield f"episode {number} was planned otherwise than without interruption"
        wrong = [place for place, action in told[number] if plan.policy[place] != action]
        if wrong:
            yield f"episode {number}: other actions than without interruption at (step, state) {wrong[:3]}"
        for step, seen in enumerate(steps):
            memory = learner.observe(
                memory, Transition(step, seen.state, seen.action, seen.next_state, seen.reward, tuple(seen.costs))
            )


def learner_of(agent: Expected, episode: int) -> SafePsrl:
    """With the budget that the episode was planned with."""
    spec = type(agent.spec)()
    spec.CopyFrom(agent.spec)
    spec.cmdp.constraints[0].cost_budget = agent.budget(episode, 0)
    return SafePsrl(problem_of(spec), seed=agent.spec.seed)


def problem_of(spec: Any) -> CmdpSpec:
    document = spec_to_document(spec)
    del document["agent"]
    return spec_from_document(document)
