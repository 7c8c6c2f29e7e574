"""Faults of what is stored: bits flipped, files cut off, sectors lost, logs torn. The state is never silently another one."""

import random
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import cycle
from pathlib import Path

import grpc

from safe_psrl_proto.v1 import admin_pb2, events_pb2
from tests.faults.fault import SETTINGS, Fault
from tests.system.server_process import SERVING, START_SECONDS, ServerProcess, wait_until

DATABASE, WAL, COUNTER = "safe-psrl.db", "safe-psrl.db-wal", "commit-counter"
CANNOT_START = 2
QUARANTINED = admin_pb2.AGENT_CONDITION_QUARANTINED
COPIES = 3  # that are damaged in a round, each in its own way
Damage = Callable[[random.Random, Path], None]
States = dict[str, tuple[int, str]]  # by agent: version and digest


class Damaged(Fault):
    """Copies of what a kill or a stop leaves are damaged and served: exact, quarantined, or refused with a line."""

    title = "damaged copies: flipped bits, cut files, lost sectors, torn log, changed rows"
    short_rounds = 2

    def __init__(self, directory: Path, chosen: random.Random) -> None:
        super().__init__(directory, chosen)
        self._outcomes: Counter[str] = Counter()
        self._copies = 0
        self._damages = cycle(DAMAGES)
        self._kills = cycle([True, False])

    def strike(self) -> float:
        with self.traffic.at_rest():  # so that whatever is stored was acknowledged
            if next(self._kills):
                self.server.kill()
            else:
                assert self.server.stop() == 0, self.server.log
            struck = time.monotonic()
            copies = [self._copy() for _ in range(1 + COPIES)]
        self.server.start()
        damages = [next(self._damages) for _ in range(COPIES)]
        for damage, copy in zip(damages, copies[1:], strict=True):
            damage(self.chosen, copy.data)
        try:
            for copy in copies:
                copy.spawn()
            self._compare(copies, damages)
        finally:
            for copy in copies:
                copy.kill()
                copy.close()
                shutil.rmtree(copy.data)
        return struck

    def _compare(self, copies: list[ServerProcess], damages: list[Damage]) -> None:
        sound = states_of(copies[0])
        assert sound is not None, copies[0].log
        assert all(digest for _, digest in sound.values())
        for copy, damage in zip(copies[1:], damages, strict=True):
            found = states_of(copy)
            assert damage is not change_newest_snapshot or found == sound, f"the older snapshot was not enough: {found}"
            for outcome in outcomes(sound, found, damage.__name__):
                self._outcomes[outcome] += 1
            if found is None:
                (line,) = copy.log.splitlines()
                assert line.startswith("safe-psrl: the "), line
        self.note = ", ".join(f"{outcome} {times}" for outcome, times in sorted(self._outcomes.items()))

    def _copy(self) -> ServerProcess:
        self._copies += 1
        copy = ServerProcess(self.directory / f"copy-{self._copies}", settings=SETTINGS)
        shutil.copytree(self.server.data, copy.data)
        return copy


def states_of(server: ServerProcess) -> States | None:
    """What it serves; digest "" for what is quarantined. None if it refused to start."""

    def is_decided() -> bool:
        return server.running.poll() is not None or server.health_of("") == SERVING

    wait_until(is_decided, START_SECONDS, "it serves, or refuses to")
    if server.running.poll() is not None:
        code = server.wait()
        assert code == CANNOT_START, f"it exited with {code}: {server.log}"
        return None
    listed = server.admin.ListAgents(admin_pb2.ListAgentsRequest(), timeout=30).agents
    states: States = {}
    for status in listed:
        try:
            one = server.admin.GetAgent(admin_pb2.GetAgentRequest(agent=status.agent), timeout=30).status
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.DATA_LOSS  # noqa: PT017  # of one of many
            states[status.agent] = (0, "")
        else:
            assert status.condition != QUARANTINED
            states[status.agent] = (one.version, one.state_digest)
    return states


