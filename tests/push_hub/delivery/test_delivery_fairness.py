"""Who may hold up whom: slow, new and many callbacks beside good ones, counted by where they are."""

import heapq
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from push_hub.delivery.batch import Batch
from push_hub.delivery.config import DeliveryConfig, QueueLimits
from push_hub.delivery.events import Delivered
from push_hub.delivery.queue import DeliveryQueue
from push_hub.delivery.signing import PreparedPublication
from push_hub.delivery.walks import DeliveryJob, Pace
from push_hub.model import Content, Dialect, HubPublication, HubSubscription, SignatureMethod
from serving.outbound.addresses import AddressPolicy
from serving.outbound.client import ClientConfig, OutboundClient
from tests.push_hub.delivery.delivery_support import CallbackServer, quick_config, rig, subscribe
from tests.push_hub.delivery.model_disk import ModelDisk


def subscriber(number: int, callback: str, topic: str = "t") -> HubSubscription:
    return HubSubscription(number, topic, callback, None, SignatureMethod.SHA1, Dialect.WEBSUB, 1e15)


class Simulation:
    """A queue, callbacks that take as long as they are told, a disk that takes `disk` seconds, and time that is made
    up: what a delivery waits for is the queue's doing alone."""

    def __init__(self, limits: QueueLimits, prefixes: dict[str, str] | None = None, disk: float = 0.005) -> None:
        prefix_of = (lambda name: (prefixes or {}).get(name, name)) if prefixes is not None else None
        self.limits = limits
        self.queue = DeliveryQueue(DeliveryConfig("http://hub/", limits), random.Random(3), prefix_of)
        self.now = 1000.0
        self.disk = disk
        self.rows = ModelDisk()
        self.people: dict[str, Sequence[HubSubscription]] = {}
        self.by_number: dict[int, HubSubscription] = {}
        self.takes: dict[int, float] = {}
        self.arrived: dict[tuple[int, int], float] = {}
        self.parcels: dict[int, PreparedPublication] = {}
        self.most: Counter[tuple[str, Pace]] = Counter()
        self._ends: list[tuple[float, int, DeliveryJob]] = []
        self._saving: tuple[float, Batch] | None = None
        self._number = 0

    def publish(self, number: int, topic: str) -> None:
        self.parcels[number] = PreparedPublication(
            HubPublication(number, topic, topic, Content("t/p", b""), self.now), "http://hub/", frozenset()
        )
        self.by_number.update({one.id: one for one in self.people[topic]})
        self.queue.add_walk(number, topic, 0)

    def step(self) -> None:
        queue, now = self.queue, self.now
        due = queue.next_tick()
        if due is not None and due <= now:
            queue.tick(now)
        self._start(queue.take(now))
        while (walk := queue.wants_page(now)) is not None:
            walk.parcel = self.parcels[walk.publication]
            after, page = walk.position, self.limits.page
            queue.add_page(walk, [one for one in self.people[walk.topic] if one.id > after][:page], now)
            self._start(queue.take(now))
        for job in queue.displaced():
            queue.failed(job, "cut", now, retry_after=0, reached=None, final=False)
        while self._ends and self._ends[0][0] <= now:
            at, _, job = heapq.heappop(self._ends)
            self.arrived[job.parcel.id, job.subscription.id] = at
            for left, *_ in queue.delivered_at_once([(job, 200, 0, None)]):
                queue.delivered(left, 200, now)
        self._offer_rows()
        if self._saving is None and queue.wants_saving:
            self._saving = (now + self.disk, queue.take_batch())
        elif self._saving is not None and self._saving[0] <= now:
            self.rows.apply(self._saving[1], now)
            queue.saved(self._saving[1])
            self._saving = None
        self.now += 0.001

    def until_arrived(self, publication: int, people: Sequence[HubSubscription], most: float = 60.0) -> list[float]:
        """When it arrived at each of them, in seconds from now, in order of time."""
        began = self.now
        while not all((publication, one.id) in self.arrived for one in people):
            self.step()
            assert self.now < began + most, "they wait too long"
        return sorted(self.arrived[publication, one.id] - began for one in people)

    def _offer_rows(self) -> None:
        """As the scan of the rows does it."""
        queue, rows = self.queue, self.rows.rows
        due = sorted((when, key) for key, when in rows.items() if when <= self.now)
        for key in [*queue.unparked(), *(key for _, key in due[: queue.room_for_retries()])]:
            if key in rows and key not in queue.active and queue.is_first_owed(key):
                person = self.by_number[key[0]]
                if not queue.add_retry(person, self.parcels[key[1]], 0):
                    queue.park_row(key, person.callback, 0, self.now)

    def _start(self, jobs: list[DeliveryJob]) -> None:
        for job in jobs:
            self._number += 1
            heapq.heappush(self._ends, (self.now + self.takes[job.subscription.id], self._number, job))
        flying = Counter((job.network.prefix, job.pace) for _, _, job in self._ends if job.pace is not Pace.SLOW)
        for key, count in flying.items():
            self.most[key] = max(self.most[key], count)


