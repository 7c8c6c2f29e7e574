"""Bit flips, cuts and lost sectors all over a small database: the exact state, or a refusal that says so. Never anything else.

An agent is exact if everything that is kept of it is as it was, open episodes included. A whole store that refuses to open is
an answer too. What must never be: another state, a blank agent, or an agent that nobody mentions any more.
"""

import asyncio
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.service import AgentService
from safe_psrl_server.agents.snapshot import snapshot_of
from safe_psrl_server.config import Limits, SnapshotPolicy
from safe_psrl_server.store import StoreError
from safe_psrl_server.store.sqlite.directory import COUNTER_FILE
from safe_psrl_server.store.sqlite.store import DATABASE_FILE, SqliteStore
from tests.safe_psrl_server.bench import Bench
from tests.safe_psrl_server.specs import transition
from tests.safe_psrl_server.store.appending import execute

WAL = f"{DATABASE_FILE}-wal"
Damage = Callable[[bytearray], None]


class Image(NamedTuple):
    """The files of a store, and what they must give."""

    files: dict[str, bytes]
    states: dict[str, bytes]  # by agent; deleted ones are not among them


def state_of(record: AgentRecord) -> bytes:
    return snapshot_of(record).SerializeToString(deterministic=True)


async def play(bench: Bench, name: str, episodes: int, steps: int) -> None:
    """Whole episodes, and of the last one only `steps`."""
    for k in range(episodes):
        started = await bench.start(name)
        for step in range(3 if k < episodes - 1 else steps):
            await bench.report(transition(), name, episode=started.episode, step=step)


async def fill(bench: Bench) -> dict[str, bytes]:
    """Agents with two snapshots, with one, with none, and one that was deleted; a name that looks like a number."""
    for name in ("alpha", "7", "beta", "gone", "omega"):
        await bench.create(name)
        await play(bench, name, 2, 2)
    await bench.snapshot("alpha")
    for name in ("alpha", "beta"):
        await bench.end(2, name)
        await play(bench, name, 2, 1)
        await bench.snapshot(name)
    await bench.administration.delete("gone")
    for name in ("7", "omega"):  # after the last snapshot
        await bench.end(2, name)
        await play(bench, name, 2, 1)
    await bench.administration.pause("omega", "night")
    return states_in(bench)


def states_in(bench: Bench) -> dict[str, bytes]:
    return {name: state_of(bench.record(name)) for name in ("alpha", "7", "beta", "omega")}


def files_of(directory: Path) -> dict[str, bytes]:
    names = (DATABASE_FILE, WAL, COUNTER_FILE)
    return {name: (directory / name).read_bytes() for name in names if (directory / name).exists()}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Image]:
    """A database after a clean stop; one after a crash, all of it in its write-ahead log; and one with half of it there."""

    async def build() -> dict[str, Image]:
        directory = tmp_path_factory.mktemp("image") / "data"
        bench = await Bench(f"sqlite:{directory}").open()
        crashed = Image(states=await fill(bench), files=files_of(directory))
        assert len(crashed.files[WAL]) > 20_000
        execute(directory, "PRAGMA wal_checkpoint(TRUNCATE)")
        for name in ("7", "alpha"):
            await bench.end(bench.record(name).episode, name)
            await play(bench, name, 3, 2)
            await bench.snapshot(name)
        halved = Image(states=states_in(bench), files=files_of(directory))
        await bench.close()
        clean = Image(states=halved.states, files=files_of(directory))
        assert WAL not in clean.files
        return {"clean": clean, "crashed": crashed, "halved": halved}

    return asyncio.run(build())


