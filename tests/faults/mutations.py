"""What the suite is worth: known-dangerous edits of the service, each of which it must notice.

`python -m tests.faults.mutations [--rows DIRECTORY] [--only NAME]` copies the sources, makes one edit after the other in
copies, runs the part of the suite that concerns it, and shows what it found. Exit code 1 if an edit goes unnoticed, or if
the unchanged copy does not pass.
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
TEST: Final = "tests/faults/test_faults.py::test_nothing_acknowledged_is_lost_and_nothing_is_done_twice"
SECONDS: Final = 600
FINDING: Final = re.compile(r"^E +(?:faults\.suite\.)?FaultError: (.*(?:\nE +.+)?)", re.MULTILINE)


class Edit(NamedTuple):
    """One text for another, which must be there exactly once."""

    file: str
    old: str
    new: str


class Mutation(NamedTuple):
    """`fault` is what must notice it, within so many rounds."""

    name: str
    fault: str
    edits: Sequence[Edit]
    rounds: int = 1


class Outcome(NamedTuple):
    """Of a run."""

    name: str
    fault: str
    noticed: bool
    finding: str
    seconds: float


MUTATIONS: Final = (
    Mutation(
        "nothing is committed",
        "Killed",
        [
            Edit(
                f"{SERVER}/store/log.py",
                "        write(size, self._end - begin)\n",
                "",
            )
        ],
    ),
    Mutation(
        "replies before the commit",
        "WriteFails",
        [
            Edit(
                f"{SERVER}/store/sqlite.py",
                "        entry.meanwhile = nothing  # its caller goes on\n        return entry\n",
                "        early = Append(agent, expected_version, events, policies, dropped, meanwhile)\n"
                "        early.settle(expected_version + len(events))\n"
                "        return early\n",
            )
        ],
        rounds=3,
    ),
    Mutation(
        "a failed commit is ignored",
        "WriteFails",
        [
            Edit(
                f"{SERVER}/store/sqlite.py",
                "                self._loop.call_soon_threadsafe(self._fail, group, error)\n                return\n",
                "                group.results = [error and 0 for entry in group.entries]\n"
                '                self._writing.in_transaction and self._writing.execute("ROLLBACK")\n',
            ),
            Edit(
                f"{SERVER}/store/sqlite.py",
                "            self._fail(group, error)\n            return\n        if by_the_loop:\n",
                "            group.results = [error and 0 for entry in group.entries]\n"
                '            self._writing.in_transaction and self._writing.execute("ROLLBACK")\n'
                "        if by_the_loop:\n",
            ),
        ],
    ),
    Mutation(
        "an asynchronous write is not asked about",
        "SyncFailsAlone",
        [
            Edit(
                f"{SERVER}/store/polled_write.py",
                "            self._wait()\n            self._is_writing = False\n",
                "            self._is_writing = False\n",
            ),
            Edit(f"{SERVER}/store/polled_write.py", "= EVENT.unpack_from(self._event)[2]", "= size"),
        ],
    ),
    Mutation(
        "commits are not flushed",
        "SyncFails",
        [Edit(f"{SERVER}/store/log.py", " | os.O_DSYNC", "")],
    ),
    Mutation(
        "the count of commits is not looked at",
        "Damaged",
        [Edit(f"{SERVER}/store/witness.py", "if noted > stored:", "if noted < 0:")],
    ),
    Mutation(
        "the chain of events is not checked",
        "Damaged",
        [
            Edit(
                f"{SERVER}/store/chain.py",
                "version, link = number, next_link(link, number, payload)",
                "version, link = number, stored_link",
            )
        ],
    ),
    Mutation(
        "a snapshot's digest is not checked",
        "Damaged",
        [Edit(f"{SERVER}/store/chain.py", "return snapshot_digest(agent, version, link, payload) == digest", "return True")],
        rounds=2,
    ),
    Mutation(
        "events that the older snapshot needs are deleted",
        "Damaged",
        [
            Edit(
                f"{SERVER}/store/sqlite_streams.py",
                'db.execute("DELETE FROM events WHERE agent = ? AND version <= ?", (agent, older[0]))',
                'db.execute("DELETE FROM events WHERE agent = ? AND version < ?", (agent, version))',
            )
        ],
        rounds=2,
    ),
    Mutation(
        "the dual variable is not restored",
        "Restarted",
        [
            Edit(
                f"{SERVER}/agent_record.py",
                "duals = np.array(snapshot.dual_variables, np.float64)",
                "duals = np.zeros(len(snapshot.dual_variables))",
            )
        ],
    ),
    Mutation(
        "a snapshot lacks the transitions of the open episode",
        "Restarted",
        [Edit(f"{SERVER}/snapshot.py", "state = record.settled_state()", "state = record.state")],
    ),
    Mutation(
        "a snapshot lacks the steps of episodes",
        "Restarted",
        [Edit(f"{SERVER}/snapshot.py", "write_steps(kept, episode.transitions)", "write_steps(kept, [])")],
    ),
    Mutation(
        "a repeated step is applied again",
        "Stopped",
        [
            Edit(
                f"{SERVER}/decisions.py",
                "        return [], Reported(episode, step, seen.next_state, True,",
                "        again = step_event(now_micros, episode.number, seen, False)\n"
                "        return [again], Reported(episode, step, seen.next_state, True,",
            )
        ],
    ),
    Mutation(
        "another transition under the same key is accepted",
        "Stopped",
        [Edit(f"{SERVER}/decisions.py", "if episode.transitions[seen.step] != seen or (", "if (")],
    ),
    Mutation(
        "a gap between steps is accepted",
        "Stopped",
        [Edit(f"{SERVER}/decisions.py", "    if step > episode.next_step:\n", "    if step > episode.next_step + 100:\n")],
    ),
    Mutation(
        "a repeated start begins another episode",
        "Duplicates",
        [
            Edit(
                f"{SERVER}/decisions.py",
                "        if started.request_id == request.request_id:",
                "        if not request.request_id:",
            )
        ],
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
    Mutation(
        "a replica appends without looking at the version",
        "ReplicaStopped",
        [
            Edit(
                f"{SERVER}/store/postgres/commit.py",
                " AND stream.version = wanted.seen_version AND stream.link = wanted.seen_link",
                "",
            ),
            Edit(
                f"{SERVER}/store/postgres/commit.py",
                "event.agent\n    )\n",
                "event.agent\n    ON CONFLICT (agent, version) DO UPDATE SET payload = excluded.payload, link = excluded.link\n"
                "    )\n",
            ),
        ],
    ),
)


def mutated(text: str, edit: Edit) -> str:
    """`text` after the edit. Raises if it cannot be made: then it must be adapted to the sources as they are now."""
    found = text.count(edit.old)
    if found != 1:
        raise ValueError(f"{edit.file}: found {found} times instead of once: {edit.old!r}")
    return text.replace(edit.old, edit.new)


def copy_sources(target: Path) -> None:
    """With the caches of compiled kernels, which are valid as long as the times of files are kept."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, target / package)


