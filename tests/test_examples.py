"""Every example is executed, as the programs that they are, and uses nothing but what the wheel brings."""

import ast
import asyncio
import contextlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.documents.pages import ROOT, commands_for
from tests.push_hub.harness import Publisher, atom
from tests.push_hub.world import whole_hub
from tests.waiting import until

EXAMPLES = ROOT / "examples"
PROGRAMS = {"publisher.py", "subscriber.py", "psirp_application.py", "folder_protocol.py", "flask_reader.py"}


@contextlib.asynccontextmanager
async def running(*words: str, cwd: Path = EXAMPLES) -> AsyncIterator[asyncio.subprocess.Process]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(EXAMPLES)]), "PYTHONUNBUFFERED": "1"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, cwd=cwd, env=environment, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.communicate()


async def line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), 60)).decode().rstrip("\n")


async def test_a_publisher_and_a_subscriber(tmp_path: Path) -> None:
    publishing, subscribing = commands_for(
        "tests/test_examples.py::test_a_publisher_and_a_subscriber", "examples/README.md"
    )
    async with whole_hub(tmp_path) as hub:
        publishing[2] = hub.url
        async with running(*publishing[1:]) as publisher:
            assert publisher.stdin is not None
            feed = (await line(publisher)).removeprefix("feed at ")
            subscribing[2] = feed
            async with running(*subscribing[1:]) as subscriber:
                assert await line(subscriber) == f"asked {hub.url} for {feed}"
                await until(lambda: hub.subscriptions.count(feed))
                publisher.stdin.write(b"first & foremost\n")
                assert await line(publisher) == "first & foremost: the hub answered 204"
                said = await line(subscriber)
                assert re.fullmatch(re.escape(feed) + r": \d+ bytes of application/atom\+xml(;.*)?", said)
                assert await subscriber.wait() == 0
            publisher.stdin.close()
            assert await publisher.wait() == 0


def test_an_application_of_a_network() -> None:
    ((_, *words),) = commands_for("tests/test_examples.py::test_an_application_of_a_network", "examples/README.md")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *words], cwd=EXAMPLES, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    said = done.stdout.splitlines()
    assert said[1:-1] == ["n2 got 'hello'", "n2 got 'and again'"]
    assert said[-1] == "matched: 'n0' for 'n2'"


async def test_a_protocol_of_one_s_own(tmp_path: Path) -> None:
    """With the very lines of its docstring, in a gateway that is started as its operator would."""
    publisher = await Publisher(atom(1)).start()
    text = ast.get_docstring(ast.parse((EXAMPLES / "folder_protocol.py").read_text()))
    assert text is not None
    shown = "\n".join(one.strip() for one in re.findall(r"(?m)^    (.*)$", text))
    document = tomllib.loads(shown)
    assert document["folder"]["topics"] == ["http://blog.example/feed"]
    (tmp_path / "gateway.toml").write_text(
        shown.replace("http://blog.example/feed", publisher.url())
        + '\n[hub]\nlisten = "127.0.0.1:0"\nallow_private = true\n[hub.canary]\nenabled = false\n'
        '[node]\nname = "g"\nroles = ["rendezvous", "topology"]\n'
    )
    try:
        words = ("-m", "gateway.cli.main", "gateway", "-c", "gateway.toml")
        async with running(*words, cwd=tmp_path) as gateway, aiohttp.ClientSession() as http:
            said = ""
            while (found := re.search(r"^hub at (\S+)", said)) is None:
                said = await line(gateway)
            form = {"hub.mode": "publish", "hub.url": publisher.url()}
            async with http.post(found[1], data=form) as answer:
                assert answer.status == 204
            await until(lambda: [one.read_bytes() for one in (tmp_path / "news").glob("*")] == [publisher.body])
    finally:
        await publisher.close()


def test_examples_use_what_the_wheel_brings() -> None:
    assert {file.name for file in EXAMPLES.glob("*.py")} == PROGRAMS
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    brought = set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    asked = {re.split(r"[^A-Za-z0-9_.-]", one)[0].lower() for one in project["project"]["dependencies"]}
    for file in EXAMPLES.glob("*.py"):
        names = {
            name.partition(".")[0]
            for node in ast.walk(ast.parse(file.read_text()))
            for name in (
                [node.module or ""] if isinstance(node, ast.ImportFrom)
                else [one.name for one in node.names] if isinstance(node, ast.Import)
                else []
            )
        }  # fmt: skip
        others = names - set(sys.stdlib_module_names) - brought - asked
        assert others <= ({"flask", "flask_websub", "werkzeug"} if file.name == "flask_reader.py" else set()), file.name


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_every_example_says_what_it_is_for(program: str) -> None:
    assert ast.get_docstring(ast.parse((EXAMPLES / program).read_text()))
