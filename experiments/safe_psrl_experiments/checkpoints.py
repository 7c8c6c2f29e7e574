"""Runs that outlive their process: what a job has done so far, in one file, from which it goes on."""

import json
import os
import zipfile
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from safe_psrl.version import __version__

if TYPE_CHECKING:
    from safe_psrl_experiments.algorithms import Run
    from safe_psrl_experiments.runs import Job

PREFIX = "table."


@dataclass
class Progress:
    """What a job has written down, beside its run."""

    rows: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0


class Checkpoint:
    """The file of one job in `directory`. A file of another job, or one that is damaged, is not taken."""

    def __init__(self, directory: Path, job: "Job") -> None:
        self._fingerprint = sha256(json.dumps([__version__, asdict(job)], sort_keys=True).encode()).hexdigest()
        self._path = directory / f"{job.algorithm}-{job.seed}-{self._fingerprint[:12]}.npz"

    def save(self, run: "Run", progress: Progress) -> None:
        """Replace the file in one step."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_suffix(f".{os.getpid()}")
        about = {"fingerprint": self._fingerprint, "episode": run.episode, **asdict(progress)}
        tables: dict[str, Any] = {PREFIX + name: table for name, table in run.tables.items()}
        with draft.open("wb") as file:
            np.savez(file, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **tables)
        draft.replace(self._path)

    def resume(self, run: "Run") -> Progress:
        """Bring a fresh `run` to where the file has it. Without one, nothing happens."""
        try:
            with np.load(self._path, allow_pickle=False) as file:
                about = json.loads(file["about"].tobytes())
                saved = {name: file[PREFIX + name] for name in run.tables}
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError):
            return Progress()
        if about["fingerprint"] != self._fingerprint:
            return Progress()
        for name, table in run.tables.items():
            table[...] = saved[name]
        run.episode = about["episode"]
        return Progress(about["rows"], about["seconds"])
