"""Base stations under the agents of a service, one per cell, class or device, all stepping together; and under fixed rules."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from safe_psrl_client import AsyncClient, Transition
from safe_psrl_client.aio.stream import AsyncRetryingStream
from safe_psrl_client.requests import EpisodeCursor, StreamCall
from safe_psrl_proto.v1 import control_pb2
from safe_psrl_testbed.base_stations.world import CLASSES, BaseStations, WorldSettings
from safe_psrl_testbed.media import BUDGET, FAST, LEARNED, RULES, SLOW, SPEC, MediaSimulation
from safe_psrl_testbed.media_players import FixedRule, MediaPlayers, PlaybackBuffers, refuse_shadow

Grouping = Literal["cell", "class", "device"]
STREAMS: Final = 8  # that the agents are spread over


class BaseStationsSimulation(MediaSimulation):
    """Agents `name`-cell-1 …, `name`-camera …, or `name`-device-1 …, according to `agents_per`.

    A device's episode is played by the agent of its cell, class or device at the start; a handover during the episode does
    not change the agent.
    """

    def __init__(
        self, settings: WorldSettings, target: str, name: str, episodes: int, *, agents_per: Grouping = "cell", **options: Any
    ) -> None:
        """options: those of `MediaSimulation`."""
        names, sharing = _names(name, agents_per, settings), 1 if agents_per == "device" else settings.devices
        super().__init__(
            "base-stations", names, settings.devices, settings.seed, target, episodes, open_episodes=sharing, **options
        )
        self.world = BaseStations(settings)
        self.agents_per = agents_per
        self.groups: list[NDArray[np.int64]] = []  # of each episode, [D]: the index of the agent that played the device
        self._buffers = PlaybackBuffers(settings.devices, settings.seed)
        self._settings = settings
        self._begun: set[int] = set()  # agents that have begun an episode in this run

    def run(self, on_episode: Callable[[], object] = lambda: None) -> None:
        """Play. Ctrl-C stops it at once; the next run abandons the open episodes."""
        try:
            asyncio.run(self._play(on_episode))
        except KeyboardInterrupt:
            self._interrupted = True

    async def _play(self, on_episode: Callable[[], object]) -> None:
        async with AsyncClient(self._target, **self._connection) as client:
            streams = [AsyncRetryingStream(client) for _ in range(min(STREAMS, len(self.names)))]
            rules = [rule_players(self._settings) for _ in RULES]
            try:
                for _ in range(self.episodes):
                    began = time.monotonic()
                    await self._episode(streams)
                    self._seconds += time.monotonic() - began
                    for players, (name, rule) in zip(rules, RULES.items(), strict=True):
                        players.play(FixedRule(rule), self.histories[name], self.histories[name].episodes + 1)
                    on_episode()
            finally:
                await asyncio.gather(*(stream.close() for stream in streams))

    async def _episode(self, streams: Sequence[AsyncRetryingStream]) -> None:
        groups = self._groups()
        states = [self._buffers.empty()]
        cursors = await self._begin(streams, groups)
        actions = [_actions(cursors)]
        for _ in range(SPEC.horizon):
            states.append(self._buffers.advance(self.world.advance(actions[-1] == FAST)))
            seen = [
                Transition(*step) for step in zip(states[-2].tolist(), actions[-1].tolist(), states[-1].tolist(), strict=True)
            ]
            reports = [cursor.step_request(one) for cursor, one in zip(cursors, seen, strict=True)]
            replies = await _exchange(streams, groups, reports)
            for cursor, one, reply in zip(cursors, seen, replies, strict=True):
                cursor.advance(one, reply.step)
            actions.append(_actions(cursors))
        self.histories[LEARNED].append(states, actions[:-1])
        self.groups.append(groups)

    async def _begin(self, streams: Sequence[AsyncRetryingStream], groups: NDArray[np.int64]) -> list[EpisodeCursor]:
        """An episode for every device. An agent's first episode abandons those left open, so it begins before the others."""
        agents, devices = np.unique(groups, return_index=True)
        firsts = [device for agent, device in zip(agents.tolist(), devices.tolist(), strict=True) if agent not in self._begun]
        self._begun.update(agents.tolist())
        cursors = [
            EpisodeCursor(self.names[group], 0, abandon_open=device in firsts) for device, group in enumerate(groups.tolist())
        ]
        others = [device for device in range(len(groups)) if device not in firsts]
        for batch in filter(None, (firsts, others)):
            replies = await _exchange(streams, groups[batch], [cursors[device].start for device in batch])
            for device, reply in zip(batch, replies, strict=True):
                cursors[device].started(reply.start_episode)
        refuse_shadow(cursor.agent for cursor in cursors if cursor.advisory)
        return cursors

    def _groups(self) -> NDArray[np.int64]:
        """[D]: the index in `names` of the agent that begins an episode for the device now."""
        if self.agents_per == "device":
            return np.arange(self._settings.devices)
        return (self.world.cells if self.agents_per == "cell" else self.world.classes).copy()

    def agents_constraint_regret(self) -> NDArray[np.float64]:
        """[E, agents]: the cost above the budget of all episodes of an agent, summed up to each round of episodes."""
        rounds = zip(self.groups, self.histories[LEARNED].costs, strict=True)
        excess = [np.bincount(groups, costs - BUDGET, len(self.names)) for groups, costs in rounds]
        return np.cumsum(np.reshape(excess, (-1, len(self.names))), axis=0)

    def summary(self) -> dict[str, Any]:
        learned, settings = self.histories[LEARNED], self._settings
        steps = learned.episodes * SPEC.horizon * settings.devices
        return super().summary() | {
            "cells": settings.cells,
            "devices": settings.devices,
            "agents": len(self.names),
            "agents_per": self.agents_per,
            "steps": steps,
            "steps_per_second": steps / self._seconds if self._seconds else 0.0,
            "handovers": self.world.handovers,
            "classes": {
                name: {
                    "devices": int((self.world.classes == i).sum()),
                    "stalls": float(learned.stalls[:, self.world.classes == i].mean()),
                    "cost": float(learned.costs[:, self.world.classes == i].mean()),
                }
                for i, name in enumerate(CLASSES)
                if learned.episodes and (self.world.classes == i).any()
            },
        }


