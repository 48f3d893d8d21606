"""What is in flight at the end of a load is what gateways still have to do, by their stores; the rest is missing."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from exchange.sqlite import EXCHANGE_TABLES
from perf.bench.ingest_load import OfferedStep, document
from perf.bench.ingest_stores import stores_below, waiting_in
from perf.bench.predict import LoadedRun
from perf.pipeline.predictions import RunPrediction
from push_hub.schema import HUB_TABLES
from storage import Database

TOPIC, OTHER = "http://origin.example/1", "http://origin.example/2"
ITEM = b"i" * 64


@pytest.fixture
def gateway(tmp_path: Path) -> Path:
    """With the tables of a gateway: publication 1 is delivered, and the network's session has taken all so far."""
    folder = tmp_path / "gate-a"
    (folder / "hub").mkdir(parents=True)
    Database.open(folder / "hub" / "hub.sqlite", HUB_TABLES).close()
    Database.open(folder / "gateway.sqlite", EXCHANGE_TABLES).close()
    publish(folder, 1)
    log(folder, 1)
    change(folder / "gateway.sqlite", "INSERT INTO exchange_sessions VALUES ('psirp', '', 'live', 1, 0)")
    change(
        folder / "gateway.sqlite",
        "INSERT INTO exchange_interests (reader, who, name, item, place, until, convert)"
        " VALUES ('psirp', '', '*', x'', '', 0, '')",
    )
    return folder


def change(store: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(store)) as database, database:
        database.execute(statement, values)


def publish(gateway: Path, number: int) -> None:
    change(
        gateway / "hub" / "hub.sqlite",
        "INSERT INTO publications (id, topic, self_url, content_type, body, accepted_at) VALUES (?, ?, '', '', ?, 0)",
        number, TOPIC, document(number, 400),
    )  # fmt: skip


def log(gateway: Path, number: int) -> None:
    change(
        gateway / "gateway.sqlite",
        "INSERT INTO exchange_log (position, item, gateway, number, via, name, profile, content_type, attributes,"
        " known, digest, published_ms, deadline_ms, appended_ms, body)"
        " VALUES (?1, ?2, x'', ?1, 'websub', '', '', '', '', x'', x'', 0, 0, 0, ?3)",
        number, ITEM, document(number, 400),
    )  # fmt: skip


def test_what_was_taken_by_every_session_is_not_in_flight(gateway: Path) -> None:
    assert stores_below(gateway.parent) == [gateway]
    assert waiting_in([gateway], {1: TOPIC, 9: TOPIC}) == set()


def test_what_is_to_be_fetched_passed_on_or_delivered_is_in_flight(gateway: Path) -> None:
    publish(gateway, 2)  # it is not in the log yet
    publish(gateway, 3)
    log(gateway, 3)  # the session has not taken it
    change(gateway / "hub" / "hub.sqlite", "INSERT INTO fanouts (publication, position) VALUES (1, 0)")
    change(gateway / "hub" / "hub.sqlite", "INSERT INTO pings VALUES (?, 0)", OTHER)
    asked = {1: TOPIC, 2: TOPIC, 3: TOPIC, 4: OTHER, 9: TOPIC}
    assert waiting_in([gateway], asked) == {1, 2, 3, 4}
    assert waiting_in([gateway], {3: TOPIC}) == {3}, "only what is asked about"
    change(
        gateway / "gateway.sqlite",
        "INSERT INTO exchange_cursors (reader, who, item, position) VALUES ('psirp', '', ?, 3)",
        ITEM,
    )
    assert waiting_in([gateway], asked) == {1, 2, 4}


def test_a_publication_that_nobody_knows_of_unbalances_the_ledger() -> None:
    step = OfferedStep(10.0, 1.0, offered=6, accepted=5, refused=1, delays=[(0.0, 0.1)] * 3, superseded=1)
    step.turned_away = {6}
    step.left = {5: TOPIC}
    traces = RunPrediction("r", (), None, 3, 3, None, (), (), 0)
    lost = LoadedRun(0.5, step, traces, in_flight=0)
    assert not lost.ledger.balanced
    assert lost.unaccounted > 0
    traces = RunPrediction("r", (), None, 4, 3, None, (), (), 0)
    under_way = LoadedRun(0.5, step, traces, in_flight=1)
    assert under_way.ledger.balanced
    assert under_way.unaccounted == 0
