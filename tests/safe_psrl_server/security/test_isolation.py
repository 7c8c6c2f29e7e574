"""One caller does not freeze, fill or starve the others."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.safe_psrl_server.bench import Bench
from tests.safe_psrl_server.specs import make_spec
from tests.safe_psrl_server.wire import Code, Wire, refusal, serving

from safe_psrl.problem.constraint import Constraint
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl_proto.v1 import admin_pb2, control_pb2, model_pb2
from safe_psrl_server.agents.messages import cmdp_to_message
from safe_psrl_server.security.identities import create_token, matches
from safe_psrl_server.security.roles import Role


def unlucky_spec(draws: int = 1_000_000) -> model_pb2.AgentSpec:
    """Hardly any kernel of the posterior satisfies its satisfiable cost: every plan draws until it may not draw again."""
    size = 40
    cost = np.ones((size, 1))
    cost[0] = 0.0
    constraint = Constraint("cost", cost, cost_budget=5.0, satisfiable_cost=0.001)
    spec = CmdpSpec(num_states=size, num_actions=1, horizon=40, reward=np.zeros((size, 1)), constraints=[constraint])
    options = model_pb2.SafePsrlOptions(method="published", max_kernel_draws=draws)
    return model_pb2.AgentSpec(cmdp=cmdp_to_message(spec), options=options)


@contextmanager
def watching(target: str, streams: int) -> Iterator[list[Any]]:
    """Health watches of one address, each with its first reply or its refusal."""
    with grpc.insecure_channel(target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watches = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(streams)]
        yield watches
        for watch in watches:
            watch.cancel()


def test_watches_without_a_credential_leave_room_for_others() -> None:
    """They have a few slots of their own. Refusals carry the time to wait."""
    with serving(limits={"max_concurrent_calls": 8, "max_public_calls": 6, "max_public_calls_per_address": 4}) as wire:
        agent = wire.create()
        with watching(wire.target, 12) as watches:
            outcomes = [refused_or_open(watch) for watch in watches]
            assert sum(outcome is None for outcome in outcomes) == 4
            assert all(outcome is None or outcome > 0 for outcome in outcomes)
            wire.act(agent, 0)


def refused_or_open(watch: Any) -> float | None:
    """The seconds to wait that a refusal names; None for a watch that is open."""
    try:
        next(watch)
    except grpc.RpcError:
        return refusal(lambda: next(watch), Code.RESOURCE_EXHAUSTED, "TOO_MANY_CALLS").retry_seconds
    return None


def test_a_watch_ends() -> None:
    with serving(limits={"watch_seconds": 0.3}) as wire:
        with watching(wire.target, 1) as (watch,):
            next(watch)
            refusal(lambda: next(watch), Code.UNAVAILABLE, "WATCH_ENDED")
        agents = wire.admin.WatchAgents(admin_pb2.WatchAgentsRequest(interval_seconds=0.1))
        next(agents)
        refusal(lambda: next(agents), Code.UNAVAILABLE, "WATCH_ENDED")


def test_an_identity_has_a_share_of_the_calls(tmp_path: Path) -> None:
    file = tmp_path / "identities.toml"
    token = create_token(file, "one", [Role.READ], ["*"])
    with serving(security={"identities": file}, quotas={"concurrent_calls": 2}, token=token) as wire:
        watches = [wire.admin.WatchAgents(admin_pb2.WatchAgentsRequest()) for _ in range(2)]
        for watch in watches:
            next(watch)
        assert refusal(wire.list, Code.RESOURCE_EXHAUSTED, "TOO_MANY_CALLS").retry_seconds


def test_a_compressed_body_is_bounded_after_inflation() -> None:
    """Sixty megabytes of zeros are a few kilobytes on the wire."""
    with serving() as wire:
        bomb = control_pb2.ReportEpisodeRequest(agent="x" * 60_000_000)
        with pytest.raises(grpc.RpcError) as caught:
            wire.control.ReportEpisode(bomb, compression=grpc.Compression.Gzip, timeout=20)
        assert caught.value.code() == Code.RESOURCE_EXHAUSTED


def test_work_that_takes_too_long_is_refused_before_it_begins() -> None:
    """S = 4,000, H = 5,000 in a small message: a plan would take minutes, and so would the check of its assumption."""
    table = model_pb2.Table(shape=[4000, 1], values=[0.0] * 4000)
    constraint = model_pb2.Constraint(name="cost", cost=table, cost_budget=1.0)
    cmdp = model_pb2.CmdpSpec(num_states=4000, num_actions=1, horizon=5000, reward=table, constraints=[constraint])
    with serving() as wire:
        began = time.monotonic()
        refusal(lambda: wire.create(model_pb2.AgentSpec(cmdp=cmdp)), Code.INVALID_ARGUMENT, field="spec.horizon")
        assert time.monotonic() - began < 5.0


def test_assumption_1_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start does not repeat it: the answer is stored with the definition, and an import's own answer is not believed."""
    store = f"sqlite:{tmp_path}"
    with serving(store=store) as wire:
        wire.create(name="a")
        spec = wire.admin.GetAgent(admin_pb2.GetAgentRequest(agent="a", with_spec=True)).spec
        assert spec.HasField("always_satisfiable")

    checked = list[int]()
    monkeypatch.setattr("safe_psrl.learner.assumption_is_certain", lambda spec: not checked.append(spec.num_states))
    with serving(store=store) as wire:
        assert wire.act("a", 0).episode == 1
    assert spec.cmdp.num_states not in checked


