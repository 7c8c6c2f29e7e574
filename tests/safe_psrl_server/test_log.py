"""The file of the log: whole blocks, past the cache where the system allows that, and waited for in the better way."""

import errno
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safe_psrl_server.store import log as log_module
from safe_psrl_server.store import polled_write
from safe_psrl_server.store.interface import nothing
from safe_psrl_server.store.log import BLOCK, DIRECT, LOG, LOOK_AGAIN, MEMORY, ROOM, LogFile, Record, following, record

OVERHEAD = len(record(1, b"", b""))
EDGES = [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, MEMORY - 1, MEMORY + 1]
SIZES = st.one_of(st.integers(0, 300), st.sampled_from([size - OVERHEAD for size in EDGES[1:]]))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogFile]:
    log = LogFile(tmp_path / LOG)
    log.clear()
    yield log
    log.close()


def is_direct(log: LogFile) -> bool:
    import fcntl  # noqa: PLC0415  # of the systems that have it

    assert log._file is not None
    return bool(DIRECT and fcntl.fcntl(log._file, fcntl.F_GETFL) & DIRECT)


@given(writes=st.lists(st.tuples(SIZES, st.booleans(), st.integers(0, 9).map(lambda number: number == 0)), max_size=25))
def test_what_was_appended_since_the_log_began_anew_is_found(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[int, bool, bool]]
) -> None:
    """By whoever reads it after each write, with any sizes, waited for in any way."""
    log = LogFile(tmp_path_factory.mktemp("log") / LOG)
    log.clear()
    filed, expected = 0, list[Record]()
    for number, (size, alone, restart) in enumerate(writes, 1):
        if restart:
            log.restart()
            filed, expected = number - 1, []
        payload = bytes([number]) * size
        commit = record(number, b"e", payload)
        if alone:
            log.append_alone(commit, nothing)
        else:
            log.append(commit)
        expected.append(Record(number, b"e", payload, True))
        assert following(log.read(), filed, number) == expected
    log.close()


def test_a_file_system_without_direct_writes_serves_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it says so when the file is opened, or when it is written to."""
    if not DIRECT:
        pytest.skip("this system has none")
    really_open, really_write = os.open, os.pwrite

    def refuse_open(path: Any, flags: int, mode: int = 0o777) -> int:
        if flags & DIRECT:
            raise OSError(errno.EINVAL, "no")
        return really_open(path, flags, mode)

    def refuse_write(file: int, data: Any, place: int) -> int:
        import fcntl  # noqa: PLC0415

        if fcntl.fcntl(file, fcntl.F_GETFL) & DIRECT:
            raise OSError(errno.EINVAL, "no")
        return really_write(file, data, place)

    refusals: list[tuple[str, Callable[..., int]]] = [("open", refuse_open), ("pwrite", refuse_write)]
    for name, refuse in refusals:
        with monkeypatch.context() as patched:
            patched.setattr(os, name, refuse)
            log = LogFile(tmp_path / f"{name}.log")
            log.clear()
            assert not is_direct(log)
            assert not log._polled.is_open
            assert len(log.read()) == ROOM
            log.append_alone(record(1, b"", b"kept"), nothing)
        assert following(log.read(), 0, 1) == [Record(1, b"", b"kept", True)]
        log.close()


def test_other_errors_of_opening_are_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LogFile(tmp_path / "no" / LOG).clear()


def test_a_disk_without_room_for_the_log_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", lambda _file, _data, _place: BLOCK)
    with pytest.raises(OSError, match="No space left"):
        LogFile(tmp_path / LOG).clear()


def ways(log: LogFile, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """In which ways writes are waited for, from now on; the file is not written to."""
    taken = list[str]()
    monkeypatch.setattr(log, "_write", lambda _size, _place: taken.append("asleep"))
    monkeypatch.setattr(log, "_write_awake", lambda _meanwhile, _size, _place: taken.append("awake"))
    return taken


@pytest.mark.parametrize(("asleep", "awake", "better"), [(0.3, 0.2, "awake"), (0.3, 1.5, "asleep")])
def test_a_write_alone_is_waited_for_in_the_way_that_usually_takes_less(
    log: LogFile, monkeypatch: pytest.MonkeyPatch, asleep: float, awake: float, better: str
) -> None:
    """Both are tried at first, and the other one now and then."""
    taken, clock = ways(log, monkeypatch), [0.0]

    def passed() -> float:
        clock[0] += {"asleep": asleep, "awake": awake}[taken[-1]] if len(taken) > written[0] else 0.0
        return clock[0]

    written = [0]
    monkeypatch.setattr(log_module.time, "perf_counter", passed)
    monkeypatch.setattr(polled_write.PolledWriter, "is_open", True)
    for _ in range(2 * LOOK_AGAIN):
        written[0] = len(taken)
        log.append_alone(b"x", nothing)
    assert taken[:2] == ["asleep", "awake"]
    others = [number for number, way in enumerate(taken, 1) if way != better]
    assert others == [1 if better == "awake" else 2, LOOK_AGAIN, 2 * LOOK_AGAIN]


def test_where_nobody_can_wait_awake_nobody_does(log: LogFile, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = ways(log, monkeypatch)
    monkeypatch.setattr(polled_write.PolledWriter, "is_open", False)
    for _ in range(2 * LOOK_AGAIN):
        log.append_alone(b"x", nothing)
    assert set(taken) == {"asleep"}


def awake(log: LogFile, commit: bytes, meanwhile: Callable[[], None] = nothing) -> None:
    if not log._polled.is_open:
        pytest.skip("this system, or the file system of the tests, has no asynchronous writes")
    log._append(commit, partial(log._write_awake, meanwhile))


def test_a_write_that_is_waited_for_awake_is_in_the_file(log: LogFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and also if it takes so long that it is waited for asleep in the end. Nothing else writes it."""
    monkeypatch.setattr(os, "pwrite", lambda *_arguments: pytest.fail("written by somebody else"))
    awake(log, record(1, b"", b"one"))
    monkeypatch.setattr(polled_write, "MOST_POLLING", -1.0)
    awake(log, record(2, b"", b"two"))
    assert following(log.read(), 0, 2) == [Record(1, b"", b"one", True), Record(2, b"", b"two", True)]


