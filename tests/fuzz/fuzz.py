"""Fuzzing as a command: python -m tests.fuzz.fuzz --inputs 100000 --seed 1, or --replay FILE for what was found."""

import argparse
import asyncio
import logging
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import uvloop

from safe_psrl import warm_up
from safe_psrl_server.logs import set_up_logs
from tests.fuzz.generation import Generator
from tests.fuzz.ground import Ground
from tests.fuzz.inputs import Input, load, save
from tests.fuzz.oracle import FindingError, Judge

LANES: Final = 32
RESET_AFTER: Final = 100  # inputs of a lane
MOST_FINDINGS: Final = 20
MOST_MEMORY: Final = 12 * 2**30  # of addresses: what asks for more must fail here, not take the machine down
LAG_SECONDS: Final = 5.0  # that no input may keep the server from all others


@dataclass
class Finding:
    """What must not be, and the inputs that a fresh server needs to show it again, the last one being the culprit."""

    text: str
    inputs: list[Input]


@dataclass
class Report:
    """What a campaign did."""

    seed: int
    kinds: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    methods: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0
    slowest: tuple[float, str] = (0.0, "")
    lag: float = 0.0

    @property
    def inputs(self) -> int:
        return self.kinds.total()

    def lines(self) -> list[str]:
        def counted(what: Counter[str]) -> str:
            return ", ".join(f"{name} {count}" for name, count in what.most_common())

        return [
            f"{self.inputs} inputs of seed {self.seed} in {self.seconds:.0f} s: {self.inputs / self.seconds:.0f} a second",
            f"kinds: {counted(self.kinds)}",
            f"methods: {counted(self.methods)}",
            f"answers: {counted(self.codes)}",
            f"slowest: {self.slowest[0]:.2f} s ({self.slowest[1]}); longest time without service: {self.lag:.2f} s",
            f"findings: {len(self.findings)}",
        ]


class Campaign:
    """Sends inputs on all lanes at once, one after the other on each."""

    def __init__(self, seed: int, inputs: int, directory: Path) -> None:
        self.report = Report(seed)
        self._inputs = inputs
        self._directory = directory
        self._under_way: dict[int, Input] = {}
        self._noted: list[Finding] = []  # by the loop or in the log, of whichever input

    async def run(self) -> Report:
        began = time.monotonic()
        async with Ground(LANES, self._directory) as ground:
            untouched = [ground.fingerprint(name) for name in ground.bystanders]
            asyncio.get_running_loop().set_exception_handler(self._note_failure)
            complaints = logging.Handler(logging.ERROR)  # an unexpected exception, as libraries write it to the log
            complaints.emit = self._note_log  # type: ignore[method-assign]
            logging.getLogger().addHandler(complaints)
            lag = asyncio.create_task(self._watch_lag())
            try:
                await asyncio.gather(*(self._lane(ground, lane) for lane in range(LANES)))
            finally:
                lag.cancel()
                logging.getLogger().removeHandler(complaints)
            if [ground.fingerprint(name) for name in ground.bystanders] != untouched:
                self._found("an agent that nobody spoke of has changed", [])
            strangers = ground.names() - {*ground.lanes, *ground.guests, *ground.bystanders}
            if strangers and not self.report.findings:
                self._found(f"there are agents that were never made: {sorted(strangers)[:3]}", [])
            if self.report.lag > LAG_SECONDS:
                self._found(f"no call was served for {self.report.lag:.1f} s", [])
        if not self.report.findings:  # otherwise they are what came of those
            self.report.findings += self._noted
        self.report.seconds = time.monotonic() - began
        return self.report

    async def _lane(self, ground: Ground, lane: int) -> None:
        generator = Generator(lane, ground.guests[lane], self.report.seed, ground.tokens)
        judge, history = Judge(ground, lane), list[Input]()
        for _ in range(-(-self._inputs // LANES)):  # as many on each: which one is faster must not matter
            if len(self.report.findings) >= MOST_FINDINGS:
                return
            record = ground.record(ground.lanes[lane])
            if record is None or len(history) >= RESET_AFTER:
                await ground.reset(lane)
                judge.reset()
                history.clear()
                record = ground.record(ground.lanes[lane])
                assert record is not None
            given = generator.next(record)
            history.append(given)
            self._under_way[lane] = given
            try:
                answer = await ground.send(given)
                self._count(given, answer)
                generator.remember(given, answer.shape)
                await judge.judge(given, answer)
            except FindingError as error:
                self._found(f"{given.describe()}: {error}", list(history))
                return  # the agent may be damaged

    def _count(self, given: Input, answer: Any) -> None:
        report = self.report
        report.kinds[given.kind] += 1
        report.codes[answer.code.name] += 1
        if given.door == "grpc":
            report.methods[given.call] += 1
        report.slowest = max(report.slowest, (answer.seconds, given.describe()))

    def _found(self, text: str, inputs: list[Input]) -> None:
        self.report.findings.append(Finding(text, inputs))

    def _note_failure(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._note(f"the event loop reported: {context.get('message')} {context.get('exception')!r}")

    def _note_log(self, record: logging.LogRecord) -> None:
        self._note(f"logged: {record.getMessage()[:400]}")

    def _note(self, text: str) -> None:
        if len(self._noted) < MOST_FINDINGS:
            self._noted.append(Finding(text, list(self._under_way.values())))

    async def _watch_lag(self) -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.05)
            self.report.lag = max(self.report.lag, time.monotonic() - began - 0.05)


async def replay(inputs: Sequence[Input], directory: Path) -> str:
    """What comes of `inputs` on a fresh server: the finding, or nothing."""
    async with Ground(max((given.lane + 1 for given in inputs), default=0), directory) as ground:
        for given in inputs:
            judge = Judge(ground, given.lane)
            try:
                await judge.judge(given, await ground.send(given))
            except FindingError as error:
                return f"{given.describe()}: {error}"
    return ""


def run(seed: int, inputs: int) -> Report:
    with tempfile.TemporaryDirectory() as directory:
        return uvloop.run(Campaign(seed, inputs, Path(directory)).run())


def run_again(inputs: Sequence[Input]) -> str:
    with tempfile.TemporaryDirectory() as directory:
        return uvloop.run(replay(inputs, Path(directory)))


def keep(finding: Finding, path: Path) -> None:
    """As short as it can be shown with: the last input alone, or all since its agent was new."""
    alone = finding.inputs[-1:]
    shortest = alone if alone and run_again(alone) else finding.inputs
    save(shortest, finding.text, path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("fuzz-findings"), help="where inputs that found something are kept")
    parser.add_argument("--replay", type=Path, help="send the inputs of this file again")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    set_up_logs("console", "error")
    warm_up()
    if options.replay:
        finding = run_again(load(options.replay))
        print(finding or "nothing found")  # noqa: T201
        return int(bool(finding))
    report = run(options.seed, options.inputs)
    print("\n".join(report.lines()))  # noqa: T201
    for number, finding in enumerate(report.findings):
        path = options.out / f"{options.seed}-{number}.json"
        keep(finding, path)
        print(f"{finding.text}\n  python -m tests.fuzz.fuzz --replay {path}")  # noqa: T201
    return int(bool(report.findings))


if __name__ == "__main__":
    sys.exit(main())
