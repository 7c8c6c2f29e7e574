"""Executes the Dockerfile's steps in an empty directory, without a Docker engine, as an unprivileged user.

    python deploy/scripts/run_dockerfile_steps.py DIRECTORY

The image's own directories (below) are kept under DIRECTORY/image; what the base image brings is this machine's. A stage begins
with an empty tree, and gets from another only what COPY takes. At the end all but /tmp and the volumes is read-only, and
DIRECTORY/image.json says how a container would be started.
"""

import argparse
import fnmatch
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
DOCKERFILE: Final = REPOSITORY / "deploy" / "docker" / "Dockerfile"
OWN_PATHS: Final = re.compile(r"(?<![\w./-])(?=/(?:opt/safe-psrl|src|var/lib/safe-psrl|tmp)(?:[/:\"'\s]|$))")
NOBODY: Final = 65534
JSON_FORM: Final = {"CMD", "ENTRYPOINT", "HEALTHCHECK"}
NOTED_ONLY: Final = {"EXPOSE", "STOPSIGNAL"}


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Each instruction's word and the rest of it."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in lines.replace("\\\n", " ").splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield word.upper(), rest.strip()


class Ignored:
    """What .dockerignore leaves of the repository."""

    def __init__(self, text: str) -> None:
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        self._anywhere = [line.removeprefix("**/") for line in lines if line.startswith("**/")]
        self._let_in = [line.removeprefix("!") for line in lines if line.startswith("!")]

    def check(self, source: str) -> None:
        if not any(source == path or source.startswith(f"{path}/") for path in self._let_in):
            raise SystemExit(f"COPY {source}: .dockerignore leaves it out")

    def names(self, _directory: str, names: list[str]) -> set[str]:
        return {name for name in names for pattern in self._anywhere if fnmatch.fnmatch(name, pattern)}


class Build:
    """One run over the Dockerfile."""

    def __init__(self, directory: Path, user: int) -> None:
        self.tree = directory / "image"
        self.command: dict[str, list[str]] = {}
        self.volumes: list[str] = []
        self.user = ""
        self.workdir = "/"
        self.env: dict[str, str] = {}
        self._directory = directory
        self._user = user
        self._global_args: dict[str, str] = {}
        self._args: dict[str, str] = {}
        self._stage = ""
        self._ignored = Ignored((REPOSITORY / ".dockerignore").read_text(encoding="utf-8"))
        self._base = _base_environment(directory, user)

    def run(self, text: str) -> None:
        for word, rest in instructions(text):
            sys.stderr.write(f"{word} {rest}\n")
            if word in JSON_FORM:
                self.command[word.lower()] = json.loads(rest[rest.index("[") :])
            elif word not in NOTED_ONLY:
                getattr(self, f"_{word.lower()}_step")(rest)
        self._protect()

    def here(self, text: str) -> str:
        """The image's own paths as paths of this machine."""
        return OWN_PATHS.sub(str(self.tree), text)

    def image(self) -> dict[str, Any]:
        """How a container is started, in paths of this machine."""
        base = {name: value for name, value in self._base.items() if not name.startswith("PIP_")}  # of the build alone
        environment = base | {name: self.here(value) for name, value in self.env.items()}
        environment["PATH"] = f"{environment['PATH']}:{self._base['PATH']}"
        commands = {name: [self.here(part) for part in parts] for name, parts in self.command.items()}
        return commands | {
            "environment": environment,
            "user": self._user,
            "declared_user": self.user,
            "workdir": self.here(self.workdir),
        }

    # --- instructions

    def _arg_step(self, rest: str) -> None:
        name, _, default = rest.partition("=")
        (self._args if self._stage else self._global_args)[name] = default

    def _from_step(self, rest: str) -> None:
        if self._stage:
            self.tree.rename(self._directory / self._stage)
        self._stage = rest.partition(" AS ")[2] or "final"
        self._args, self.env, self.workdir, self.user = dict(self._global_args), {}, "/", ""
        _make(self.tree / "tmp", self._user)

    def _env_step(self, rest: str) -> None:
        (assignment,) = shlex.split(rest)
        name, _, value = assignment.partition("=")
        self.env[name] = self._expanded(value)

    def _workdir_step(self, rest: str) -> None:
        self.workdir = rest
        _make(Path(self.here(rest)), self._user)

    def _user_step(self, rest: str) -> None:
        self.user = rest

    def _volume_step(self, rest: str) -> None:
        self.volumes.append(rest)

    def _run_step(self, rest: str) -> None:
        environment = self._base | self._args | {name: self.here(value) for name, value in self.env.items()}
        environment.setdefault("PATH", self._base["PATH"])
        for parent in re.findall(r"(?<=\s)/opt(?=/safe-psrl\b)|(?<=\s)/var/lib(?=/safe-psrl\b)", f" {rest}"):
            _make(self.tree / parent.lstrip("/"), self._user)
        as_user = ["/bin/sh", "-e", "-c", self.here(rest)]
        subprocess.run(as_user, cwd=self.here(self.workdir), env=environment, check=True, **_identity(self._user))  # noqa: S603

    def _copy_step(self, rest: str) -> None:
        parts = shlex.split(rest)
        options = dict(part.removeprefix("--").split("=", 1) for part in parts if part.startswith("--"))
        *sources, target = [part for part in parts if not part.startswith("--")]
        origin = self._directory / options["from"] if "from" in options else REPOSITORY
        place = Path(self.here(target)) if target.startswith("/") else Path(self.here(self.workdir)) / target
        for source in sources:
            if "from" not in options:
                self._ignored.check(source)
            self._copy_one(origin / source.lstrip("/"), place, into=target.endswith("/") or len(sources) > 1)

    def _copy_one(self, source: Path, place: Path, *, into: bool) -> None:
        if source.is_dir():
            ignore = self._ignored.names if source.is_relative_to(REPOSITORY) else None
            shutil.copytree(source, place, symlinks=True, ignore=ignore, dirs_exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, place / source.name if into else place)
        _give(self.tree, self._user)

    def _expanded(self, value: str) -> str:
        return re.sub(r"\$\{(\w+)\}", lambda found: self._args[found[1]], value)

    def _protect(self) -> None:
        """Read-only, but for /tmp and the volumes."""
        writable = {self.tree / path.lstrip("/") for path in ("/tmp", *self.volumes)}  # noqa: S108  # the image's
        for folder, folders, files in os.walk(self.tree, topdown=True):
            folders[:] = [name for name in folders if Path(folder, name) not in writable]
            for path in (Path(folder), *(Path(folder, name) for name in files)):
                if not path.is_symlink():
                    path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))