def outcomes(sound: States, found: States | None, done: str) -> list[str]:
    """One for each agent. Raises if one is another than it was, or is not mentioned any more."""
    if found is None:
        return ["stores refused"]
    wrong = [agent for agent, state in sound.items() if found.get(agent) not in {state, (0, "")}]
    assert not wrong, f"after {done}: {', '.join(f'{agent} is {found.get(agent)}, was {sound[agent]}' for agent in wrong)}"
    more = [agent for agent in found.keys() - sound.keys() if found[agent] != (0, "")]
    assert not more, f"after {done}: {more} were never there"
    return ["agents exact" if found[agent] == state else "agents quarantined" for agent, state in sound.items()]


# --- what is done to a copy


def flip(chosen: random.Random, directory: Path) -> None:
    """Bits, anywhere."""
    with changed(chosen, directory) as content:
        for _ in range(chosen.choice([1, 1, 8])):
            content[chosen.randrange(len(content))] ^= 1 << chosen.randrange(8)


def cut(chosen: random.Random, directory: Path) -> None:
    with changed(chosen, directory) as content:
        del content[chosen.randrange(len(content)) :]


def lose(chosen: random.Random, directory: Path) -> None:
    """A sector or a page reads as zeros."""
    with changed(chosen, directory) as content:
        size = chosen.choice([512, 4096])
        start = chosen.randrange(0, len(content), size)
        content[start : start + size] = bytes(len(content[start : start + size]))


def tear_log(chosen: random.Random, directory: Path) -> None:
    """The last bytes of the write-ahead log, or of the database if there is none, never arrived."""
    with changed(chosen, directory, (WAL if (directory / WAL).exists() else DATABASE,)) as content:
        del content[-chosen.randrange(1, 4097) :]


def change_events(_: random.Random, directory: Path) -> None:
    """Of each agent, the next state in the newest report that no snapshot includes. Only a checksum can tell."""
    included = "SELECT coalesce(max(version), 0) FROM snapshots WHERE snapshots.agent = events.agent"
    done = set[str]()

    def change(payload: bytes, agent: str) -> bytes:
        event = events_pb2.Event.FromString(payload)
        if agent in done or not event.transitions_observed.next_states:
            return payload
        done.add(agent)
        event.transitions_observed.next_states[-1] ^= 1
        return event.SerializeToString()

    _change_rows(directory, "events", f"version > ({included})", change)


def change_newest_snapshot(chosen: random.Random, directory: Path) -> None:
    """Of each agent, a bit near its end. The older one and the events after it must be enough."""
    newest = "SELECT max(version) FROM snapshots AS others WHERE others.agent = snapshots.agent"
    place = chosen.randrange(14, 18)

    def change(payload: bytes, _: str) -> bytes:
        content = bytearray(payload)
        if len(content) > place:
            content[-place] ^= 1
        return bytes(content)

    _change_rows(directory, "snapshots", f"version = ({newest})", change)


DAMAGES: tuple[Damage, ...] = (tear_log, change_events, flip, change_newest_snapshot, cut, lose)


@contextmanager
def changed(
    chosen: random.Random, directory: Path, names: Sequence[str] = (DATABASE, WAL, DATABASE, WAL, COUNTER)
) -> Iterator[bytearray]:
    """The content of one of the files that exist, to be changed."""
    path = directory / chosen.choice([name for name in names if (directory / name).exists()])
    content = bytearray(path.read_bytes())
    yield content
    path.write_bytes(content)


def _change_rows(directory: Path, table: str, where: str, change: Callable[[bytes, str], bytes]) -> None:
    """Each payload, of an agent, by `change`; the newest first."""
    with closing(sqlite3.connect(directory / DATABASE)) as database:
        query = f"SELECT payload, agent, version FROM {table} WHERE {where} ORDER BY version DESC"  # noqa: S608  # ours
        for payload, agent, version in database.execute(query).fetchall():
            key = (change(payload, agent), agent, version)
            database.execute(f"UPDATE {table} SET payload = ? WHERE (agent, version) = (?, ?)", key)  # noqa: S608
        database.commit()
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
