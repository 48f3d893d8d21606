"""kill -9 and full disks: what a hub acknowledged is there afterwards. The long run is `psph crash hub`."""

import asyncio
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlencode

import pytest
import uvloop
from aiohttp import web
from aiohttp.test_utils import TestServer

from perf.hub_process import OPERATOR_TOKEN, HubProcess
from perf.loopback import LoopbackClient, LoopbackRequest, Reply, Server, answer
from perf.numbered_feed import document, number_in
from push_hub.delivery import Delivery
from push_hub.diagnostics import Diagnostics, DiagnosticsConfig
from push_hub.hub import DATABASE_NAME, TABLES
from push_hub.intake import Intake, IntakeConfig
from push_hub.model import Content, Dialect, HubPublication, HubSubscription
from push_hub.protocol.numbers import Mode
from push_hub.protocol.verification import Intent
from push_hub.server import ServerConfig, gate_config
from push_hub.subscriptions import Change, Subscriptions
from serving.gate import Gate
from storage import Database, StorageFullError, Transaction
from tests.push_hub.delivery.delivery_support import (
    OK,
    TOPIC,
    CallbackServer,
    TableSubscribers,
    loopback_client,
    open_database,
    quick_config,
    status,
    subscribe,
)
from tests.push_hub.intake.fetcher import WantedElsewhere
from tests.waiting import until
from trials.crash.driver import CrashTest, choose, look
from trials.crash.ledger import SUBSCRIBE, UNSUBSCRIBE, CrashLedger
from trials.crash.snapshot import open_work
from trials.crash.stored import Pair, StoredPublication, StoreSnapshot
from trials.crash.world import Moment, Size

KILLS = 6
PATIENCE = 30.0
PAIR: Pair = ("http://publisher.example/", "http://callback.example/")
NOTHING = StoreSnapshot("ok", {}, {}, set(), set(), [], {}, set(), [])
ADD_RETRY = "INSERT INTO retries (subscription, publication, attempts, next_try_at, reason) VALUES"


def silent(_label: str, _steps: float = 1) -> None:
    pass


# The whole: real processes


def test_kill_minus_nine_at_spread_moments_loses_nothing_acknowledged() -> None:
    report = uvloop.run(CrashTest(KILLS, 3, Size(topics=4, callbacks=8, wide=80, brought=1), silent).run())
    assert report.passed, "\n".join(report.examples)
    assert report.kills == KILLS
    assert report.counts.snapshots == KILLS + 1
    assert report.counts.subscribed
    # Whether one of those with content is answered between two of so few kills is a matter of the machine's speed.
    assert report.counts.pings > report.counts.fat_pings
    assert report.counts.delivered > report.active_at_end > 0


def test_kills_are_aimed_at_everything_a_hub_does_and_the_seed_repeats_them() -> None:
    plans = [choose(random.Random(f"0 {n}"), 2500) for n in range(200)]
    assert plans == [choose(random.Random(f"0 {n}"), 2500) for n in range(200)]
    assert {plan.moment for plan in plans} == {None, *Moment}
    assert sum(plan.while_starting is not None for plan in plans) >= 5
    assert sum(plan.delay is not None for plan in plans) >= 20
    assert {plan.after_answer for plan in plans if plan.moment} == {True, False}


# The judge: it must be able to say no


def ledger_with(number: int = 0) -> CrashLedger:
    return CrashLedger({PAIR[0]: [PAIR]}, {PAIR[0]: number})


def subscribed(ledger: CrashLedger, active_since: float | None = 1.0) -> CrashLedger:
    ledger.asking(PAIR, SUBSCRIBE)
    ledger.acknowledged(PAIR, SUBSCRIBE)
    if active_since is not None:
        ledger.seen(PAIR, True, active_since)
    return ledger


def stored(**changes: object) -> StoreSnapshot:
    fields = {name: getattr(NOTHING, name) for name in StoreSnapshot.__slots__} | {"subscriptions": {PAIR: 7}}
    return StoreSnapshot(**(fields | changes))


