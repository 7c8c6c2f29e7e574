"""What must hold after an input, whatever it was."""

from collections.abc import Iterator
from typing import Final

import grpc

from safe_psrl_proto.v1 import admin_pb2, control_pb2
from safe_psrl_server.rpc.errors import CODES
from tests.fuzz.ground import LIMITS, OK, Answer, Ground, decoded
from tests.fuzz.inputs import READING, Input

# Nothing is damaged and the server is up: what would say otherwise is a finding, as are INTERNAL and UNKNOWN.
DOCUMENTED: Final = set(CODES.values()) - {grpc.StatusCode.DATA_LOSS, grpc.StatusCode.UNAVAILABLE}
DOCUMENTED_BY_NUMBER: Final = {code.value[0] for code in DOCUMENTED}
TOO_LARGE: Final = "larger than max"  # than limits.max_message_bytes, as gRPC itself says it
SLOW_SECONDS: Final = 45.0  # of a machine that may have much else to do
VERIFY_EVERY: Final = 5  # accepted requests: what once differs goes on to differ
MOST_DRAWS: Final = 1000  # kernels an episode of a guest that is asked to plan; more only take longer


class FindingError(Exception):
    """Something that must not be."""


class Judge:
    """Of one lane: compares it before and after each input."""

    def __init__(self, ground: Ground, lane: int) -> None:
        self._ground = ground
        self._names = ground.lanes[lane], ground.guests[lane]
        self._before = self._look()
        self._changes = 0

    def reset(self) -> None:
        self._before = self._look()

    async def judge(self, given: Input, answer: Answer) -> None:
        """Raise `FindingError` if the answer is none of those that are documented, or if it is not what happened."""
        self._check_code(given, answer)
        before, self._before = self._before, self._look()
        after = self._before
        accepted = self._is_accepted(given, answer)
        if before != after:
            self._check_change(given, answer, accepted)
            for (old_version, old), (version, now) in zip(before, after, strict=True):
                if old != now and version <= old_version and now:
                    raise FindingError("the state changed without an event")
        if accepted and given.call not in READING:
            self._changes += 1
            if self._changes % VERIFY_EVERY == 1:
                await self._check_kept()
            await self._try_guests(given)

    def _look(self) -> list[tuple[int, bytes]]:
        return [self._ground.fingerprint(name) for name in self._names]

    def _check_code(self, given: Input, answer: Answer) -> None:
        if answer.code is not OK:
            if answer.code not in DOCUMENTED:
                raise FindingError(f"answered {answer.code.name}: {answer.text[:300]}")
            if not answer.reason and TOO_LARGE not in answer.text:
                raise FindingError(f"answered {answer.code.name} without a reason: {answer.text[:300]}")
        if answer.seconds > SLOW_SECONDS:
            raise FindingError(f"took {answer.seconds:.1f} s")
        if given.kind == "metadata" and not given.identity and answer.code is not grpc.StatusCode.UNAUTHENTICATED:
            raise FindingError(f"a caller without a valid token was answered {answer.code.name}")
        self._check_stream(given, answer)

    def _check_stream(self, given: Input, answer: Answer) -> None:
        """Everything that was sent on a stream has its own reply."""
        if given.call == "StepStream" and answer.code is OK and len(answer.replies) != len(given.messages):
            raise FindingError(f"{len(given.messages)} messages of a stream got {len(answer.replies)} replies")
        for request, reply in _exchanges(given, answer):
            if request.tag != reply.tag:
                raise FindingError(f"a call with the tag {request.tag} was answered with the tag {reply.tag}")
            kind, status = reply.WhichOneof("outcome"), reply.error
            if kind not in {"error", request.WhichOneof("call")}:
                raise FindingError(f"{request.WhichOneof('call')} was answered with {kind}")
            if kind == "error" and (status.code not in DOCUMENTED_BY_NUMBER or not status.reason):
                raise FindingError(f"a message of a stream was answered {status.code}: {status.message[:300]}")

    def _is_accepted(self, given: Input, answer: Answer) -> bool:
        if given.call == "StepStream":
            done = any(reply.WhichOneof("outcome") not in {"error", "batch"} for _, reply in _exchanges(given, answer))
            return done or _lost_replies(given, answer)
        return answer.code is OK

    def _check_change(self, given: Input, answer: Answer, accepted: bool) -> None:
        if answer.reason == "CALL_TOO_LONG":
            return  # it goes on, as it says
        if not accepted:
            raise FindingError(f"a refused request changed the state ({answer.code.name} {answer.reason})")
        if given.call in READING:
            raise FindingError("a request that only reads changed the state")
        if given.identity == "elsewhere":
            raise FindingError("a caller changed an agent of somebody else")

    async def _check_kept(self) -> None:
        for name in self._names:
            if self._ground.record(name) is not None and not (await self._ground.server.agents.verify(name)).equal:
                raise FindingError("what is stored is not what is served")

    async def _try_guests(self, given: Input) -> None:
        """An agent that was let in must be able to live: nothing that it is asked may fail."""
        guest = self._names[1]
        if self._ground.record(guest) is not None:
            await self._try(guest)
            await self._ground.remove(guest)
        made = [request.agent for request in decoded(given) if _makes(request)] if given.door == "grpc" else []
        for name in {*made} - {*self._names}:  # other lanes may have made it too
            await self._ground.remove(name)
        self._before = self._look()

    async def _try(self, name: str) -> None:
        record = self._ground.record(name)
        assert record is not None
        plans = record.definition.learner.options.max_kernel_draws <= MOST_DRAWS
        horizon = min(record.definition.spec.horizon, 2) if plans else 0
        await self._ask("GetAgent", admin_pb2.GetAgentRequest(agent=name, with_spec=True))
        await self._ask("ResumeAgent", admin_pb2.ResumeAgentRequest(agent=name))
        for step in range(horizon):  # goes on with what is open
            action = await self._ask("GetAction", control_pb2.GetActionRequest(agent=name, state=step % 3))
            if action.code is not OK:
                break
            played = control_pb2.GetActionResponse.FromString(action.replies[0])
            seen = control_pb2.Transition(state=step % 3, action=played.action, next_state=(step + 1) % 3, reward=0.5)
            seen.costs.extend([0.5] * record.definition.spec.num_constraints)
            await self._ask("Step", control_pb2.StepRequest(agent=name, transition=seen))
        if plans:
            await self._ask("StartEpisode", control_pb2.StartEpisodeRequest(agent=name, abandon_open=True, with_policy=True))
            await self._ask("EndEpisode", control_pb2.EndEpisodeRequest(agent=name, episode=record.state.episode))
        await self._ask("GetPosterior", admin_pb2.GetPosteriorRequest(agent=name))
        await self._ask("ExportAgent", admin_pb2.ExportAgentRequest(agent=name))
        verified = await self._ask("VerifyAgent", admin_pb2.VerifyAgentRequest(agent=name))
        if verified.code is not OK or not admin_pb2.VerifyAgentResponse.FromString(verified.replies[0]).ok:
            raise FindingError("what is stored of a new agent is not what is served")
        if self._changes % VERIFY_EVERY == 0:
            await self._ask("ListAgents", admin_pb2.ListAgentsRequest(page_size=1000))

    async def _ask(self, method: str, message: object) -> Answer:
        answer = await self._ground.call(method, message)
        if answer.code is not OK and answer.code not in DOCUMENTED:
            raise FindingError(f"an agent that was let in fails: {method} {answer.code.name}: {answer.text[:300]}")
        return answer


def _exchanges(given: Input, answer: Answer) -> Iterator[tuple[control_pb2.StepStreamRequest, control_pb2.StepStreamResponse]]:
    """Each message of a stream that was answered, and each call of a batch, with its reply."""
    if given.call != "StepStream":
        return
    for sent, got in zip(given.messages, answer.replies, strict=False):
        request, reply = control_pb2.StepStreamRequest.FromString(sent), control_pb2.StepStreamResponse.FromString(got)
        yield request, reply
        if reply.HasField("batch"):
            if len(request.batch.calls) != len(reply.batch.replies):
                raise FindingError(f"{len(request.batch.calls)} calls of a batch got {len(reply.batch.replies)} replies")
            yield from zip(request.batch.calls, reply.batch.replies, strict=True)


def _lost_replies(given: Input, answer: Answer) -> bool:
    """Whether a message that is too large ended the stream, which drops replies to messages before it."""
    before = next((i for i, message in enumerate(given.messages) if len(message) > LIMITS["max_message_bytes"]), 0)
    return answer.code is not OK and TOO_LARGE in answer.text and len(answer.replies) < before


def _makes(request: object) -> bool:
    return isinstance(request, admin_pb2.CreateAgentRequest | admin_pb2.ImportAgentRequest)
