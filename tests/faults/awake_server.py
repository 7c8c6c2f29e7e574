"""The service on a disk that it takes for fast, whatever else the machine does: whoever is alone is committed on the loop, by
an asynchronous write that is waited for awake. Called like `safe-psrl`."""

from collections.abc import Callable
from functools import partial
from math import inf

from safe_psrl_cli.main import main
from safe_psrl_server.store import gathering
from safe_psrl_server.store.log import LogFile


def append_awake(log: LogFile, commit: bytes, meanwhile: Callable[[], None]) -> None:
    log._append(commit, partial(log._write_awake, meanwhile) if log._polled.is_open else log._write)


if __name__ == "__main__":
    gathering.FAST_COMMIT = inf  # type: ignore[misc]
    LogFile.append_alone = append_awake  # type: ignore[method-assign]
    main()
