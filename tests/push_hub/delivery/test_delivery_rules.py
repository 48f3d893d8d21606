"""Retry schedule, breaker, signatures, and the queue against a model that crashes at random."""

import hmac
import random
from collections import Counter, defaultdict
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from push_hub.delivery.batch import FAR, Batch
from push_hub.delivery.breaker import Breaker, BreakerConfig
from push_hub.delivery.config import DeliveryConfig, QueueLimits
from push_hub.delivery.queue import DeliveryQueue
from push_hub.delivery.signing import PreparedPublication, signature, signature_matches
from push_hub.delivery.walks import DeliveryJob, Pace
from push_hub.model import Content, Dialect, HubPublication, HubSubscription, SignatureMethod
from storage.backoff import RetrySchedule
from tests.push_hub.delivery.model_disk import ModelDisk


@given(
    st.builds(
        RetrySchedule,
        first=st.floats(0.01, 1),
        factor=st.floats(1, 10),
        longest=st.floats(1, 7200),
        longest_asked=st.floats(0, 20_000),
        attempts=st.integers(1, 50),
        max_age=st.floats(1, 1e6),
    ),
    st.integers(1, 10_000),
    st.floats(0, 1e6),
    st.floats(-10, 1e9),
    st.randoms(use_true_random=False),
)
def test_a_next_try_is_later_bounded_and_ends(
    schedule: RetrySchedule, attempts: int, age: float, asked: float, rng: random.Random
) -> None:
    now = 1e9
    when = schedule.next_try(attempts, now - age, now, asked, rng)
    if attempts >= schedule.attempts or now - (now - age) >= schedule.max_age:
        assert when is None
        return
    assert when is not None
    assert now < when <= now + max(schedule.longest, schedule.longest_asked) + 1e-6
    assert when >= now + min(max(asked, 0.0), schedule.longest_asked) - 1e-6


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 30)), max_size=200))
def test_an_open_breaker_lets_one_probe_through_after_its_cooldown(steps: list[tuple[bool, float]]) -> None:
    config = BreakerConfig(failures=3, cooldown=10, longest_cooldown=40)
    breaker = Breaker(config)
    now, run = 0.0, 0
    for succeeds, wait in steps:
        now += wait
        was_closed = breaker.is_closed
        admitted = breaker.admits(now)
        assert was_closed == (run < 3)
        assert admitted == (was_closed or now >= breaker.reopens_at)
        if not admitted:
            continue
        if not was_closed:
            assert not breaker.admits(now), "only one probe at a time"
        if succeeds:
            breaker.succeeded()
            run = 0
        else:
            breaker.failed(now)
            run += 1
            if run >= 3:
                assert now + config.cooldown <= breaker.reopens_at <= now + config.longest_cooldown


@given(st.binary(min_size=1, max_size=199), st.sampled_from(SignatureMethod), st.binary(max_size=3000))
def test_a_signature_is_the_hmac_of_the_body(secret: bytes, method: SignatureMethod, body: bytes) -> None:
    signed = signature(secret, method, body)
    assert signed == f"{method.value}={hmac.new(secret, body, method.value).hexdigest()}"
    assert signature_matches(secret, method, body, signed)
    assert not signature_matches(secret, method, body + b"x", signed)


