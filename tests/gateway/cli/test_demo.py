"""The demonstration shows what it says it shows."""

import asyncio
import re
from pathlib import Path

import pytest
from aiohttp import ClientSession

from gateway.cli.main import main
from gateway.demo import Demo, DemoArrival
from tests.waiting import until


async def test_entries_of_the_blog_reach_the_reader_in_the_other_domain(tmp_path: Path) -> None:
    arrivals: list[DemoArrival] = []
    async with asyncio.timeout(60), Demo(tmp_path, arrivals.append) as demo:
        for _ in range(3):
            await demo.arrival(await demo.write())
        assert [arrival.number for arrival in arrivals] == [1, 2, 3]
        assert all(arrival.delay > 0 for arrival in arrivals)
        assert demo.summary.arrived == demo.summary.written == 3
        assert demo.summary.repeated == demo.summary.refused == 0
        # They went through the network: the two hubs know nothing of each other.
        assert demo.gateway_a.hub.url != demo.gateway_b.hub.url
        assert demo.gateway_b.hub.subscriptions.count(demo.topic) == 0
    assert demo.summary.lines()[0].startswith("3 written, 3 crossed")


async def test_readings_of_a_sensor_are_a_feed_in_the_other_domain(tmp_path: Path) -> None:
    async with asyncio.timeout(60), Demo(tmp_path, lambda _: None) as demo, ClientSession() as http:

        async def shown() -> bool:
            async with http.get(demo.readings) as answer:
                return answer.status == 200 and "20.2 degrees" in await answer.text()

        for _ in range(2):
            await demo.write()
        await until(shown)


def test_the_command_says_where_the_chat_pages_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--seconds", "3", "--every", "0.5", "--data", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    pages = re.findall(r"^domain ([AB]), chat +http://127\.0\.0\.1:(\d+)/chat/$", said, re.MULTILINE)
    assert [domain for domain, _ in pages] == ["B", "A"]
    assert len({port for _, port in pages}) == 2
    assert "bob@b.example" in said


def test_a_wrong_option_is_one_line() -> None:
    assert main(["demo", "--every", "0"]) == 2
    assert main(["demo", "--seconds", "-1"]) == 2
