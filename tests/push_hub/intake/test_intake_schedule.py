"""Schedules and the fetch queue, without I/O."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from push_hub.intake.feeds import PollHints
from push_hub.intake.queue import FetchQueue
from push_hub.intake.schedule import MAX_HINT, Seen, max_age, plan_poll, retry_after
from serving.fairness import KnownPrefixes, name_in

NOW = 1_700_000_000.0
waits = st.none() | st.floats(0, 1e9)
hints = st.builds(
    PollHints, waits, st.frozensets(st.integers(0, 23), max_size=23), st.frozensets(st.integers(0, 6), max_size=6)
)


@given(waits, st.builds(Seen, st.booleans(), hints, waits, waits))
def test_a_poll_is_never_too_early_never_in_a_skipped_hour_and_never_beyond_its_bounds(
    every: float | None, seen: Seen
) -> None:
    plan = plan_poll(every, seen, NOW, 300, 86_400)
    assert 300 <= plan.every <= 86_400
    assert plan.at >= NOW + plan.every
    for hint in (seen.hints.ttl, seen.max_age, seen.retry_after):
        assert hint is None or plan.at >= NOW + min(hint, MAX_HINT)
    assert plan.at <= NOW + MAX_HINT + 9 * 86_400
    moment = datetime.fromtimestamp(plan.at, UTC)
    assert moment.hour not in seen.hints.skip_hours
    assert moment.weekday() not in seen.hints.skip_days


@given(st.floats(300, 86_400))
def test_the_interval_shrinks_after_a_change_and_grows_without(every: float) -> None:
    assert plan_poll(every, Seen(True), NOW, 300, 86_400).every <= every
    assert plan_poll(every, Seen(False), NOW, 300, 86_400).every >= every


@given(st.text(max_size=80))
def test_headers_of_strangers_never_raise(text: str) -> None:
    assert (max_age(text) or 0) >= 0
    assert 0 <= (retry_after(text, NOW) or 0) <= MAX_HINT


def test_both_forms_of_retry_after_and_max_age() -> None:
    assert retry_after("120", NOW) == 120
    assert retry_after("Tue, 14 Nov 2023 22:14:20 GMT", NOW) == 60
    assert max_age("public, max-age=60") == 60


topics = st.sampled_from([f"http://{host}/{n}" for host in "abc" for n in range(4)])


@given(st.lists(st.tuples(st.sampled_from(["ask", "later", "next", "finish"]), topics), max_size=60))
def test_no_ask_is_lost_and_no_bound_is_passed(steps: list[tuple[str, str]]) -> None:
    queue = FetchQueue(3, 2, KnownPrefixes())
    running: list[str] = []
    owed: set[str] = set()
    for now, (step, topic) in enumerate(steps):
        if step == "ask":
            queue.ask(topic)
            owed.add(topic)
        elif step == "later" and topic not in queue:
            queue.ask_later(topic, now + 2)
            owed.add(topic)
        elif step == "next" and (taken := queue.next(now)) is not None:
            assert taken not in running
            running.append(taken)
            owed.discard(taken)
        elif step == "finish" and running:
            queue.finished(running.pop(0))
        assert len(running) <= 3
        assert all(sum(name_in(r) == f"{h}" for r in running) <= 2 for h in "abc")
    for _ in range(200):
        while (taken := queue.next(1e9)) is not None:
            running.append(taken)
            owed.discard(taken)
        if running:
            queue.finished(running.pop(0))
    assert owed == set()
    assert len(queue) == queue.active == 0


def test_hosts_take_turns() -> None:
    queue = FetchQueue(100, 100, KnownPrefixes())
    for n in range(5):
        queue.ask(f"http://busy/{n}")
    queue.ask("http://quiet/1")
    assert [queue.next(0), queue.next(0)] == ["http://busy/0", "http://quiet/1"]


def test_a_hundred_names_on_one_address_are_one_place() -> None:
    """However the names were to begin with: what would connect above the share waits under the network."""
    prefixes = KnownPrefixes()
    queue = FetchQueue(32, 4, prefixes)
    topics = [f"http://name{n}.domain{n}.example/feed" for n in range(100)]
    for topic in topics:
        queue.ask(topic)
    queue.ask("http://innocent.example/feed")
    fetched: list[str] = []
    innocent = 0
    for _ in range(1000):
        connected: list[str] = []
        while (topic := queue.next(0)) is not None:
            where = "198.51.100.7" if "innocent" in topic else "203.0.113.7"
            if queue.moved(topic, prefixes.learn(name_in(topic), where, 80)):
                connected.append(topic)
            else:
                queue.finished(topic)
                queue.ask_later(topic, 0)
        assert sum("name" in topic for topic in connected) <= 4
        innocent = innocent or len(fetched) * any("innocent" in topic for topic in connected)
        for topic in connected:
            queue.finished(topic)
        fetched += connected
        if len(queue) == 0:
            break
    assert sorted(fetched) == sorted([*topics, "http://innocent.example/feed"])
    assert innocent <= 2 * 4  # it was not the last of a hundred


def test_retries_are_counted_by_network() -> None:
    prefixes = KnownPrefixes()
    queue = FetchQueue(32, 4, prefixes)
    for name in ("a.example", "b.example", "c.example"):
        prefixes.learn(name, "203.0.113.7", 80)
        queue.ask_later(f"http://{name}/", 5)
    assert queue.retries_near("http://a.example/other") == 3
    assert queue.retries_near("http://d.example/") == 0
    queue.ask("http://a.example/")
    assert queue.retries_near("http://b.example/") == 2
    while queue.next(10) is not None:
        pass
    assert queue.retries_near("http://b.example/") == 0
