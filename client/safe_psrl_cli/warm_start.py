"""Where `safe-psrl agent create` takes a warm start from: a log, an agent, or a fleet."""

import hashlib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from safe_psrl_cli.connection import USER_MISTAKE, leave, say

if TYPE_CHECKING:
    from safe_psrl_client import Client
    from safe_psrl_proto.v1 import model_pb2

LONG_FILE_BYTES = 10_000_000  # a progress bar is shown from here on, and for Parquet, which packs a row into a byte or two


class Origin(NamedTuple):
    """The options of a warm start."""

    log: Path | None
    columns: str
    skip_bad: bool
    agent: str
    fleet: str
    weight: float

    @property
    def is_given(self) -> bool:
        """Whether there is a warm start. Raises `BadParameter` if the options contradict each other."""
        given = sum([self.log is not None, bool(self.agent), bool(self.fleet)])
        if given > 1:
            raise typer.BadParameter("give one of --from-log, --from-agent and --from-fleet", param_hint="--from-log")
        if self.log is None and (self.columns or self.skip_bad):
            raise typer.BadParameter("--columns and --skip-bad are for --from-log", param_hint="--columns")
        if not given and self.weight != 1.0:
            raise typer.BadParameter("give --from-log, --from-agent or --from-fleet, too", param_hint="--weight")
        return given == 1


def warm_start(client: "Client", spec: "model_pb2.AgentSpec", origin: Origin) -> "model_pb2.WarmStart":
    """What an agent with `spec` begins with."""
    from safe_psrl_client import warm_start_from_exports  # noqa: PLC0415

    if origin.log is not None:
        return _from_log(origin.log, spec, origin)
    names = [origin.agent]
    if origin.fleet:
        names = [status.agent for status in client.list_agents() if fnmatchcase(status.agent, origin.fleet)]
        if not names:
            leave(f"no agent matches {origin.fleet!r}", USER_MISTAKE)
    exports = [client.export_agent(name) for name in names]
    return warm_start_from_exports(exports, spec, origin.weight, source=origin.agent or origin.fleet)


def preset_definition(name: str, options: "model_pb2.SafePsrlOptions", seed: int) -> "model_pb2.AgentSpec":
    """What the service makes of a preset: a warm start needs its tables."""
    from safe_psrl.errors import SpecError  # noqa: PLC0415
    from safe_psrl.problem.presets import preset  # noqa: PLC0415
    from safe_psrl_proto.v1 import model_pb2  # noqa: PLC0415
    from safe_psrl_server.agents.messages import cmdp_to_message  # noqa: PLC0415

    try:
        cmdp = cmdp_to_message(preset(name))
    except SpecError as error:
        leave(f"preset: {name!r} {error.requirement}", USER_MISTAKE)
    return model_pb2.AgentSpec(cmdp=cmdp, options=options, seed=seed)


def _from_log(path: Path, spec: "model_pb2.AgentSpec", origin: Origin) -> "model_pb2.WarmStart":
    from safe_psrl_client.transition_logs import count_file  # noqa: PLC0415
    from safe_psrl_client.warm_start import LogCounter  # noqa: PLC0415

    counter, names = LogCounter(spec), [constraint.name for constraint in spec.cmdp.constraints]
    columns = _columns(origin.columns)
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if path.stat().st_size < LONG_FILE_BYTES and path.suffix != ".parquet":
            count_file(path, counter, names, columns)
        else:
            from safe_psrl_cli.tables import progress_bar  # noqa: PLC0415

            with progress_bar("rows") as bar:
                task = bar.add_task(path.name, total=None)
                count_file(path, counter, names, columns, lambda rows: bar.update(task, completed=rows))
    except OSError as error:
        leave(f"{path}: {error.strerror}", USER_MISTAKE)
    if counter.bad_rows:
        found = f"{path}: {counter.bad_rows:,} of {counter.rows + counter.bad_rows:,} rows contradict the specification"
        if not origin.skip_bad:
            leave(f"{found}; {counter.first_bad}; --skip-bad leaves them out", USER_MISTAKE)
        say(f"warning: {found} and are left out; {counter.first_bad}", err=True)
    return counter.warm_start(origin.weight, path.name, digest)


def _columns(text: str) -> dict[str, str]:
    """`state=s,action=a` as the file's names by ours."""
    columns: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        ours, equals, theirs = part.partition("=")
        if not (ours and equals and theirs):
            raise typer.BadParameter(f"write NAME=COLUMN and a comma between two, not {part!r}", param_hint="--columns")
        columns[ours] = theirs
    return columns