def test_an_acknowledged_subscription_must_be_stored_or_waiting() -> None:
    for snapshot, problems in (
        (NOTHING, {"a subscription is lost": 1}),
        (stored(subscriptions={}, waiting={PAIR: SUBSCRIBE}), {}),
        (stored(), {}),
    ):
        ledger = subscribed(ledger_with(), None)
        ledger.check(snapshot, 2.0)
        assert dict(ledger.problems) == problems


def test_an_active_subscription_must_stay_stored() -> None:
    ledger = subscribed(ledger_with())
    ledger.check(stored(subscriptions={}, waiting={PAIR: SUBSCRIBE}), 2.0)
    assert dict(ledger.problems) == {"a subscription is lost": 1}


def test_an_ended_subscription_must_not_come_back() -> None:
    ledger = subscribed(ledger_with())
    ledger.asking(PAIR, UNSUBSCRIBE)
    ledger.acknowledged(PAIR, UNSUBSCRIBE)
    ledger.check(stored(waiting={PAIR: UNSUBSCRIBE}), 2.0)
    assert not ledger.problems
    ledger.check(NOTHING, 3.0)
    assert not ledger.problems
    ledger.attempted(PAIR, 1, 0)
    ledger.check(stored(), 4.0)
    assert ledger.problems["an ended subscription came back"] == 3


def test_a_request_without_an_answer_may_have_been_taken_or_not() -> None:
    for snapshot, wanted in ((NOTHING, UNSUBSCRIBE), (stored(), SUBSCRIBE)):
        ledger = ledger_with()
        ledger.asking(PAIR, SUBSCRIBE)
        ledger.check(snapshot, 2.0)
        assert not ledger.problems
        assert ledger.accounts[PAIR].wanted == wanted


def test_an_acknowledged_ping_must_be_stored_or_published() -> None:
    publication = StoredPublication(1, PAIR[0], document(3), 5.0)
    for snapshot, lost in (
        (NOTHING, 1),
        (stored(subscriptions={}, pings={PAIR[0]}), 0),
        (stored(subscriptions={}, unwanted={PAIR[0]}), 0),
        (stored(subscriptions={}, publications=[publication]), 0),
        (stored(subscriptions={}, publications=[StoredPublication(1, PAIR[0], document(2), 5.0)]), 1),
    ):
        ledger = ledger_with(3)
        ledger.ping_acknowledged(PAIR[0], 3, 4.0)
        ledger.check(snapshot, 6.0)
        assert ledger.problems["a ping is lost"] == lost


def test_a_ping_that_nobody_wanted_must_count_in_the_end_when_somebody_is_subscribed() -> None:
    for snapshot, lost in ((stored(subscriptions={}, unwanted={PAIR[0]}), 0), (stored(unwanted={PAIR[0]}), 1)):
        ledger = ledger_with(3)
        ledger.ping_acknowledged(PAIR[0], 3, 4.0)
        ledger.asking(PAIR, SUBSCRIBE)
        ledger.check_end(snapshot, 6.0)
        assert ledger.problems["a ping is lost"] == lost


def test_a_publication_must_have_arrived_or_be_owed() -> None:
    publication = StoredPublication(1, PAIR[0], document(3), 5.0)
    for snapshot, lost in (
        (stored(publications=[publication]), 1),
        (stored(publications=[publication], owed={(7, 1)}), 0),
        (stored(publications=[publication], fanouts={1: 6}), 0),
        (stored(publications=[publication], fanouts={1: 7}), 1),
    ):
        ledger = subscribed(ledger_with(3))
        ledger.check(snapshot, 6.0)
        assert ledger.problems["a delivery is lost"] == lost
    ledger = subscribed(ledger_with(3))
    ledger.attempted(PAIR, 3, 0)
    ledger.arrived(PAIR, 3, 0)
    ledger.check(stored(publications=[publication]), 6.0)
    assert not ledger.problems


