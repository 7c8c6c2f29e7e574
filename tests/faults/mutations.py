"""Mutation tests of the fault suite: dangerous edits of the service, each of which the suite must catch.

`python -m tests.faults.mutations [--rows DIRECTORY] [--only NAME]` applies each edit to a copy of the sources, runs the fault
that must catch it, and shows the first finding. Exit code 1 if a mutation is not caught, or if the unchanged copy fails.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("proto", "server", "client", "experiments")
SERVER: Final = "server/safe_psrl_server"
AGENTS: Final = f"{SERVER}/agents"
RUNTIME: Final = f"{AGENTS}/runtime.py"
DECISIONS: Final = f"{AGENTS}/decisions.py"
CHECKSUMS: Final = f"{SERVER}/store/checksums.py"
SQLITE: Final = f"{SERVER}/store/sqlite/store.py"
POSTGRES: Final = f"{SERVER}/store/postgres/commit.py"
TEST: Final = "tests/faults/test_faults.py::test_nothing_acknowledged_is_lost_and_nothing_is_done_twice"
SECONDS: Final = 600
FINDING: Final = re.compile(r"^E +(?:tests\.faults\.suite\.)?FaultError: (.*(?:\nE +.+)?)", re.MULTILINE)


class Edit(NamedTuple):
    """One text for another, which must be there exactly once."""

    file: str
    old: str
    new: str


class Mutation(NamedTuple):
    """`fault` must catch it within `rounds`."""

    name: str
    fault: str
    edits: Sequence[Edit]
    rounds: int = 1


class Outcome(NamedTuple):
    """The result of one run."""

    name: str
    fault: str
    caught: bool
    finding: str
    seconds: float


COMMIT_CALL: Final = "                conflicts = await self._store.commit([decided.append for decided in batch])\n"
MUTATIONS: Final = (
    Mutation("nothing is committed", "Killed", [Edit(SQLITE, 'db.execute("COMMIT")', 'db.execute("ROLLBACK")')]),
    Mutation(
        "events are applied before the commit",
        "WriteFails",
        [
            Edit(
                RUNTIME,
                COMMIT_CALL,
                "                for _, agent, prepared, *_ in batch:\n"
                "                    for event in prepared.decision.events:\n"
                "                        agent.record.apply(event)\n"
                "                        agent.changed(event.time_micros, 1)\n"
                "                        self._on_change(agent)\n" + COMMIT_CALL,
            )
        ],
        rounds=6,
    ),
    Mutation(
        "calls are answered before the commit",
        "WriteFails",
        [
            Edit(
                RUNTIME,
                COMMIT_CALL,
                "                for call, agent, prepared, _, rejection in batch:\n"
                "                    if rejection is None and agent.record.exists:\n"
                "                        call.end(None, prepared.decision.reply)\n" + COMMIT_CALL,
            )
        ],
        rounds=3,
    ),
    Mutation(
        "the commit is not awaited",
        "TornWrite",
        [
            Edit(
                RUNTIME,
                COMMIT_CALL,
                "                unawaited = self._store.commit([decided.append for decided in batch])\n"
                "                self._tasks.add(asyncio.create_task(unawaited))\n"
                "                conflicts = set()\n",
            )
        ],
        rounds=3,
    ),
    Mutation(
        "a failed commit is ignored",
        "WriteFails",
        [
            Edit(
                RUNTIME,
                COMMIT_CALL,
                "                try:\n    " + COMMIT_CALL + "                except StoreFailedError:\n"
                "                    conflicts = set()\n",
            )
        ],
    ),
    Mutation(
        "a commit with an unknown outcome is acknowledged",
        "DatabaseRestarted",
        [
            Edit(
                RUNTIME,
                "                    self._end(decided.call, unavailable(error))\n",
                "                    self._end(decided.call, None, decided.prepared.decision.reply)\n",
            )
        ],
        rounds=2,
    ),
    Mutation(
        "a conflict is ignored",
        "ReplicaKilled",
        [Edit(RUNTIME, "if decided.call.agent in conflicts:", "if decided.call.agent is None:")],
    ),
    Mutation(
        "a replica appends without a version check",
        "ReplicaStopped",
        [
            Edit(POSTGRES, " AND stream.version = wanted.seen_version AND stream.link = wanted.seen_link", ""),
            Edit(
                POSTGRES,
                "        JOIN written ON written.agent = event.agent\n",
                "        JOIN written ON written.agent = event.agent\n"
                "        ON CONFLICT (agent, version) DO UPDATE SET payload = excluded.payload, link = excluded.link\n",
            ),
        ],
    ),
    Mutation(
        "the event loop waits for the disk",
        "DiskStalls",
        [
            Edit(
                SQLITE,
                "await asyncio.get_running_loop().run_in_executor(self._writer, self._transaction, append)",
                "self._transaction(append)",
            )
        ],
    ),
    Mutation("commits are not flushed", "SyncFails", [Edit(SQLITE, "synchronous = FULL", "synchronous = OFF")]),
    Mutation(
        "the commit counter is written before the commit",
        "TornWrite",
        [
            Edit(
                SQLITE,
                'db.execute("COMMIT")\n            self._commits += 1\n            self._counter.write(self._commits)\n',
                'self._commits += 1\n            self._counter.write(self._commits)\n            db.execute("COMMIT")\n',
            )
        ],
        rounds=3,
    ),
    Mutation(
        "the commit counter is not checked",
        "Damaged",
        [Edit(f"{SERVER}/store/sqlite/directory.py", "    if missing > 0:\n", "    if missing is None:\n")],
    ),
    Mutation(
        "the chain of events is not verified",
        "Damaged",
        [Edit(CHECKSUMS, "version, link = number, next_link(link, number, payload)", "version, link = number, stored_link")],
    ),
    Mutation(
        "a snapshot's digest is not verified",
        "Damaged",
        [Edit(CHECKSUMS, "return snapshot_digest(agent, version, link, payload) == digest", "return True")],
        rounds=2,
    ),
    Mutation(
        "events that the older snapshot needs are deleted",
        "Damaged",
        [
            Edit(
                f"{SERVER}/store/sqlite/streams.py",
                'db.execute("DELETE FROM events WHERE agent = ? AND version <= ?", (agent, older[0]))',
                'db.execute("DELETE FROM events WHERE agent = ? AND version < ?", (agent, version))',
            )
        ],
        rounds=2,
    ),
    Mutation(
        "a snapshot is stored at the wrong version",
        "Restarted",
        [
            Edit(
                f"{AGENTS}/compaction.py",
                "(agent.name, version, data)",
                "(agent.name, version - 1, data)",
            )
        ],
    ),
    Mutation(
        "the dual variables are not restored",
        "Restarted",
        [
            Edit(
                f"{AGENTS}/record.py",
                "duals = np.array(snapshot.dual_variables, np.float64)",
                "duals = np.zeros(len(snapshot.dual_variables))",
            )
        ],
    ),
    Mutation(
        "a snapshot lacks the steps of episodes",
        "Restarted",
        [Edit(f"{AGENTS}/snapshot.py", "        if episode.transitions:\n", "        if not episode:\n")],
    ),
    Mutation(
        "a repeated step is applied again",
        "Stopped",
        [
            Edit(
                DECISIONS,
                "        return Decision([], Reported(episode, step, seen, True,",
                "        again = observing(record, episode, [seen], False, now_micros)\n"
                "        return Decision(again, Reported(episode, step, seen, True,",
            )
        ],
    ),
    Mutation(
        "other values under the same key are accepted",
        "Stopped",
        [Edit(f"{AGENTS}/validation.py", "if episode.transitions[seen.step] != seen or (", "if (")],
    ),
    Mutation(
        "a gap between steps is accepted",
        "Stopped",
        [Edit(f"{AGENTS}/validation.py", "    if step > episode.next_step:\n", "    if step > episode.next_step + 100:\n")],
    ),
    Mutation(
        "a repeated start begins another episode",
        "Duplicates",
        [Edit(DECISIONS, "        if started.request_id == request.request_id:", "        if not request.request_id:")],
    ),
    Mutation(
        "a gauge counts more than was learned",
        "Stopped",
        [
            Edit(
                f"{SERVER}/metrics/families.py",
                "lambda view: view.status.transitions)",
                "lambda view: view.status.transitions + view.status.overridden_actions)",
            )
        ],
    ),
)


def mutated(text: str, edit: Edit) -> str:
    """`text` after the edit. Raises if it does not apply: then it must be adapted to the sources."""
    found = text.count(edit.old)
    if found != 1:
        raise ValueError(f"{edit.file}: found {found} times instead of once: {edit.old!r}")
    return text.replace(edit.old, edit.new)


def copy_sources(target: Path) -> None:
    """With the caches of compiled kernels, which are valid as long as the times of files are kept."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, target / package)


