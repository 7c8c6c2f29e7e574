"""The progress of a job in one file, from which another process continues it."""

import io
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from safe_psrl.arrays import Floats
from safe_psrl.problem.documents import spec_to_document
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl.version import __version__
from safe_psrl_experiments.results import write_file

if TYPE_CHECKING:
    from safe_psrl_experiments.algorithms import Run
    from safe_psrl_experiments.runs import Job

PREFIX = "table."
SEAL_BYTES = 32


@dataclass
class Progress:
    """What a job has recorded, beside its run."""

    rows: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0


class Checkpoint:
    """The file of one job in `directory`: a seal of job and content, and an archive of tables. None: there is no file.

    A file of another job, or one that is damaged, does not have the seal and is ignored. The problem is part of a job: a
    specification file may have been changed since.
    """

    def __init__(self, directory: Path | None, job: "Job", spec: CmdpSpec, kernels: Iterable[Floats]) -> None:
        words = json.dumps([__version__, asdict(job), spec_to_document(spec)], sort_keys=True).encode()
        self._job = sha256(words)
        for kernel in kernels:
            self._job.update(np.ascontiguousarray(kernel).tobytes())
        name = f"{job.algorithm}-{job.seed}-{self._job.hexdigest()[:12]}.checkpoint"
        self._path = None if directory is None else directory / name

    def save(self, run: "Run", progress: Progress) -> None:
        """Replace the file atomically."""
        if self._path is None:
            return
        about = {"episode": run.episode, **asdict(progress)}
        tables: dict[str, Any] = {PREFIX + name: table for name, table in run.tables.items()}
        archive = io.BytesIO()
        np.savez(archive, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **tables)
        write_file(self._path, self._seal(archive.getvalue()) + archive.getvalue())

    def resume(self, run: "Run") -> Progress:
        """Bring a new `run` to the state in the file. Without a valid file, nothing happens."""
        if self._path is None:
            return Progress()
        try:
            content = self._path.read_bytes()
        except OSError:
            return Progress()
        seal, archive = content[:SEAL_BYTES], content[SEAL_BYTES:]
        if seal != self._seal(archive):
            return Progress()
        with np.load(io.BytesIO(archive), allow_pickle=False) as file:
            about = json.loads(file["about"].tobytes())
            for name, table in run.tables.items():
                table[...] = file[PREFIX + name]
        run.episode = about["episode"]
        return Progress(about["rows"], about["seconds"])

    def _seal(self, archive: bytes) -> bytes:
        seal = self._job.copy()
        seal.update(archive)
        return seal.digest()