def p99(delays: list[float]) -> float:
    return delays[int(len(delays) * 0.99)]


def one_host(slow: int) -> tuple[list[float], list[float], Simulation]:
    """1,000 callbacks of one host, `slow` of which answer after 5 s: when the others got the first publication, which
    no callback was known at, and the next."""
    world = Simulation(QueueLimits())
    people = [subscriber(n, f"http://tenants.example/{n}") for n in range(1, 1001)]
    world.people["t"] = people
    late = {people[n * 50].id for n in range(slow)}
    world.takes = {one.id: 5.0 if one.id in late else 0.004 for one in people}
    healthy = [one for one in people if one.id not in late]
    world.publish(1, "t")
    first = world.until_arrived(1, healthy)
    world.until_arrived(1, people)
    world.publish(2, "t")
    return first, world.until_arrived(2, healthy), world


def test_slow_callbacks_of_a_host_hold_up_the_others_there_by_no_more_than_twice() -> None:
    (clean_first, clean_next, _), (first, following, _) = one_host(0), one_host(20)
    assert p99(first) <= 2 * p99(clean_first)
    assert p99(following) <= 2 * p99(clean_next)


def test_a_network_has_its_share_whatever_its_names() -> None:
    names = {f"n{n}.example": "192.0.2.0/24" for n in range(500)}
    world = Simulation(QueueLimits(), names)
    people = [subscriber(n + 1, f"http://{name}/{n}") for n, name in enumerate(names)]
    world.people["t"] = people
    world.takes = dict.fromkeys((one.id for one in people), 0.02)
    for number in (1, 2):
        world.publish(number, "t")
        world.until_arrived(number, people)
    assert world.most["192.0.2.0/24", Pace.UNPROVED] == QueueLimits().unproved_in_flight // 2
    assert world.most["192.0.2.0/24", Pace.QUICK] == QueueLimits().per_host


def test_tar_pits_hold_up_nobody_who_has_proved_quick_and_new_ones_little() -> None:
    """2,000 callbacks that never answer, new ones and ones that were quick before, on 40 names in 20 networks."""
    pits = [subscriber(n, f"http://pit{n % 40}.example/{n}", "pit") for n in range(1, 2001)]
    good = [subscriber(5000 + n, f"http://good{n}.example/", "good") for n in range(50)]
    fresh = [subscriber(6000 + n, f"http://fresh{n}.example/", "fresh") for n in range(20)]
    prefixes = {f"pit{n}.example": f"p{n % 20}" for n in range(40)}
    world = Simulation(QueueLimits(), prefixes)
    world.people = {"pit": pits, "good": good, "fresh": fresh}
    world.takes = dict.fromkeys(range(1, 1001), 0.01) | dict.fromkeys(range(1001, 2001), 1e9)
    world.takes |= dict.fromkeys((one.id for one in [*good, *fresh]), 0.01)
    world.publish(1, "good")
    world.publish(2, "pit")
    world.until_arrived(1, good)
    world.until_arrived(2, pits[:1000])  # half of them prove quick
    world.takes |= dict.fromkeys(range(1, 1001), 1e9)  # and then are not any more
    for number in range(3, 30):
        world.publish(number, "pit")
        world.step()
    world.publish(100, "good")
    assert world.until_arrived(100, good)[-1] < 0.5
    world.publish(101, "fresh")
    assert world.until_arrived(101, fresh)[-1] < 1.0


