"""Running on a Dask cluster: the same jobs, the same numbers, other machines."""

from importlib import import_module
from typing import Any

from safe_psrl.errors import SpecError
from safe_psrl_experiments.records import RunRecord
from safe_psrl_experiments.runs import Job, Report, run_job

CONNECT_SECONDS = 10


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
        futures = client.map(_run, jobs, pure=False)
        try:
            for future in distributed.as_completed(futures):
                report(future.result().episodes)
        except KeyboardInterrupt:
            client.cancel([future for future in futures if not future.done()])
        return [future.result() for future in futures if future.status == "finished"]


def _run(job: Job) -> RunRecord:
    return run_job(job, lambda _: None, lambda: False)