def test_what_is_owed_at_the_end_is_lost() -> None:
    ledger = subscribed(ledger_with(3))
    ledger.ping_acknowledged(PAIR[0], 3, 4.0)
    publication = StoredPublication(1, PAIR[0], document(3), 5.0)
    ledger.check_end(stored(publications=[publication], owed={(7, 1)}), 6.0)
    assert dict(ledger.problems) == {
        "not finished after the quiet time": 1,
        "a delivery is lost": 1,
        "a ping is lost": 1,
    }


def test_order_and_repeats_are_judged_by_the_life_of_the_hub() -> None:
    def deliver(*deliveries: tuple[int, int], changed_at: float = 2.0) -> CrashLedger:
        ledger = subscribed(ledger_with(9))
        for number in (1, 2, 3):
            ledger.changed(PAIR[0], number, changed_at)
        for number, life in deliveries:
            ledger.attempted(PAIR, number, life)
            ledger.arrived(PAIR, number, life)
        return ledger

    repeated = deliver((1, 0), (2, 0), (1, 1), (2, 1), (3, 1))
    assert not repeated.problems
    assert repeated.counts.duplicates == 2
    assert repeated.duplicates_after_kill == {1: 2}
    assert deliver((2, 0), (1, 0)).problems["out of order"]
    assert deliver((2, 0), (1, 1)).problems["out of order"]
    assert not deliver((2, 0), (1, 1), changed_at=0.5).problems  # subscribed only after the topic had said that
    assert deliver((1, 0), (1, 0)).problems["repeated without a crash"] == 1


def test_a_damaged_store_and_dead_letters_are_problems() -> None:
    ledger = ledger_with()
    ledger.check(StoreSnapshot("page 3 is broken", {}, {}, set(), set(), [], {}, set(), [PAIR]), 1.0)
    assert dict(ledger.problems) == {"the store is damaged": 1, "given up": 1}


def test_documents_tell_their_number() -> None:
    assert [number_in(document(n)) for n in (0, 1, 9, 10, 123)] == [0, 1, 9, 10, 123]
    assert number_in(b"something else") == 0


# What the crash test found


def test_a_retry_comes_due_without_any_other_event(tmp_path: Path) -> None:
    """uvloop fires timers up to a millisecond early; that once left the next retry without a timer."""

    async def run() -> int:
        refused = False
        taken = 0

        def answer_once_with_503(_path: str, _headers: dict[str, str], _body: bytes) -> bytes:
            nonlocal refused, taken
            if not refused:
                refused = True
                return status(503)
            refused = False
            taken += 1
            return OK

        async with CallbackServer(answer_once_with_503) as server:
            with open_database(tmp_path) as database:
                subscribe(database, [server.url("/")])
                client = loopback_client()
                delivery = Delivery(database, TableSubscribers(database), client, quick_config(), time.time)
                await delivery.start()
                for number in range(20):
                    await delivery.accept(TOPIC, TOPIC, Content("text/plain", b"%d" % number))
                    await server.received(2 * (number + 1))
                await delivery.stop()
                await client.close()
        return taken

    async def bounded() -> int:
        return await asyncio.wait_for(run(), PATIENCE)

    assert uvloop.run(bounded()) == 20


@pytest.mark.parametrize("reason", ["no answer yet", "waiting for room at its host"])
async def test_what_a_dead_process_waited_for_is_due_at_the_next_start(tmp_path: Path, reason: str) -> None:
    async with CallbackServer(lambda *_: OK) as server:
        with open_database(tmp_path) as database:
            subscribe(database, [server.url("/")])
            client = loopback_client()
            first = Delivery(database, TableSubscribers(database), client, quick_config(), time.time)
            publication = await first.accept(TOPIC, TOPIC, Content("text/plain", b"one"))

            database.write(lambda tx: tx.execute("DELETE FROM fanouts")).result()
            row = (publication.id, time.time() + 3600, reason)
            database.write(lambda tx: tx.execute(f"{ADD_RETRY} (1, ?, 0, ?, ?)", row)).result()
            second = Delivery(database, TableSubscribers(database), client, quick_config(), time.time)
            await second.start()
            await asyncio.wait_for(server.received(1), PATIENCE)
            await second.stop()
            await client.close()