async def test_a_plan_can_be_stopped_by_pausing_and_by_deleting() -> None:
    bench = await Bench().open()
    for name in ("a", "b"):
        await bench.administration.create(name, unlucky_spec())
    plans = [bench.start(name) for name in ("a", "b")]
    await asyncio.sleep(0.1)
    async with asyncio.timeout(10):
        await bench.administration.pause("a", "stop it")
        await bench.administration.delete("b")
    for plan in plans:
        with pytest.raises(Exception, match="was stopped; try again"):
            await plan
    await bench.close()


async def test_a_plan_ends_with_its_caller() -> None:
    """Its thread is free for the next one."""
    bench = await Bench(planning_threads=1).open()
    for name in ("a", "b"):
        await bench.administration.create(name, unlucky_spec(1_000_000 if name == "a" else 1))
    plan = bench.start("a")
    await asyncio.sleep(0.1)
    plan.cancel()
    async with asyncio.timeout(10):
        await bench.start("b")
    await bench.close()


def test_plans_of_one_identity_leave_a_thread_for_another(tmp_path: Path) -> None:
    """Two agents of one identity draw a million kernels each; the plan of another identity is made at once."""
    file = tmp_path / "identities.toml"
    tokens = [create_token(file, name, [Role.ADMIN], [f"{name}/*"]) for name in ("busy", "other")]
    with (
        serving(security={"identities": file}, limits={"planning_threads": 2}, token=tokens[0]) as busy,
        Wire(busy.target, token=tokens[1]) as other,
        ThreadPoolExecutor(2) as pool,
    ):
        for number in range(2):
            busy.create(unlucky_spec(), name=f"busy/{number}")
        other.create(unlucky_spec(5_000), name="other/1")
        plans = [pool.submit(refusal, lambda name=f"busy/{n}": busy.start(name), reason="PLAN_STOPPED") for n in range(2)]
        began = time.monotonic()
        other.start("other/1")
        assert time.monotonic() - began < 20
        assert not any(plan.done() for plan in plans)
        for number in range(2):
            busy.pause(f"busy/{number}")
        for plan in plans:
            plan.result(30)


