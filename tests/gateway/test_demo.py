"""The demonstration shows what it says it shows."""

import asyncio
from pathlib import Path

from gateway.cli.main import main
from gateway.demo import Arrival, Demo


async def test_entries_of_the_blog_reach_the_reader_in_the_other_domain(tmp_path: Path) -> None:
    arrivals: list[Arrival] = []
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


def test_a_wrong_option_is_one_line() -> None:
    assert main(["demo", "--every", "0"]) == 2
    assert main(["demo", "--seconds", "-1"]) == 2