def test_meanwhile_is_between_the_beginning_and_the_end_of_such_a_write(log: LogFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is waited for even if it fails: the memory belongs to the disk until then."""
    order, is_done = list[str](), log._polled._is_done

    def look(at_least: int, wait: object) -> bool:
        order.append("asked")
        return is_done(at_least, wait)

    def fail() -> None:
        order.append("meanwhile")
        raise ValueError("failed meanwhile")

    monkeypatch.setattr(log._polled, "_is_done", look)
    awake(log, record(1, b"", b"one"), lambda: order.append("meanwhile"))
    assert (order[0], set(order[1:])) == ("meanwhile", {"asked"})
    order.clear()
    with pytest.raises(ValueError, match="failed meanwhile"):
        awake(log, record(2, b"", b"two"), fail)
    assert (order[0], set(order[1:])) == ("meanwhile", {"asked"})


def test_nothing_is_done_meanwhile_by_whoever_sleeps(log: LogFile) -> None:
    log._usual_seconds = [1e-9, 1.0]
    log.append_alone(record(1, b"", b"one"), lambda: pytest.fail("done by a sleeper"))
    assert following(log.read(), 0, 1) == [Record(1, b"", b"one", True)]


def test_an_error_of_such_a_write_is_raised(log: LogFile) -> None:
    """As told when it is handed over, and as told by the disk: a file that cannot be written, and a limit on its size."""
    assert log._file is not None
    if not log._polled.is_open:
        pytest.skip("this system, or the file system of the tests, has no asynchronous writes")
    read_only = os.open(log._path, os.O_RDONLY | DIRECT)
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            log._polled.write(read_only, log._address, BLOCK, 0, nothing)
    finally:
        os.close(read_only)
    with pytest.raises(OSError, match="Bad address"):
        log._polled.write(log._file, 4096, BLOCK, 0, nothing)


def test_a_file_that_takes_no_such_writes_is_written_as_always(log: LogFile) -> None:
    if not log._polled.is_open:
        pytest.skip("this system, or the file system of the tests, has no asynchronous writes")
    with Path("/dev/full").open("wb", buffering=0) as full:
        assert log._polled.write(full.fileno(), log._address, BLOCK, 0, nothing) == 0


def test_a_context_serves_the_next_writer_unless_a_write_of_it_may_be_under_way(
    log: LogFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose outcome the next one would take for its own."""
    awake(log, record(1, b"", b"one"))
    monkeypatch.setattr(polled_write, "_spare", [])
    first = log._polled._context
    log.close()
    second = LogFile(tmp_path / "second.log")
    second.clear()
    assert second._polled._context is first

    def fail(_at_least: int, _wait: object) -> bool:
        raise OSError(errno.EIO, "nobody knows")

    monkeypatch.setattr(second._polled, "_is_done", fail)
    with pytest.raises(OSError, match="nobody knows"):
        awake(second, record(1, b"", b"two"))
    second.close()
    assert polled_write._spare == []