def test_creations_at_once_keep_to_the_quota(tmp_path: Path) -> None:
    file = tmp_path / "identities.toml"
    token = create_token(file, "one", [Role.ADMIN], ["*"])
    with (
        serving(security={"identities": file}, quotas={"max_agents": 5}, token=token) as wire,
        ThreadPoolExecutor(30) as pool,
    ):

        def create(number: int) -> bool:
            try:
                wire.create(name=f"agent-{number}")
            except grpc.RpcError as error:
                return bool(error.code() != Code.RESOURCE_EXHAUSTED)
            return True

        assert sum(pool.map(create, range(60))) == 5
        assert len(wire.list().agents) == 5
        wire.delete(wire.list().agents[0].agent)
        wire.create(name="one-more")


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda wire, agent: wire.pause(agent, "x" * 501), "reason"),
        (lambda wire, agent: wire.resume(agent, "x" * 501), "reason"),
        (lambda wire, agent: wire.start(agent, request_id="x" * 129), "request_id"),
        (lambda wire, _: wire.create(named("x" * 129)), "spec.constraints[0].name"),
        (lambda wire, _: wire.create(name="x" * 129), "agent"),
    ],
    ids=["pause", "resume", "request-id", "constraint", "agent"],
)
def test_texts_have_limits(wire: Wire, agent: str, call: Any, field: str) -> None:
    refusal(lambda: call(wire, agent), Code.INVALID_ARGUMENT, field=field)
    wire.pause(agent, "x" * 500)
    wire.resume(agent, "x" * 500)
    assert wire.list().agents


def named(name: str) -> model_pb2.AgentSpec:
    spec = make_spec()
    spec.cmdp.constraints[0].name = name
    return spec


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("*", "", True),
        ("*", "a/b", True),
        ("cell/*", "cell/", True),
        ("cell/*", "cell", False),
        ("*/a", "x/y/a", True),
        ("a*b*c", "a-b-b-c", True),
        ("a*b*c", "a-c-b", False),
        ("a*a", "a", False),
        ("a?c", "abc", False),
        ("[ab]", "a", False),
        ("[ab]", "[ab]", True),
        ("**", "anything", True),
    ],
)
def test_patterns_know_the_star_only(pattern: str, text: str, expected: bool) -> None:
    assert matches(pattern, text) == expected


def test_tables_with_too_many_axes_and_huge_coefficients_get_a_precise_error(wire: Wire) -> None:
    spec = make_spec()
    spec.cmdp.reward.shape[:] = [1] * 65 + [12]
    refusal(lambda: wire.create(spec), Code.INVALID_ARGUMENT, field="spec.shape of reward")
    spec = make_spec()
    spec.options.method, spec.options.pessimism_coefficient = "published", 1e308
    refusal(lambda: wire.create(spec), Code.INVALID_ARGUMENT, field="spec.options.pessimism_coefficient")


async def test_watchers_share_the_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first message has what is stored; then statuses are computed once for all watchers, of agents that have changed."""
    from safe_psrl_server.rpc import listing  # noqa: PLC0415  # patched below

    computed = list[str]()
    status_of = listing.status_of
    monkeypatch.setattr(listing, "status_of", lambda agent: (computed.append(agent.name), status_of(agent))[1])
    bench = await Bench().open()
    await bench.create(*"abc")
    feed = listing.StatusFeed(bench.agents)
    watchers = [feed.watch(0.1, set()) for _ in range(20)]
    for watcher in watchers:
        assert len((await anext(watcher)).agents) == 3
    assert not computed
    await bench.start("b")
    for watcher in watchers:
        assert [status.agent for status in (await anext(watcher)).agents] == ["b"]
    assert computed == ["b"]
    for watcher in watchers:
        await watcher.aclose()
    await bench.close()


async def test_an_episode_times_out_after_the_clock_was_set_back() -> None:
    """A time in the future is no activity."""
    bench = await Bench(episode_timeout_seconds=60.0).open()
    await bench.begin()
    bench.clock.pass_seconds(-86_400.0)
    assert (await bench.start()).episode == 2
    await bench.close()