def try_out(mutation: Mutation) -> Outcome:
    """Whether the suite fails."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="safe-psrl-mutation-") as name:
        copy = Path(name)
        copy_sources(copy)
        for edit in mutation.edits:
            path = copy / edit.file
            path.write_text(mutated(path.read_text(encoding="utf-8"), edit), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0"]
        ran = subprocess.run(
            [*command, f"{TEST}[{mutation.fault}]", f"--basetemp={copy / 'tests'}"],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(str(copy / package) for package in PACKAGES),
                "SAFE_PSRL_FAULT_ROUNDS": str(mutation.rounds),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
    found = FINDING.search(ran.stdout)
    caught = ran.returncode == 1 and found is not None
    finding = " ".join(found[1].replace("\nE", " ").split()) if found else ""
    if ran.returncode != 0 and not caught:  # no verdict at all
        finding = f"the suite itself failed: {ran.stdout[-1500:]}{ran.stderr[-500:]}"
    return Outcome(mutation.name, mutation.fault, caught, finding, time.monotonic() - began)


def main() -> int:
    parser = argparse.ArgumentParser(description="Mutations that the fault suite must catch.")
    parser.add_argument("--rows", type=Path, help="directory for the rows of the table")
    parser.add_argument("--only", default="", help="part of a name, or a fault")
    parser.add_argument("--jobs", type=int, default=2)
    chosen = parser.parse_args()
    wanted = [mutation for mutation in MUTATIONS if chosen.only in mutation.name or chosen.only == mutation.fault]
    most = {mutation.fault: mutation.rounds for mutation in sorted(wanted, key=lambda mutation: mutation.rounds)}
    sound = [Mutation("(none)", fault, [], rounds) for fault, rounds in most.items()]
    good = True
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for done in as_completed([pool.submit(try_out, mutation) for mutation in (*wanted, *sound)]):
            outcome = done.result()
            as_it_should = outcome.caught == (outcome.name != "(none)")
            good = good and as_it_should
            good = good and not outcome.finding.startswith("the suite itself")
            said = f"{'caught' if outcome.caught else 'passes'}{'' if as_it_should else '  <-- WRONG'}"
            line = f"{outcome.name:55} {outcome.fault:16} {said:10} {outcome.seconds:4.0f} s  {outcome.finding[:200]}"
            print(line, flush=True)  # noqa: T201
            if chosen.rows and outcome.name != "(none)":
                name = outcome.name.replace(" ", "-").replace("'", "")
                chosen.rows.mkdir(parents=True, exist_ok=True)
                (chosen.rows / f"mutation-{name}.json").write_text(json.dumps(outcome._asdict()), encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
