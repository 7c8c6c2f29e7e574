"""Steps are reported in order."""

from safe_psrl_conformance.check import check, same
from safe_psrl_conformance.problem import seen
from safe_psrl_conformance.wire import Wire


@check("a step beyond the next is OUT_OF_RANGE, STEP_GAP, with expected_step, and changes nothing")
def gap(wire: Wire) -> None:
    name = wire.create_started()
    for call, what in ((wire.report, seen()), (wire.step, seen()), (wire.act, 0)):
        found = wire.refused_unchanged(name, "OUT_OF_RANGE STEP_GAP", call, name, what, episode=1, step=1)
        same("metadata `expected_step`", found.metadata.get("expected_step"), "0")


@check("a step begins where the previous one led, else it is STATE_MISMATCH with expected_state")
def continuity(wire: Wire) -> None:
    name = wire.create_started()
    wire.report(name, seen(0, 1, 2), episode=1, step=0)
    found = wire.refused_unchanged(name, "INVALID_ARGUMENT STATE_MISMATCH", wire.report, name, seen(3, 0, 0), episode=1, step=1)
    same("metadata `expected_state`", found.metadata.get("expected_state"), "2")


@check("calls without episode and step refer to the open episode and its next step, and are applied exactly once")
def keyless_once(wire: Wire) -> None:
    name = wire.create()
    wire.start(name)
    before = wire.status(name).version
    for step in range(2):
        reply = wire.report(name, seen())
        same("the step", (reply.episode, reply.step, reply.duplicate), (1, step, False))
    status = wire.status(name)
    same("transitions after two reports", status.transitions, 2)
    same("events that they made", status.version - before, 2)


@check("episodes are numbered 1, 2, 3, … without a gap")
def numbering(wire: Wire) -> None:
    name = wire.create()
    for number in (1, 2, 3):
        same("the episode", wire.start(name).episode, number)
        wire.step(name, seen(terminal=True))
    same("completed episodes", wire.status(name).completed_episodes, 3)