class World:
    """Publications of two topics to subscribers on a few hosts, with a process that may die at any step."""

    def __init__(self, subscribers: int, publications: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 1000.0
        self.config = DeliveryConfig(
            "http://hub/",
            QueueLimits(
                chunk=8,
                page=3,
                in_flight=4,
                slow_in_flight=3,
                per_host=2,
                slow_per_host=2,
                crowded_after=0.5,
                slow_after=1.0,
                timeout=5.0,
            ),
            RetrySchedule(first=1, factor=2, longest=8, attempts=1000, max_age=1e12),
            BreakerConfig(failures=3, cooldown=2, longest_cooldown=8),
        )
        self.subscriptions = [
            HubSubscription(
                n + 1, f"t{n % 2}", f"http://h{n % 3}/{n}", None, SignatureMethod.SHA1, Dialect.WEBSUB, 1e15
            )
            for n in range(subscribers)
        ]
        self.topics = {n + 1: f"t{self.rng.randrange(2)}" for n in range(publications)}
        self.disk = ModelDisk()
        self.disk.fanouts = dict.fromkeys(self.topics, 0)
        self.received: dict[int, list[int]] = defaultdict(list)
        # What names resolve to: all to one network, or each to its own.
        one = self.rng.random() < 0.5
        self.prefixes = {f"h{n}": "p" if one else f"p{n}" for n in range(3)}
        self.crashes = 0
        self.repeats = 0
        self.start()

    def parcel(self, publication: int) -> PreparedPublication:
        topic = self.topics[publication]
        return PreparedPublication(
            HubPublication(publication, topic, topic, Content("t/p", b""), 0.0), "http://hub/", frozenset()
        )

    def page(self, topic: str, after: int) -> Sequence[HubSubscription]:
        return [s for s in self.subscriptions if s.topic == topic and s.id > after][: self.config.limits.page]

    def start(self) -> None:
        self.queue = DeliveryQueue(self.config, self.rng)
        self.queue.restore_pending(self.disk.rows)
        for publication, position in sorted(self.disk.fanouts.items()):
            self.queue.add_walk(publication, self.topics[publication], position)
        self.flying: list[DeliveryJob] = []
        self.saving: Batch | None = None

    def crash(self) -> None:
        self.crashes += 1
        self.start()

    def step(self, failing: float) -> None:
        queue, rng = self.queue, self.rng
        self.now += rng.random()
        queue.tick(self.now)
        due = [key for key, when in sorted(self.disk.rows.items(), key=lambda item: item[1]) if when <= self.now]
        for key in [*queue.unparked(), *due]:
            if key in queue.active or key not in self.disk.rows or not queue.is_first_owed(key):
                continue
            subscription = self.subscriptions[key[0] - 1]
            if queue.room_for_retries() and not queue.add_retry(subscription, self.parcel(key[1]), 1):
                queue.park_row(key, subscription.callback, 1, self.now)
        for key in queue.early(min(2, queue.room_for_retries())):
            if key not in self.disk.rows:
                queue.early_later(key)
            elif queue.is_first_owed(key) and self.disk.rows[key] < FAR:
                queue.add_retry(self.subscriptions[key[0] - 1], self.parcel(key[1]), 1, self.disk.rows[key])
        while (walk := queue.wants_page(self.now)) is not None:
            walk.parcel = walk.parcel or self.parcel(walk.publication)
            queue.add_page(walk, self.page(walk.topic, walk.position), self.now)
        for job in queue.take(self.now):
            if queue.connected(job, self.prefixes[job.recipient.host.name]):
                self.flying.append(job)
            else:
                queue.turned_away(job, self.now)
        for job in queue.displaced():
            if job in self.flying:
                self.flying.remove(job)
                queue.failed(job, "cut", self.now, retry_after=0, reached=None, final=False)
            else:
                queue.turned_away(job, self.now)
        self.check_bounds()
        rng.shuffle(self.flying)
        for _ in range(rng.randrange(len(self.flying) + 1)):
            job = self.flying.pop()
            if rng.random() < failing:
                queue.failed(job, "no", self.now, retry_after=0, reached=rng.choice([True, False, None]), final=False)
            else:
                self.receive(job)
                queue.delivered(job, 200, self.now)
        if self.saving is None:
            if queue.wants_saving:
                self.saving = queue.take_batch()
        elif rng.random() < 0.7:
            self.disk.apply(self.saving, self.now)
            queue.saved(self.saving)
            self.saving = None

    def check_bounds(self) -> None:
        limits, lanes = self.config.limits, self.queue.lanes
        assert self.queue.reserved <= limits.chunk
        assert self.queue.in_flight <= limits.in_flight
        assert lanes.slow <= limits.slow_in_flight
        assert len(self.flying) <= limits.in_flight + limits.slow_in_flight
        held = Counter((job.network.prefix, job.pace) for job in self.flying)
        for (prefix, pace), count in held.items():
            assert pace is not Pace.QUICK or count <= limits.per_host
            assert pace is not Pace.UNPROVED or count <= 1, "half of the unproved lanes"
            assert count <= limits.slow_per_host + limits.per_host, prefix
        assert sum(1 for job in self.flying if job.pace is not Pace.SLOW) == self.queue.in_flight

    def receive(self, job: DeliveryJob) -> None:
        seen = self.received[job.subscription.id]
        if job.parcel.id in seen:
            self.repeats += 1
        else:
            assert not seen or job.parcel.id > seen[-1], "a later publication came before an earlier one"
            seen.append(job.parcel.id)

    @property
    def quiet(self) -> bool:
        return not (self.disk.fanouts or self.disk.rows or self.flying)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 25),
    st.integers(1, 6),
    st.integers(0, 2**32),
    st.floats(0, 0.7),
    st.lists(st.integers(1, 60), max_size=6),
)
def test_nothing_is_lost_or_out_of_order_and_a_crash_repeats_at_most_a_chunk(
    subscribers: int, publications: int, seed: int, failing: float, crash_after: list[int]
) -> None:
    world = World(subscribers, publications, seed)
    for steps in crash_after:
        for _ in range(steps):
            world.step(failing)
        world.crash()
    for _ in range(5000):
        world.step(failing)
        if world.quiet:
            break
    assert world.quiet, "the queue came to a standstill"
    assert world.repeats <= world.crashes * world.config.limits.chunk
    for subscription in world.subscriptions:
        owed = [number for number, topic in sorted(world.topics.items()) if topic == subscription.topic]
        assert world.received[subscription.id] == owed


def test_topics_take_turns() -> None:
    """A topic with few subscribers does not wait for the end of one with many."""
    config = DeliveryConfig("http://hub/", QueueLimits(chunk=8, page=4, in_flight=4))
    queue = DeliveryQueue(config, random.Random(1))
    many = [
        HubSubscription(n, "a", f"http://h{n}/", None, SignatureMethod.SHA1, Dialect.WEBSUB, 1e15)
        for n in range(1, 400)
    ]
    few = [HubSubscription(1000, "b", "http://hb/", None, SignatureMethod.SHA1, Dialect.WEBSUB, 1e15)]
    queue.add_walk(1, "a", 0)
    queue.add_walk(2, "b", 0)
    order: list[int] = []
    while not order or order[-1] != 1000:
        while (walk := queue.wants_page(0.0)) is not None:
            people = many if walk.topic == "a" else few
            walk.parcel = PreparedPublication(
                HubPublication(walk.publication, walk.topic, "s", Content("t/p", b""), 0.0), "http://hub/", frozenset()
            )
            queue.add_page(walk, [s for s in people if s.id > walk.position][:4], 0.0)
        while jobs := queue.take(0.0):
            for job in jobs:
                order.append(job.subscription.id)
                queue.delivered(job, 200, 0.0)
        queue.saved(queue.take_batch())
    assert len(order) <= 9
