"""Running algorithms over seeds in parallel processes or on a Dask cluster; a run that is stopped early keeps its results."""

import multiprocessing
import queue
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from safe_psrl.errors import SpecError
from safe_psrl.planning.optimum import exact_optimum
from safe_psrl.warm_up import warm_up_simulation
from safe_psrl_experiments.algorithms import algorithm_named
from safe_psrl_experiments.checkpoints import Checkpoint
from safe_psrl_experiments.results import RunRecord, recorded_episodes, row_of
from safe_psrl_testbed import changing_scenario

SECONDS_PER_CHECKPOINT = 30.0
CONNECT_SECONDS = 10
SECONDS_PER_PIECE = 0.1  # how often a run reports and looks whether it should stop

Report = Callable[[int], None]  # that many more episodes are done


@dataclass(frozen=True)
class Job:
    """One algorithm with one seed. Plain words, so that any process can make the rest of it."""

    environment: str
    algorithm: str
    seed: int
    episodes: int
    parameters: dict[str, Any] = field(default_factory=dict)
    then: tuple[str, ...] = ()  # as in `changing_scenario`
    walk: str | None = None


def run_job(job: Job, report: Report, should_stop: Callable[[], bool], checkpoints: Path | None = None) -> RunRecord:
    """Run to the end, or to the first moment at which `should_stop`; what was done until then is recorded.

    With a directory for checkpoints, it continues from those that a previous run left there, and keeps its own there.
    """
    changing = changing_scenario(job.environment, job.then, job.walk)
    scenario, changes = changing.first, changing.changes_for(job.seed, job.episodes)
    transitions = scenario.transitions_for(job.seed)
    optimum = exact_optimum(scenario.spec, transitions)
    start = algorithm_named(job.algorithm).start
    start(scenario.spec, transitions, job.parameters, job.seed, job.episodes).advance(1)  # loads its kernels: that is not timed
    run = start(scenario.spec, transitions, job.parameters, job.seed, job.episodes)
    checkpoint = Checkpoint(checkpoints, job, scenario.spec, [transitions, *changes.values()])
    done = checkpoint.resume(run)
    report(run.episode)
    saved, piece = time.monotonic(), 1
    recorded = set(recorded_episodes(job.episodes, [after for after, _ in changing.then]))
    if past := [after for after in changes if after < run.episode]:
        run.move_to(changes[past[-1]])
    for stop_at in [episode for episode in sorted(recorded | changes.keys()) if episode >= run.episode]:
        while run.episode < stop_at and not should_stop():
            size = min(piece, stop_at - run.episode)
            began = time.perf_counter()
            run.advance(size)
            elapsed = time.perf_counter() - began
            done.seconds += elapsed
            if size == piece:
                piece = max(1, min(2 * piece, int(size * SECONDS_PER_PIECE / max(elapsed, 1e-9))))
            report(size)
            if time.monotonic() - saved > SECONDS_PER_CHECKPOINT:
                checkpoint.save(run, done)
                saved = time.monotonic()
        if run.episode < stop_at:
            break
        if stop_at in recorded and (not done.rows or run.episode > done.rows[-1]["episode"]):
            done.rows.append(row_of(scenario.spec, run))
        if stop_at in changes:
            run.move_to(changes[stop_at])
    checkpoint.save(run, done)
    rows = done.rows
    if run.episode and (not rows or run.episode > rows[-1]["episode"]):
        rows = [*rows, row_of(scenario.spec, run)]  # where it was interrupted: not kept in the checkpoint
    finished = run.episode == job.episodes
    return RunRecord(job.algorithm, job.seed, rows, done.seconds, optimum.reward, optimum.costs.tolist(), finished)


def run_jobs(jobs: list[Job], processes: int, report: Report, checkpoints: Path | None = None) -> list[RunRecord]:
    """The records of `jobs`, in their order, from that many processes. Ctrl-C ends all runs early and keeps their records."""
    context = multiprocessing.get_context("spawn")
    stop, reports = context.Event(), context.Queue()
    with ProcessPoolExecutor(
        min(processes, len(jobs)), mp_context=context, initializer=_prepare, initargs=(stop, reports, checkpoints)
    ) as pool:
        with _interrupt_stops(stop):
            with _blocked_interrupt():
                futures = [pool.submit(_run_in_process, job) for job in jobs]
            _follow(futures, reports, report)
        return [record for future in futures if (record := future.result()) is not None]


def run_on_cluster(jobs: list[Job], scheduler: str, report: Report) -> list[RunRecord]:
    """The records of `jobs`, in their order. Progress comes with each finished run; Ctrl-C keeps those that are finished.

    The workers need this package, and a specification file under the same path.
    """
    try:
        distributed: Any = import_module("distributed")  # untyped
    except ImportError:
        raise SpecError("scheduler", scheduler, "needs Dask: pip install 'safe-psrl[cluster]'") from None
    try:
        client = distributed.Client(scheduler, timeout=CONNECT_SECONDS)
    except (OSError, ValueError) as error:
        raise SpecError("scheduler", scheduler, f"cannot be reached: {error}") from None
    with client:
        futures = client.map(_run_quietly, jobs, pure=False)
        try:
            for future in distributed.as_completed(futures):
                report(future.result().episodes)
        except KeyboardInterrupt:
            client.cancel([future for future in futures if not future.done()])
        return [future.result() for future in futures if future.status == "finished"]


def _run_quietly(job: Job) -> RunRecord:
    return run_job(job, lambda _: None, lambda: False)


_stop: Event
_reports: "multiprocessing.Queue[int]"
_checkpoints: Path | None


def _prepare(stop: Event, reports: "multiprocessing.Queue[int]", checkpoints: Path | None) -> None:
    """In each process. Loads the kernels, so that no run's time includes that."""
    global _stop, _reports, _checkpoints  # a pool's process has no other place for its initial arguments
    _stop, _reports, _checkpoints = stop, reports, checkpoints
    warm_up_simulation()


def _run_in_process(job: Job) -> RunRecord | None:
    if _stop.is_set():
        return None
    return run_job(job, _reports.put, _stop.is_set, _checkpoints)


def _follow(futures: list[Future[RunRecord | None]], reports: "multiprocessing.Queue[int]", report: Report) -> None:
    while not all(future.done() for future in futures):
        try:
            report(reports.get(timeout=SECONDS_PER_PIECE))
        except queue.Empty:
            continue
    while not reports.empty():
        report(reports.get())


@contextmanager
def _blocked_interrupt() -> Iterator[None]:
    """Processes started inside inherit SIGINT as blocked: the parent alone handles Ctrl-C. It is delivered here at the end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _interrupt_stops(stop: Event) -> Iterator[None]:
    """Inside, the first Ctrl-C stops the runs; a second one raises KeyboardInterrupt."""

    def stop_runs(_signal: int, _frame: object) -> None:
        stop.set()
        signal.signal(signal.SIGINT, previous)

    previous = signal.signal(signal.SIGINT, stop_runs)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
