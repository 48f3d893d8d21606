"""The examples of docs/rest.md, run as they are printed by the shell, and its table against the code."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import which

import msgspec
import pytest

from gateway.protocols.rest.adapter import RestConfig
from gateway.protocols.rest.protocol import RestSection
from gateway.web.section import WebSection
from tests.gateway.web_world import PATIENCE, World, started_world

TEXT = (Path(__file__).parents[3] / "docs" / "rest.md").read_text()
EXAMPLES = re.findall(r"```sh[^\n]*\n(.*?)```", TEXT, re.DOTALL)
ANSWERS = re.findall(r"```(?:text|json)\n(.*?)```", TEXT, re.DOTALL)
ORIGIN = re.compile(r"[0-9a-f]{32}:\d+")

pytestmark = pytest.mark.skipif(which("curl") is None, reason="needs curl (Debian package curl)")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with started_world(tmp_path) as world:
        yield world


def example(words: str) -> str:
    found = [one for one in EXAMPLES if words in one]
    assert len(found) == 1, (words, found)
    return str(found[0])


def plain(text: str) -> str:
    """Without what differs from run to run."""
    return re.sub(r'"published_ms":\d+', '"published_ms":0', ORIGIN.sub("ORIGIN", text)).strip()


class Shell:
    """Runs examples in a folder of their own, with what the document says is set."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self._folder = folder
        self._variables = variables

    async def _start(self, script: str, **more: str) -> asyncio.subprocess.Process:
        names = {"PATH": "/usr/bin:/bin", **self._variables, **more}
        # In the place of the shell, so that ending the process ends curl.
        return await asyncio.create_subprocess_exec(
            "bash", "-c", script, cwd=self._folder, env=names, stdout=asyncio.subprocess.PIPE
        )

    async def run(self, script: str, **more: str) -> str:
        process = await self._start(script, **more)
        async with asyncio.timeout(PATIENCE):
            said, _ = await process.communicate()
        assert process.returncode == 0
        return said.decode()

    @asynccontextmanager
    async def following(self, script: str, **more: str) -> AsyncIterator[asyncio.StreamReader]:
        process = await self._start(f"exec {script}", **more)
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.terminate()
            await process.communicate()


async def lines(output: asyncio.StreamReader, number: int) -> str:
    async with asyncio.timeout(PATIENCE):
        return b"".join([await output.readline() for _ in range(number)]).decode()


async def test_the_examples_do_what_they_say(world: World, tmp_path: Path) -> None:
    read, write = example('-sN "$GATEWAY'), example("Sunny")
    async with world.domain("n0", "a") as a, world.domain("n2", "b") as b:
        here, there = (Shell(tmp_path, GATEWAY=one.web.url.rstrip("/")) for one in (a, b))
        async with here.following(read) as reading:
            first = await lines(reading, 2)
            answer = await there.run(write)
            assert plain(answer) == plain(ANSWERS[0])
            seen = first + await lines(reading, 2)
            assert plain(seen) == plain(ANSWERS[1])
            origin = json.loads(answer)["origin"]
            assert f"id: {origin}\n" in seen
            await there.run(example("picture.png"))
            picture = await lines(reading, 3)
            assert '"type":"image/png"' in picture
            assert '"base64":"' in picture
        async with here.following(example("Last-Event-ID"), LAST=origin) as again:
            assert picture.strip() in await lines(again, 5)
        assert await here.run(example('curl -s "$GATEWAY/topics"')) == ANSWERS[2]


async def test_the_example_with_a_token(world: World, tmp_path: Path) -> None:
    async with world.domain("n0", "a", streams=RestConfig(tokens=("secret",))) as a:
        shell = Shell(tmp_path, GATEWAY=a.web.url.rstrip("/"))
        assert json.loads(await shell.run(example("Bearer"), TOKEN="secret"))["name"] == "http://news.example/weather"
        assert await shell.run(example("Bearer"), TOKEN="wrong") == "this token may not publish here\n"
        assert "needs a token" in await shell.run(example("Sunny"))


def test_every_key_is_explained_with_its_default() -> None:
    table = TEXT[TEXT.index("## Configuration") :]
    for field in (*msgspec.structs.fields(WebSection), *msgspec.structs.fields(RestSection)):
        [row] = [line for line in table.splitlines() if f"`{field.name}`" in line.partition("|")[2].partition("|")[0]]
        if isinstance(field.default, int | float) and not isinstance(field.default, bool):
            assert re.search(
                rf"\b{field.default:g}\b|\b{int(field.default)}\b", row.rpartition("|")[0].rpartition("|")[2]
            )
