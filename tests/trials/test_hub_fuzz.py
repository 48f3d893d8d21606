"""A short run of the hub's fuzzer (`psph fuzz hub` is the long one), and that the fuzzer would notice."""

import itertools
from pathlib import Path

import pytest

from push_hub.protocol.requests import RequestError
from push_hub.server import HubServer
from trials.fuzz.hub import fuzz_hub, hostile_requests

REQUESTS = 1_500


async def test_nothing_but_refusals_comes_of_hostile_requests(tmp_path: Path) -> None:
    report = await fuzz_hub(tmp_path, REQUESTS, seed=1)
    assert report.failures == []
    assert report.stored_wrongly == []
    assert report.memory_flat
    assert report.passed
    assert report.requests == REQUESTS
    # The run is worth something only when it gets through to every kind of answer.
    assert {"202", "204", "400", "401", "404", "405", "413", "415"} <= set(report.outcomes)


async def test_a_server_that_breaks_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(HubServer, "_take_ping", broken)
    report = await fuzz_hub(tmp_path, 150, seed=2)
    assert not report.passed
    assert {failure.reason for failure in report.failures} == {"answered 500"}


async def test_a_row_of_a_refused_request_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = HubServer._take_ping

    async def stores_then_refuses(self: HubServer, asked: object, client: str) -> object:
        await taken(self, asked, client)  # type: ignore[arg-type]
        raise RequestError("no")

    monkeypatch.setattr(HubServer, "_take_ping", stores_then_refuses)
    report = await fuzz_hub(tmp_path, 150, seed=2)
    assert report.stored_wrongly
    assert not report.passed


def test_a_seed_gives_the_same_requests_again() -> None:
    first, second, other = (list(itertools.islice(hostile_requests(seed), 50)) for seed in (1, 1, 2))
    assert first == second != other