def rule_players(settings: WorldSettings) -> MediaPlayers:
    """The same world, for a fixed rule."""
    return MediaPlayers(BaseStations(settings), settings.devices, settings.seed)


def _names(name: str, agents_per: Grouping, settings: WorldSettings) -> list[str]:
    if agents_per == "class":
        return [f"{name}-{kind}" for kind in CLASSES]
    return [f"{name}-{agents_per}-{i + 1}" for i in range(settings.cells if agents_per == "cell" else settings.devices)]


def _actions(cursors: Sequence[EpisodeCursor]) -> NDArray[np.int64]:
    return np.array([SLOW if cursor.next_action is None else cursor.next_action for cursor in cursors], np.int64)


async def _exchange(
    streams: Sequence[AsyncRetryingStream], groups: NDArray[np.int64], calls: Sequence[StreamCall]
) -> list[control_pb2.StepStreamResponse]:
    """The replies to all calls. An agent's calls share one stream, in order; the streams run concurrently."""
    spread = [[i for i, group in enumerate(groups.tolist()) if group % len(streams) == k] for k in range(len(streams))]
    try:
        async with asyncio.TaskGroup() as tasks:
            exchanges = [
                tasks.create_task(stream.exchange_all([calls[i] for i in mine]))
                for stream, mine in zip(streams, spread, strict=True)
            ]
    except ExceptionGroup as errors:  # the other streams were cancelled
        raise errors.exceptions[0] from None
    answers = [exchange.result() for exchange in exchanges]
    answered = {i: reply for mine, got in zip(spread, answers, strict=True) for i, reply in zip(mine, got, strict=True)}
    return [answered[i] for i in range(len(calls))]
