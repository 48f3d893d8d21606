"""Programs that cannot be run inside a test, and what is looked at in their place.

make        `make -n` knows the target, and every psph command it would run is one that some page runs. The rest of
            what our targets do is this test run itself: ruff, mypy, pytest.
docker      What `docker run` starts is a command that some page runs, and so are the services of a file of `-f`.
            Every service that `docker compose up` starts is started, by its very command, by the test of the compose
            file; what `run` or `exec` names is in the file, and its psph commands are run by some page.
systemctl   The unit's program is one that the page runs; what it does for `reload` is done to that process.
wireshark   tshark reads the file with the same options.
pytest      The tests that are named are there; they run as part of the suite that runs this.
pre-commit  Its configuration is accepted, in a repository made for it.
"""

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.documents.pages import ROOT, command, commands, shown_commands
from tests.documents.runner import PageRun
from tests.gateway.containers import test_container_processes

TIMEOUT = 60


def said(words: list[str], folder: Path = ROOT) -> str:
    # A make that runs these tests would tell its own wishes to this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert done.returncode == 0, f"{words} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def must_be_run(script: str) -> None:
    """All psph commands of a script are ones that some page runs."""
    shown = shown_commands()
    for found in commands(script):
        if found.words[0] == "psph":
            assert any(found.is_part_of(one) for one in shown), f"no page runs {' '.join(found.words)}"


def make(line: str) -> str:
    words = [word for word in shlex.split(line, comments=True)[1:] if word != "&&"]
    would = said(["make", "--no-print-directory", "-n", *words])
    must_be_run(would)
    return would


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    return found


def docker(line: str) -> str:
    words = shlex.split(line, comments=True)[1:]
    if words[0] == "build":
        assert (ROOT / words[-1] / "Dockerfile").exists()
        return ""
    if words[0] == "run":
        must_be_run(" ".join(words[words.index("psph") :]))
        return ""
    assert words[0] == "compose", f"nothing stands for {line}"
    if words[1] == "-f":
        for service in yaml.safe_load((ROOT / words[2]).read_text())["services"].values():
            must_be_run(f"psph {' '.join(service['command'])}")
        return ""
    services = compose()
    if "up" in words:
        always = {name for name, service in services.items() if not service.get("profiles")}
        started = test_container_processes.ORDER
        assert always == {*started, *test_container_processes.ONCE, test_container_processes.SCRAPER}
    elif "run" in words:
        service = services[words[-1]]
        assert words[words.index("--profile") + 1] in service["profiles"]
        must_be_run(" ".join(service["command"]))
    elif "exec" in words:
        name, program, path = words[words.index("exec") + 1 :]
        assert program == "cat"
        # The file that the service of tokens writes to a volume which this one mounts.
        mounted = dict(volume.split(":")[1::-1] for volume in services[name]["volumes"])
        (volume, there) = mounted[str(Path(path).parent)], Path(path).name
        (writer,) = [one for one in services.values() if f"{volume}:/data" in one.get("volumes", [])]
        assert f"/data/{there}" in " ".join(writer["command"])
    else:
        raise AssertionError(f"nothing stands for {line}")
    return ""


def systemctl(run: PageRun, line: str) -> str:
    verb, name = shlex.split(line, comments=True)[1:]
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(ROOT / "deploy" / "systemd" / f"{name}.service")
    start = command(unit["Service"]["ExecStart"].replace("/opt/psph/bin/", ""))
    assert start is not None
    running = [one for one in run.background if " ".join(start.words) in str(one.process.args)]
    assert len(running) == 1, f"the page runs no {' '.join(start.words)}"
    what = {"reload": "ExecReload"}[verb]
    # `exec` in the shell that started it: the process is the program itself.
    said(["sh", "-c", unit["Service"][what].replace("$MAINPID", str(running[0].process.pid))])
    running[0].until("reload")
    return running[0].said


def wireshark(run: PageRun, line: str) -> str:
    found = re.sub(r"^wireshark (.*) (\S+)$", r"tshark \1 -r \2", line.partition("#")[0].strip())
    assert found.startswith("tshark")
    return run.shell(found) if shutil.which("tshark") else ""


def pytest_command(line: str) -> str:
    return said(
        [
            sys.executable,
            "-m",
            "pytest",
            "--collect-only",
            "-q",
            "-p",
            "no:cacheprovider",
            *shlex.split(line, comments=True)[1:],
        ]
    )


def pre_commit(run: PageRun, line: str) -> str:
    shutil.copy(ROOT / ".pre-commit-config.yaml", run.folder)
    return run.shell(f"git init -q .\n{line}")


STAND_INS = {
    "make": lambda _, line: make(line),
    "docker": lambda _, line: docker(line),
    "systemctl": systemctl,
    "wireshark": wireshark,
    "pytest": lambda _, line: pytest_command(line),
    ".venv/bin/pytest": lambda _, line: pytest_command(line),
    "pre-commit": pre_commit,
    ".venv/bin/pre-commit": lambda run, line: pre_commit(run, line.replace(".venv/bin/", "")),
}
IN_THE_TEXT = {"make": make, "docker": docker}
"""Those that also check commands that stand in the text."""
