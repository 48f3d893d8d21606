"""A reader made of stock software, Flask-WebSub, in domain A; a feed in domain B that names the hub of domain B.

Nothing but the address that the reader is given says that there is a gateway A.
"""

import asyncio
import contextlib
import sys
from pathlib import Path

import pytest

from gateway.demo import Demo
from tests.documents.pages import ROOT, commands_for
from tests.waiting import until


async def test_a_reader_of_stock_software_uses_the_hub_of_its_own_domain(tmp_path: Path) -> None:
    pytest.importorskip("flask_websub", reason="Flask-WebSub is not installed")
    (words,) = commands_for(
        "tests/gateway/stock/test_flask_reader.py::test_a_reader_of_stock_software_uses_the_hub_of_its_own_domain",
        "docs/readers.md",
    )
    async with Demo(tmp_path, lambda _: None) as demo:
        link = f"{demo.gateway_a.hub.url}feeds/{demo.topic}"
        words = [sys.executable, *(link if "/feeds/" in word else word for word in words[1:])]
        reader = await asyncio.create_subprocess_exec(
            *words, cwd=ROOT, env={"PYTHONUNBUFFERED": "1", "PATH": "", "no_proxy": "*"},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert reader.stdout is not None
        try:
            async with asyncio.timeout(60):
                said = (await reader.stdout.readline()).decode()
                # The feed names the hub of domain B; what the reader was given names that of its own domain.
                assert said == f"subscribing to {demo.topic} at {demo.gateway_a.hub.url}\n"
                # The demonstration's own reader is one.
                await until(lambda: demo.gateway_a.hub.subscriptions.count(demo.topic) == 2)
                number = await demo.write()
                said = (await reader.stdout.readline()).decode()
                assert said.startswith("pushed:") and str(number) in said
                assert await reader.wait() == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                reader.kill()
            await reader.wait()