async def test_a_start_tells_the_walk_who_has_a_row(tmp_path: Path) -> None:
    """The row may be settled before the walk gets there: it was then delivered a second time."""
    async with CallbackServer() as server:
        with open_database(tmp_path) as database:
            subscribe(database, [server.url(f"/{n}") for n in range(6)])
            client = loopback_client()
            config = quick_config(page=1, chunk=1, in_flight=1)  # the walk comes to the last long after its row
            accepting = Delivery(database, TableSubscribers(database), client, config, time.time)
            publication = await accepting.accept(TOPIC, TOPIC, Content("text/plain", b"one"))
            row = (publication.id, time.time() - 1)
            database.write(lambda tx: tx.execute(f"{ADD_RETRY} (6, ?, 1, ?, 'failed')", row)).result()
            delivery = Delivery(database, TableSubscribers(database), client, config, time.time)
            await delivery.start()
            await until(lambda: database.read("SELECT count(*) FROM fanouts") == [(0,)])
            await delivery.stop()
            await client.close()
    assert sorted(path for path, _, _ in server.requests) == [f"/{n}" for n in range(6)]


async def test_diagnostics_never_show_a_settled_check_as_without_effect(tmp_path: Path) -> None:
    """The check is confirmed between the two reads that an answer is made of."""
    settled: list[Change | None] = []

    class Racing(Subscriptions):
        def find(self, topic: str, callback: str, now: float) -> HubSubscription | None:
            found = super().find(topic, callback, now)
            waiting = self.pending_for(topic, callback)
            assert waiting is not None
            confirming = self.confirm(waiting.row, waiting.intent, now, 600, now)
            with ThreadPoolExecutor() as elsewhere:
                settled.append(elsewhere.submit(asyncio.run, confirming).result())
            return found

    with Database.open(tmp_path / "hub.db", TABLES) as database:
        subscriptions = Racing(database)
        await subscriptions.enqueue(Intent(Mode.SUBSCRIBE, *PAIR, Dialect.WEBSUB, 1.0, "nonce"), 1.0)
        delivery = Delivery(database, subscriptions, loopback_client(), quick_config(), time.time)
        gate = Gate(gate_config(ServerConfig()), time.monotonic, None)
        app = web.Application()
        config = DiagnosticsConfig(operator_token=OPERATOR_TOKEN)
        Diagnostics(config, database, subscriptions, delivery, gate).add_routes(app)
        async with TestServer(app) as server:
            client = LoopbackClient(str(server.make_url("/")))
            shown = await look(client, PAIR)
            client.close()
    assert settled == [Change(PAIR[0], 1)]
    assert shown is not None
    assert not shown.settled


async def test_a_ping_is_not_given_up_because_the_store_is_full(tmp_path: Path) -> None:
    class FullSink:
        tries = 0

        async def accept(
            self, topic: str, self_url: str, content: Content, along: Callable[[Transaction], None] | None = None
        ) -> HubPublication:
            self.tries += 1
            if self.tries <= 8:
                raise StorageFullError("no space left")
            if along is not None:
                await database.transact(along)
            return HubPublication(1, topic, self_url, content, 0.0)

    def serve(_request: LoopbackRequest, reply: Reply) -> None:
        reply(answer(200, document(1), {"Content-Type": "application/atom+xml"}))

    sink = FullSink()
    async with Server(serve) as publisher:
        with Database.open(tmp_path / "hub.db", TABLES) as database:
            client = loopback_client()
            config = IntakeConfig(max_attempts=3, retry_base=0.001, retry_cap=0.002)
            intake = Intake(database, client, sink, config, time.time, elsewhere=WantedElsewhere())
            await intake.start()
            await intake.ping([publisher.url("/")])
            await until(lambda: database.read("SELECT count(*) FROM pings") == [(0,)])
            await intake.stop()
            await client.close()
    assert sink.tries == 9