async def outcomes(directory: Path, image: Image) -> list[str]:
    """What came of the store in `directory`, agent by agent. Fails for all that must not be."""
    store = SqliteStore(directory)
    agents = AgentService(store, Limits(), SnapshotPolicy())
    refusal: StoreError | None = None
    try:
        await store.open()
        for name in await store.heads():
            await agents.registry.load(name, may_create=True)
    except StoreError as error:
        refusal = error
    finally:
        await store.close()
    if refusal is not None:
        assert re.fullmatch(r"the (store|database|data directory|commit counter) .+", str(refusal)), str(refusal)
        return ["refused"]
    found = {agent.name: agent for agent in agents.agents()}
    told = []
    for name, state in image.states.items():
        assert name in found, f"{name} is not mentioned any more"
        record = found[name].record
        if record is None:
            told.append("quarantined")
        else:
            assert state_of(record) == state, f"{name} is not what it was"
            told.append("exact")
    for name in found.keys() - image.states.keys():
        assert found[name].record is None, f"{name} was never there, or was deleted"
    return told


def survey(directory: Path, image: Image, file: str, damages: Iterable[tuple[str, Damage]]) -> Counter[str]:
    """Every damage on a fresh copy; how often each outcome came."""

    async def run() -> Counter[str]:
        counts: Counter[str] = Counter()
        for i, (label, damage) in enumerate(damages):
            place = directory / str(i)
            place.mkdir()
            for name, content in image.files.items():
                changed = bytearray(content)
                if name == file:
                    damage(changed)
                (place / name).write_bytes(changed)
            try:
                counts.update(await outcomes(place, image))
            except BaseException as error:
                error.add_note(f"{file}: {label}")
                raise
            shutil.rmtree(place)
        return counts

    return asyncio.run(run())


def flip(position: int, bit: int) -> tuple[str, Damage]:
    def damage(content: bytearray) -> None:
        content[position] ^= 1 << bit

    return f"bit {bit} of byte {position} flipped", damage


def cut(length: int) -> tuple[str, Damage]:
    def damage(content: bytearray) -> None:
        del content[length:]

    return f"cut to {length} bytes", damage


def zero(start: int, length: int) -> tuple[str, Damage]:
    def damage(content: bytearray) -> None:
        content[start : start + length] = bytes(len(content[start : start + length]))

    return f"{length} bytes from {start} lost", damage


