"""Bodies that are large, or large once they are unpacked, or full of empty messages, or texts without end."""

import pytest

from safe_psrl_proto.v1 import admin_pb2, control_pb2
from tests.attacks.attackers import send_bodies, send_requests
from tests.attacks.scene import MB, SMALL, Scene
from tests.safe_psrl_server.wire import Code, refusal

pytestmark = pytest.mark.slow

CONTROL, ADMIN = "/safe_psrl.v1.ControlService", "/safe_psrl.v1.AdminService"
REPORT = f"{CONTROL}/ReportEpisode"
TRANSITION = control_pb2.ReportEpisodeRequest(transitions=[control_pb2.Transition(state=1)]).SerializeToString()
SIXTY_MB = TRANSITION, 60 * MB // len(TRANSITION)
MILLION = 1_000_000
OWN = "attack/texts"


@pytest.mark.parametrize("gzip", [False, True], ids=["raw", "compressed"])
def test_large_bodies_without_a_token(scene: Scene, gzip: bool) -> None:
    with scene.attack(f"60 MB bodies without a token{', compressed' if gzip else ''}", most_memory=200 * MB) as attackers:
        sent = attackers.run(send_bodies, scene.target, "", REPORT, SIXTY_MB, gzip=gzip, times=60, at_once=6, seconds=6)
    assert set(sent.outcomes) <= {"UNAUTHENTICATED CREDENTIAL_MISSING", "RESOURCE_EXHAUSTED"}, sent


def test_a_body_that_is_too_large_once_unpacked(scene: Scene) -> None:
    token = scene.tokens["attacker"]
    with scene.attack("60 MB bodies with a token, compressed", most_memory=200 * MB) as attackers:
        sent = attackers.run(send_bodies, scene.target, token, REPORT, SIXTY_MB, gzip=True, times=60, at_once=6, seconds=6)
    assert set(sent.outcomes) == {"RESOURCE_EXHAUSTED"}, sent


def million_constraints() -> tuple[str, bytes]:
    request = admin_pb2.CreateAgentRequest(agent="attack/constraints")
    for _ in range(MILLION):
        request.spec.cmdp.constraints.add()
    return f"{ADMIN}/CreateAgent", request.SerializeToString()


def million_transitions() -> tuple[str, bytes]:
    request = control_pb2.ReportEpisodeRequest(agent="attack/transitions", episode=1)
    for _ in range(MILLION):
        request.transitions.add()
    return REPORT, request.SerializeToString()


@pytest.mark.parametrize(
    ("make", "what"),
    [(million_constraints, "1,000,000 empty constraints"), (million_transitions, "1,000,000 empty transitions")],
)
def test_a_message_of_a_million_messages(scene: Scene, make: object, what: str) -> None:
    assert callable(make)
    method, data = make()
    token = scene.tokens["attacker"]
    with scene.attack(what, most_memory=200 * MB) as attackers:
        alone = attackers.run(send_bodies, scene.target, token, method, (data, 1), gzip=False, times=20, at_once=1, seconds=3)
        many = attackers.run(send_bodies, scene.target, token, method, (data, 1), gzip=False, times=400, at_once=4, seconds=4)
    assert set(alone.outcomes) == set(many.outcomes) == {"INVALID_ARGUMENT INVALID_ARGUMENT"}
    assert alone.slowest < 0.5


def test_long_texts(scene: Scene) -> None:
    with scene.as_("attacker") as own:
        own.create(name=OWN)
    long, longer = "x" * MB, "y" * 3 * MB
    requests = {
        "reason": (f"{ADMIN}/PauseAgent", admin_pb2.PauseAgentRequest(agent=OWN, reason=longer)),
        "created name": (f"{ADMIN}/CreateAgent", admin_pb2.CreateAgentRequest(agent=f"attack/{long}", preset="inventory")),
        "preset": (f"{ADMIN}/CreateAgent", admin_pb2.CreateAgentRequest(agent="attack/new", preset=long)),
        "request id": (f"{CONTROL}/StartEpisode", control_pb2.StartEpisodeRequest(agent=OWN, request_id=long)),
        "too long": (f"{ADMIN}/PauseAgent", admin_pb2.PauseAgentRequest(agent=OWN, reason=longer + longer)),
    }
    found = {}
    with scene.attack("names, reasons and request ids of 1 to 6 MB", most_memory=200 * MB) as attackers:
        for what, (method, message) in requests.items():
            calls = [(method, message.SerializeToString())]
            given = scene.target, scene.tokens["attacker"], calls
            sent = attackers.run(send_requests, *given, times=200, at_once=4, seconds=1.5)
            found[what] = {outcome.split()[0] for outcome in sent.outcomes}
    assert found.pop("too long") == {"RESOURCE_EXHAUSTED"}
    assert all(codes == {"INVALID_ARGUMENT"} for codes in found.values()), found
    with scene.as_("ops") as ops:
        assert {status.agent for status in ops.list().agents} == {OWN, SMALL}
        assert ops.status(OWN).version == 1


def test_long_names_of_agents_that_do_not_exist(scene: Scene) -> None:
    name = f"attack/{'x' * MB}"
    with scene.as_("attacker") as own:
        for call in (lambda: own.status(name), lambda: own.start(name), lambda: own.delete(name)):
            refusal(call, Code.INVALID_ARGUMENT, field="agent")
