"""Schedules and the fetch queue, without I/O."""

import random
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from push_hub.intake.feeds import PollHints
from push_hub.intake.queue import FetchQueue, host_of
from push_hub.intake.schedule import MAX_HINT, Seen, max_age, plan_poll, retry_after, retry_delay

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


@given(st.integers(1, 10_000), st.integers())
def test_retry_delays_stay_within_their_bounds(attempt: int, seed: int) -> None:
    delay = retry_delay(attempt, 5, 600, random.Random(seed))
    full = min(600.0, 5 * 2.0 ** min(attempt - 1, 60))
    assert full / 2 <= delay <= full


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
    queue = FetchQueue(3, 2)
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
        assert all(sum(host_of(r) == f"{h}" for r in running) <= 2 for h in "abc")
    for _ in range(200):
        while (taken := queue.next(1e9)) is not None:
            running.append(taken)
            owed.discard(taken)
        if running:
            queue.finished(running.pop(0))
    assert owed == set()
    assert len(queue) == queue.active == 0


def test_hosts_take_turns() -> None:
    queue = FetchQueue(100, 100)
    for n in range(5):
        queue.ask(f"http://busy/{n}")
    queue.ask("http://quiet/1")
    assert [queue.next(0), queue.next(0)] == ["http://busy/0", "http://quiet/1"]
