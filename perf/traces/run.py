"""A run's directory: `run.json` says what was run, where and by what; its traces lie beside it.

`run.json` is written when the run starts and again when it ends, each time as a whole, so a run that was cut short
is a usable run without an end.
"""

import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec

from perf.traces.schema import SCHEMA_VERSION
from storage.private import make_private_folder, write_private_file

RUN_FILE: Final = "run.json"
TRACES: Final = "traces"
LARGEST_RUN_FILE: Final = 4 << 20
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

Parameter = str | int | float | bool | None


class RunError(Exception):
    """A directory is not a run, or its `run.json` cannot be read; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What figures depend on besides the software."""

    system: str
    release: str
    architecture: str
    processor: str
    cores: int
    memory_bytes: int
    python: str


@dataclass(frozen=True, slots=True)
class WrittenFile:
    name: str
    rows: int


@dataclass(frozen=True, slots=True)
class TraceGap:
    """A time in which records were dropped. `process` says whose, by the names of its files, in a run of several."""

    begin_ns: int
    end_ns: int
    rows: int
    process: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that is known of a run besides its traces. `files` is complete only when `ended_ns` is set."""

    run: str
    kind: str
    version: str
    machine: Machine
    started_ns: int
    parameters: dict[str, Parameter] = field(default_factory=dict)
    seed: int | None = None
    sampling: float = 1.0
    schema: int = SCHEMA_VERSION
    ended_ns: int | None = None
    written: int = 0
    dropped: int = 0
    removed: int = 0
    files: tuple[WrittenFile, ...] = ()
    gaps: tuple[TraceGap, ...] = ()


def new_run(
    kind: str,
    version: str,
    parameters: Mapping[str, Parameter],
    *,
    seed: int | None = None,
    sampling: float = 1.0,
    name: str | None = None,
) -> Run:
    return Run(
        run=name or f"{kind}-{uuid4().hex[:12]}",
        kind=kind,
        version=version,
        machine=this_machine(),
        started_ns=time.time_ns(),
        parameters=dict(parameters),
        seed=seed,
        sampling=sampling,
    )


def put_together(parts: Sequence[Run]) -> Run:
    """One run of which every node kept a directory of its own."""
    first = parts[0]
    ends = [part.ended_ns for part in parts if part.ended_ns is not None]
    names = sorted({name for part in parts for name in part.parameters})
    values = {name: [part.parameters[name] for part in parts if name in part.parameters] for name in names}
    return replace(
        first,
        started_ns=min(part.started_ns for part in parts),
        ended_ns=max(ends) if len(ends) == len(parts) else None,
        parameters={
            name: found[0] if len(set(found)) == 1 else ", ".join(dict.fromkeys(map(str, found)))
            for name, found in values.items()
        },
        written=sum(part.written for part in parts),
        dropped=sum(part.dropped for part in parts),
        removed=sum(part.removed for part in parts),
        files=tuple(file for part in parts for file in part.files),
        gaps=tuple(gap for part in parts for gap in part.gaps),
    )


def save_run(directory: Path, run: Run) -> None:
    """Write `run.json` so that a reader finds either the old one or the new one."""
    make_private_folder(directory, (RUN_FILE,))
    make_private_folder(directory / TRACES)
    write_private_file(directory / RUN_FILE, msgspec.json.format(msgspec.json.encode(run)) + b"\n")


def load_run(directory: Path) -> Run:
    path = directory / RUN_FILE
    try:
        if path.stat().st_size > LARGEST_RUN_FILE:
            raise RunError(f"{path} is larger than {LARGEST_RUN_FILE} bytes; it is not a run's description")
        return msgspec.json.decode(path.read_bytes(), type=Run)
    except FileNotFoundError:
        raise RunError(f"{directory} is not a run: it has no {RUN_FILE}") from None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RunError(f"{path} is not a run's description: {error}") from None


def this_machine() -> Machine:
    return Machine(
        system=platform.system(),
        release=platform.release(),
        architecture=platform.machine(),
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        python=platform.python_version(),
    )


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def clock_id() -> str:
    """Names the monotonic clock of this machine since it was started; processes on one machine share it."""
    try:
        return "boot-" + _BOOT_ID.read_text(encoding="ascii").strip()[:13]
    except OSError:
        return f"process-{os.getpid()}-{uuid4().hex[:8]}"


def software_version() -> str:
    """The version that is installed, with the commit when it runs from a checkout."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version("psph")
    except PackageNotFoundError:
        installed = "unknown"
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"],  # noqa: S607 - whichever git the developer uses
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return installed
    commit = answer.stdout.strip()
    return f"{installed}+{commit}" if answer.returncode == 0 and commit else installed