def test_many_topics_with_much_that_waits_do_not_keep_another_from_being_read() -> None:
    world = Simulation(QueueLimits())
    for number in range(1, 101):
        world.people[f"many{number}"] = [
            subscriber(number * 1000 + n, f"http://one.example/{number}/{n}", f"many{number}") for n in range(300)
        ]
        world.takes |= dict.fromkeys((one.id for one in world.people[f"many{number}"]), 0.2)
        world.publish(number, f"many{number}")
    world.step()
    good = [subscriber(1, "http://good.example/", "good")]
    world.people["good"], world.takes[1] = good, 0.01
    world.publish(1000, "good")
    assert world.until_arrived(1000, good)[-1] < 0.5


def test_who_finds_the_window_full_takes_a_place_of_who_has_most_there() -> None:
    limits = QueueLimits(slow_in_flight=8, slow_per_host=6)
    world = Simulation(limits, {"pit.example": "p"})
    pits = [subscriber(n, f"http://pit.example/{n}", "pit") for n in range(1, 30)]
    others = [subscriber(100 + n, f"http://pit{n}.example/", "pit") for n in range(2)]
    good = [subscriber(200, "http://good.example/", "good")]
    world.people = {"pit": [*pits, *others], "good": good}
    world.takes = dict.fromkeys(range(1, 102), 1e9) | {200: 0.01}
    world.publish(1, "pit")
    for _ in range(400):
        world.step()
    assert world.queue.lanes.slow == 8
    assert world.queue.counts.cut_slow == 0  # those of one network wait for each other
    world.publish(2, "good")
    world.until_arrived(2, good, 1.0)
    assert world.queue.counts.cut_slow == 1


async def test_tar_pits_on_many_names_of_one_address_do_not_hold_up_a_good_callback(tmp_path: Path) -> None:
    """Over real sockets, with lanes that nobody is ever put off: what the pits hold is a small part, and connections
    to them are as few as for one name."""
    config = quick_config(in_flight=16, per_host=4, slow_per_host=6, slow_after=3600.0, crowded_after=3600.0)
    names = [f"pit.domain{n}.example" for n in range(40)]
    client = OutboundClient(
        ClientConfig(policy=AddressPolicy(allow_private=True), hosts=tuple((name, "127.0.0.1") for name in names))
    )
    pits = CallbackServer(lambda *_: None)
    async with CallbackServer() as good, pits as pit, rig(tmp_path, config, client) as made:
        subscribe(made.database, [good.url("/good")], topic="http://p.example/good")
        subscribe(made.database, [f"http://{name}:{pit.port}/{n}" for n in range(5) for name in names])
        await made.delivery.start()
        await made.publish(b"0", "http://p.example/good")
        await made.seen.count(Delivered, 1)  # it has proved quick
        await made.publish(b"pit")
        await pit.received(2)
        for number in range(1, 10):
            await made.publish(b"%d" % number, "http://p.example/good")
            await made.seen.count(Delivered, number + 1)
        assert len(pit.requests) <= 6
        assert made.delivery.counts.cut_slow == 0


def test_a_name_that_turns_out_to_be_elsewhere_is_turned_away_where_there_is_no_room() -> None:
    limits = replace(QueueLimits(), slow_per_host=3)
    queue = DeliveryQueue(DeliveryConfig("http://hub/", limits), random.Random(1))
    queue.add_walk(1, "t", 0)
    walk = queue.wants_page(0.0)
    assert walk is not None
    walk.parcel = PreparedPublication(HubPublication(1, "t", "t", Content("t/p", b""), 0.0), "http://hub/", frozenset())
    queue.add_page(walk, [subscriber(n, f"http://pit.domain{n}.example/") for n in range(1, 9)], 0.0)
    jobs = queue.take(0.0)
    assert len(jobs) == 8, "nothing is known but that their domains differ"
    assert [queue.connected(job, "192.0.2.0/24") for job in jobs] == [True] * 3 + [False] * 5
    for job in jobs[3:]:
        queue.turned_away(job, 0.0)
    assert queue.lanes.slow == queue.in_flight == 3
    assert {row.attempts for row in queue.batch.rows} == {0}, "no try of theirs"
    queue.delivered(jobs[0], 200, 0.1)
    queue.saved(queue.take_batch())
    assert queue.unparked() == [jobs[3].key], "they wait where they turned out to be"