# A full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MiB of its own."""
    mount, unmount = shutil.which("mount"), shutil.which("umount")
    if os.geteuid() != 0 or mount is None or unmount is None:
        pytest.skip("making a small disk needs root and mount(8)")
    folder = tmp_path / "disk"
    folder.mkdir()
    command = [mount, "-t", "tmpfs", "-o", "size=2m", "psph-test", str(folder)]
    made = subprocess.run(command, check=False, capture_output=True)
    if made.returncode != 0:
        pytest.skip(f"this machine does not let a test mount a tmpfs: {made.stderr.decode().strip()}")
    yield folder
    subprocess.run([unmount, "-l", str(folder)], check=True)


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space left"):
        while True:
            filler.write(b"x" * 4096)


class Surroundings:
    """A topic that can be made to wait with its answer, and a callback."""

    def __init__(self) -> None:
        self.number = 1
        self.held: list[Callable[[], None]] | None = None
        self.received: list[int] = []
        self.server = Server(self._handle)

    def _handle(self, request: LoopbackRequest, reply: Reply) -> None:
        if request.method == "POST":
            self.received.append(number_in(request.body))
            reply(answer(204))
        elif "hub.challenge" in request.target:
            reply(answer(200, request.target.rpartition("hub.challenge=")[2].partition("&")[0].encode()))
        else:
            number = self.number if request.target == "/topic" else 1

            def serve() -> None:
                reply(answer(200, document(number), {"Content-Type": "application/atom+xml"}))

            if self.held is None:
                serve()
            else:
                self.held.append(serve)


async def ping(client: LoopbackClient, *topics: str) -> int:
    form = urlencode([("hub.mode", "publish"), *(("hub.url", topic) for topic in topics)])
    return (await client.post_form("/", form))[0]


async def test_a_full_disk_refuses_what_is_new_and_loses_nothing_that_was_taken(small_disk: Path) -> None:
    around = Surroundings()
    async with around.server as server:
        topic, callback = server.url("/topic"), server.url("/callback")
        hub = await HubProcess.start(small_disk / "hub")
        try:
            assert await hub.listening()
            client = LoopbackClient(hub.url)
            asked = urlencode({"hub.mode": "subscribe", "hub.topic": topic, "hub.callback": callback})
            assert (await client.post_form("/", asked))[0] == 202
            await until(lambda: not open_work(small_disk / "hub" / DATABASE_NAME))
            assert await ping(client, topic) == 204
            await until(lambda: around.received == [1])

            # Acknowledged, and being fetched while the disk fills up.
            around.held, around.number = [], 2
            assert await ping(client, topic) == 204
            held = around.held
            await until(lambda: bool(held))
            fill(small_disk / "filler")
            answers = [await ping(client, server.url(f"/other/{n}")) for n in range(100)]
            assert answers[-1] == 503  # the store may have had a page or two left
            asked_now = urlencode({"hub.mode": "subscribe", "hub.topic": topic, "hub.callback": callback + "/2"})
            assert (await client.post_form("/", asked_now))[0] == 503
            health, said = await client.request("GET", "/health")
            assert health == 503
            assert b"no space left" in said

            # What was fetched cannot be stored; that shows by its being fetched again.
            held.pop()()
            await until(lambda: bool(held))
            around.held = None
            (small_disk / "filler").unlink()
            held.pop()()
            await until(lambda: 2 in around.received)
            around.number = 3
            assert await ping(client, topic) == 204
            await until(lambda: 3 in around.received)
            assert around.received == [1, 2, 3]
            shown = await look(client, (topic, callback))
            assert shown is not None
            assert shown.active
            client.close()
            await hub.stop(may_complain=True)
        finally:
            hub.kill()