def try_out(mutation: Mutation) -> Outcome:
    """Whether the suite goes red."""
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
    noticed = ran.returncode == 1 and found is not None
    finding = " ".join(found[1].replace("\nE", " ").split()) if found else ""
    if ran.returncode != 0 and not noticed:  # no verdict at all
        finding = f"the suite itself failed: {ran.stdout[-1500:]}{ran.stderr[-500:]}"
    return Outcome(mutation.name, mutation.fault, noticed, finding, time.monotonic() - began)


def main() -> int:
    parser = argparse.ArgumentParser(description="Dangerous edits that the suite of faults must notice.")
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
            as_it_should = outcome.noticed == (outcome.name != "(none)")
            good = good and as_it_should
            good = good and not outcome.finding.startswith("the suite itself")
            said = f"{'noticed' if outcome.noticed else 'passes'}{'' if as_it_should else '  <-- WRONG'}"
            line = f"{outcome.name:55} {outcome.fault:16} {said:10} {outcome.seconds:4.0f} s  {outcome.finding[:200]}"
            print(line, flush=True)  # noqa: T201
            if chosen.rows and outcome.name != "(none)":
                name = outcome.name.replace(" ", "-").replace("'", "")
                chosen.rows.mkdir(parents=True, exist_ok=True)
                (chosen.rows / f"mutation-{name}.json").write_text(json.dumps(outcome._asdict()), encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