def flips(size: int, stride: int, offset: int = 0) -> Iterator[tuple[str, Damage]]:
    """Every `stride`-th byte, another bit each time."""
    return (flip(position, (position // stride) % 8) for position in range(offset, size, stride))


@pytest.mark.parametrize("kind", ["clean", "crashed", "halved"])
def test_undamaged_images_give_the_exact_state(tmp_path: Path, images: dict[str, Image], kind: str) -> None:
    """The images are good, so whatever the other tests find comes from the damage."""
    assert survey(tmp_path, images[kind], "", [("untouched", lambda _: None)]) == {"exact": 4}


THOROUGH = [pytest.param(0, quarter / 4, 500, marks=pytest.mark.slow) for quarter in range(4)]  # a thousand positions each


@pytest.mark.parametrize(("stride", "offset", "exact"), [(331, 0.0, 100), (331, 0.3, 100), *THOROUGH])
def test_flipped_bits_of_the_database(tmp_path: Path, images: dict[str, Image], stride: int, offset: float, exact: int) -> None:
    """Anywhere in the file: header, schema, trees, events, snapshots, unused space. The offset is in strides."""
    image = images["clean"]
    size = len(image.files[DATABASE_FILE])
    stride = stride or size // 1000 | 1
    counts = survey(tmp_path, image, DATABASE_FILE, flips(size, stride, int(offset * stride)))
    assert counts["exact"] > exact
    assert counts["quarantined"] + counts["refused"] > 0


def test_flipped_bits_of_the_header_and_the_schema(tmp_path: Path, images: dict[str, Image]) -> None:
    """The first page decides how all others are read: the header and the tail, where the tables are declared."""
    image = images["clean"]
    used = image.files[DATABASE_FILE][:4096].index(b"table", 108) - 20
    damages = [*flips(108, 3), *flips(4096, 5, used)]
    counts = survey(tmp_path, image, DATABASE_FILE, damages)
    assert counts["refused"] > 20


def test_a_database_that_was_cut_off(tmp_path: Path, images: dict[str, Image]) -> None:
    image = images["clean"]
    size = len(image.files[DATABASE_FILE])
    lengths = sorted({0, 1, 15, 16, 99, 100, 512, size - 1, *range(0, size, 1024)})
    counts = survey(tmp_path, image, DATABASE_FILE, [cut(length) for length in lengths])
    assert counts["quarantined"]
    assert counts["refused"] > 10


def test_lost_sectors_of_the_database(tmp_path: Path, images: dict[str, Image]) -> None:
    image = images["clean"]
    counts = survey(
        tmp_path, image, DATABASE_FILE, [zero(start, 512) for start in range(0, len(image.files[DATABASE_FILE]), 512)]
    )
    assert counts["quarantined"] > 5
    assert counts["exact"] > 5


@pytest.mark.parametrize(
    ("kind", "positions", "refused"),
    [("crashed", 110, 50), ("halved", 110, 50), pytest.param("crashed", 1000, 500, marks=pytest.mark.slow)],
)
def test_flipped_bits_of_the_log(tmp_path: Path, images: dict[str, Image], kind: str, positions: int, refused: int) -> None:
    """SQLite drops a log from its first broken frame on; commits that were acknowledged are then missed, and counted."""
    image = images[kind]
    size = len(image.files[WAL])
    counts = survey(tmp_path, image, WAL, [*flips(32, 3), *flips(size, size // positions | 1, 32)])
    assert counts["refused"] > refused


@pytest.mark.parametrize("kind", ["crashed", "halved"])
def test_a_log_that_was_cut_off(tmp_path: Path, images: dict[str, Image], kind: str) -> None:
    """At any length below the whole one something acknowledged is missing: the store does not open without it."""
    image = images[kind]
    size = len(image.files[WAL])
    lengths = sorted({0, 1, 31, 32, 33, 4151, 4152, size - 1, *range(0, size, size // 60)})
    counts = survey(tmp_path, image, WAL, [cut(length) for length in lengths if length < size])
    assert set(counts) == {"refused"}


@pytest.mark.parametrize("kind", ["crashed", "halved"])
@pytest.mark.parametrize("damage", [flip(3, 0)[1], flip(40, 7)[1], cut(32)[1], cut(20_000)[1], cut(0)[1]])
async def test_a_refused_log_is_left_as_it_is(tmp_path: Path, images: dict[str, Image], kind: str, damage: Damage) -> None:
    """Whoever can still read it must find it: refusing to go on changes neither the database nor its log."""
    files = {name: bytearray(content) for name, content in images[kind].files.items()}
    damage(files[WAL])
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    for _ in range(2):
        with pytest.raises(StoreError, match="behind what was acknowledged"):
            await SqliteStore(tmp_path).open()
        assert {name: (tmp_path / name).read_bytes() for name in files} == files


@pytest.mark.parametrize("kind", ["clean", "crashed"])
def test_a_damaged_count_of_commits(tmp_path: Path, images: dict[str, Image], kind: str) -> None:
    """Any byte of it, any length: it can only ask for too much, or for nothing."""
    image = images[kind]
    size = len(image.files[COUNTER_FILE])
    damages = [*(flip(position, bit) for position in range(size) for bit in (0, 3, 6)), *(cut(n) for n in range(0, size, 4))]
    counts = survey(tmp_path, image, COUNTER_FILE, damages)
    assert set(counts) <= {"exact", "refused"}
    assert counts["exact"]


def test_flipped_bits_under_the_log(tmp_path: Path, images: dict[str, Image]) -> None:
    """The main file while its log is live."""
    image = images["halved"]
    counts = survey(tmp_path, image, DATABASE_FILE, flips(len(image.files[DATABASE_FILE]), 997))
    assert counts["exact"] > 20