def _identity(user: int) -> dict[str, Any]:
    """For a subprocess; only root can change the user."""
    return {"user": user, "group": user, "extra_groups": []} if os.geteuid() == 0 else {}


def _make(directory: Path, user: int) -> None:
    if not directory.exists():
        _make(directory.parent, user)
        directory.mkdir()
        if os.geteuid() == 0:
            os.chown(directory, user, user)


def _give(tree: Path, user: int) -> None:
    if os.geteuid() == 0:
        for folder, _, files in os.walk(tree):
            for path in (folder, *(os.path.join(folder, name) for name in files)):  # noqa: PTH118  # many
                os.chown(path, user, user, follow_symlinks=False)


def _base_environment(directory: Path, user: int) -> dict[str, str]:
    """What the base image has: a Python of that name, and here pip's own settings, wherever they come from."""
    programs = directory / "base"
    programs.mkdir()
    (programs / "python").symlink_to(_python_for(user))
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "LANG"))}
    return kept | _pip_settings() | {"PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin"}


def _python_for(user: int) -> str:
    """The first Python, new enough and with venv, that this user may run."""
    found: list[str | None] = [
        getattr(sys, "_base_executable", sys.executable),
        shutil.which("python3", path="/usr/local/bin:/usr/bin"),
    ]
    probe = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))"
    for python in filter(None, found):
        try:
            if subprocess.run([python, "-c", probe], check=False, cwd="/", **_identity(user)).returncode == 0:  # noqa: S603
                return python
        except PermissionError:
            continue
    raise SystemExit("no Python 3.11 or newer with venv that an unprivileged user may run")


def _pip_settings() -> dict[str, str]:
    """pip's configuration as variables, since its files may be another user's."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    pairs = (line.partition("=") for line in listed.stdout.splitlines() if line.startswith("global."))
    return {
        "PIP_" + name.removeprefix("global.").upper().replace("-", "_"): shlex.split(value.replace("\\n", " "))[0]
        for name, _, value in pairs
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="must be empty, and within reach of the unprivileged user")
    directory: Path = parser.parse_args().directory.resolve()
    directory.mkdir(exist_ok=True)
    if any(directory.iterdir()):
        raise SystemExit(f"{directory} is not empty")
    build = Build(directory, NOBODY if os.geteuid() == 0 else os.geteuid())
    build.run(DOCKERFILE.read_text(encoding="utf-8"))
    (directory / "image.json").write_text(json.dumps(build.image(), indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
