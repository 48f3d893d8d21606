"""Whose check is next, whatever happens in whatever order: nothing is forgotten, nothing runs twice, bounds hold."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from push_hub.checks import CheckQueue
from serving.fairness import KnownPrefixes

CONCURRENCY = 8
UNKNOWN = 4
"""Places of names that nobody has connected to, as all are here."""
PER_HOST = 2
HOSTS = ("a", "b", "c")
ROWS = st.integers(0, 11)


def host(row: int) -> str:
    return HOSTS[row % len(HOSTS)]


@dataclass
class Model:
    """What must be so, kept the simple way."""

    open: set[int] = field(default_factory=set)
    running: set[int] = field(default_factory=set)
    entered: list[str] = field(default_factory=list)

    def on(self, name: str) -> int:
        return sum(host(row) == name for row in self.running) + self.entered.count(name)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("queue"), ROWS),
        st.tuples(st.just("next"), st.just(0)),
        st.tuples(st.just("done"), ROWS),
        st.tuples(st.just("later"), ROWS),
        st.tuples(st.just("enter"), ROWS),
        st.tuples(st.just("leave"), st.just(0)),
        st.tuples(st.just("time"), st.integers(1, 20)),
    ),
    max_size=80,
)


@given(STEPS)
def test_any_order_of_events(steps: list[tuple[str, int]]) -> None:
    queue, model, now = CheckQueue(CONCURRENCY, PER_HOST, KnownPrefixes()), Model(), 0.0
    again: set[int] = set()
    for what, number in steps:
        if what == "queue":
            queue.queue(number, host(number))
            model.open.add(number)
            if number in model.running:
                again.add(number)
        elif what == "next":
            found = queue.next()
            if found is not None:
                row = found
                assert row in model.open and row not in model.running
                model.running.add(row)
        elif what in ("done", "later") and number in model.running:
            queue.finished(number, None if what == "done" else now + number, now)
            model.running.discard(number)
            if what == "done" and number not in again:
                model.open.discard(number)
            again.discard(number)
        elif what == "enter":
            name = host(number)
            room = model.on(name) < PER_HOST and len(model.running) + len(model.entered) < UNKNOWN
            assert (queue.enter(name) is not None) == room
            if room:
                model.entered.append(name)
        elif what == "leave" and model.entered:
            queue.leave(f"~{model.entered.pop()}")
        elif what == "time":
            now += number
            queue.ripen(now)
        assert len(queue) == len(model.open)
        assert queue.running == len(model.running) + len(model.entered) <= UNKNOWN
        for name in HOSTS:
            assert model.on(name) <= PER_HOST
            assert queue.pending_on(name) == sum(host(row) == name for row in model.open)

    # In the end everything that is open comes up, in as many rounds as it takes.
    while model.entered:
        queue.leave(f"~{model.entered.pop()}")
    for row in model.running:
        queue.finished(row, None, now)
    model.open -= model.running - again
    seen: set[int] = set()
    while (at := queue.next_time) is not None or len(queue):
        if at is not None:
            queue.ripen(at)
        while (found := queue.next()) is not None:
            seen.add(found)
            queue.finished(found, None, now)
    assert seen == model.open
    assert all(queue.pending_on(name) == queue.retries_on(name) == 0 for name in HOSTS)


def test_hosts_take_turns() -> None:
    queue = CheckQueue(1, 1, KnownPrefixes())
    for row in (0, 3, 6, 1, 2):
        queue.queue(row, host(row))
    order: list[int] = []
    while (found := queue.next()) is not None:
        order.append(found)
        queue.finished(found, None, 0.0)
    assert order == [0, 1, 2, 3, 6]


def test_names_of_one_network_share_its_places_as_soon_as_it_is_known() -> None:
    prefixes = KnownPrefixes()
    queue = CheckQueue(100, 2, prefixes)
    for row in range(10):
        queue.queue(row, f"name{row}.domain{row}.example")
    started: list[int] = []
    while (row := queue.next()) is not None:  # nobody knows yet that they are one place
        prefix = prefixes.learn(f"name{row}.domain{row}.example", "203.0.113.7", 80)
        if queue.moved(row, prefix):
            started.append(row)
        else:
            queue.finished(row, 0.0, 0.0)
    queue.ripen(0.0)
    assert len(started) == 2
    assert queue.next() is None
    assert queue.pending_on("name9.domain9.example") >= 8
    queue.finished(started[0], None, 0.0)
    assert queue.next() is not None
    assert queue.next() is None
