"""The walk through docs/gateway.md works as it is written; only the ports are others."""

import asyncio
import re
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from perf.crash.gateway_process import Part, free_ports
from tests.gateway.stock_subscriber import StockPublisher

DOCUMENT = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text()
FILES = ("gate-a.toml", "gate-b.toml", "core.toml")
PORTS = ("4001", "4002", "4003", "4004", "8081", "8082", "8000")
PATIENCE = 60.0


def block(name: str) -> str:
    """The indented lines after a file's name."""
    after = DOCUMENT.split(f"`{name}`\n\n", 1)[1]
    lines = []
    for line in after.splitlines():
        if line and not line.startswith("    "):
            break
        lines.append(line.removeprefix("    "))
    return "\n".join(lines)


def commands(word: str) -> list[str]:
    return [line.strip().removesuffix(" &") for line in DOCUMENT.splitlines() if line.startswith(f"    {word} ")]


async def run(folder: Path, command: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway.cli.main", *command.split()[1:]), cwd=folder, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(PATIENCE):
        out, _ = await process.communicate()
    return process.returncode, out.decode()


async def test_the_walk_through_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", str(repository))
    async with AsyncExitStack() as stack:
        publisher = await stack.enter_async_context(StockPublisher(b"first news\n", "text/plain"))
        free = [str(port) for port in free_ports("127.0.0.1", len(PORTS) - 1)]
        instead = dict(zip(PORTS, [*free, str(publisher.site.port)], strict=True))

        def others(text: str) -> str:
            text = re.sub(r":(\d{4})\b", lambda found: f":{instead.get(found[1], found[1])}", text)
            return text.replace(f":{publisher.site.port}/news.txt", f":{publisher.site.port}/feed")

        for name in FILES:
            (tmp_path / name).write_text(others(block(name)))
        starting = [*commands("psph node"), *commands("psph gateway")]
        assert len(starting) == len(FILES)
        for command in starting:
            *words, file = command.split()[1:]
            part = Part(file, [*words, str(tmp_path / file)])
            stack.push_async_callback(part.end)
            await part.start()
            await part.ready()
        (subscribe,), (publish,) = commands("psph push subscribe"), commands("psph push publish")
        publisher.hub = "http://127.0.0.1:9/"
        reading = asyncio.create_task(run(tmp_path, others(subscribe)))
        assert (await run(tmp_path, others(publish)))[0] == 0
        code, said = await reading
        assert (code, said.strip()) == (0, "first news")
        (explain,) = commands("psph explain")
        code, said = await run(tmp_path, others(explain))
        assert code in (0, 1)  # the subscriber has left after its one publication
        assert "gate-b" in said
