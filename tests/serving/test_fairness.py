"""Shares by place: names do not multiply them, and nobody with something to do is left out."""

from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.fairness import FairQueue, KnownPrefixes, Shares, TimeBudgets, name_in, prefix_of
from serving.limits import Rate


@pytest.mark.parametrize(
    ("address", "port", "prefix"),
    [
        ("203.0.113.77", 80, "203.0.113.0/24"),
        ("8.8.8.8", 443, "8.8.8.0/24"),
        ("2001:db8:1:2:3:4:5:6", 80, "2001:db8:1:2::/64"),
        ("2a00:1450:4001:80b::200e", 80, "2a00:1450:4001:80b::/64"),
        ("::ffff:8.8.8.8", 80, "8.8.8.0/24"),
        ("2002:808:808:7::1", 80, "8.8.8.0/24"),
        ("64:ff9b::808:808", 80, "8.8.8.0/24"),
        ("127.0.0.1", 8080, "127.0.0.1:8080"),
        ("::1", 8080, "::1:8080"),
        ("10.1.2.3", 80, "10.1.2.3"),
        ("192.168.7.7", 80, "192.168.7.7"),
        ("no address", 80, "no address"),
    ],
)
def test_an_address_is_counted_by_the_network_around_it(address: str, port: int, prefix: str) -> None:
    assert prefix_of(address, port) == prefix


def test_a_name_is_counted_by_what_it_was_last_connected_to() -> None:
    known = KnownPrefixes(max_names=2)
    first = known.of_url("http://a.example.com/feed")
    assert first == known.of("b.example.com") == known.of("deep.down.example.com:8080")
    assert first != known.of("a.example.org")
    assert known.learn("a.example.com", "203.0.113.1", 80) == "203.0.113.0/24"
    assert known.of_url("https://A.example.com/other?x=http://b.example.com/") == "203.0.113.0/24"
    known.learn("a.example.com", "8.8.8.8", 80)
    assert known.of("a.example.com") == "8.8.8.0/24"
    known.learn("b.example.com", "8.8.4.4", 80)
    known.learn("c.example.com", "8.8.4.4", 80)
    assert len(known) == 2
    assert known.of("a.example.com") == first


@pytest.mark.parametrize(
    ("url", "prefix"),
    [
        ("http://203.0.113.9:8000/x", "203.0.113.0/24"),
        ("http://[2001:db8::7]:8000/x", "2001:db8::/64"),
        ("http://[2001:db8::7]/x", "2001:db8::/64"),
        ("http://127.0.0.1:8000/x", "127.0.0.1:8000"),
    ],
)
def test_an_address_in_a_url_is_known_at_once(url: str, prefix: str) -> None:
    assert KnownPrefixes().of_url(url) == prefix


def test_the_name_in_a_url() -> None:
    assert name_in("http://Example.com:80?x=/y") == "example.com:80"
    assert name_in("http://user@example.com#f") == "example.com"


def test_a_lane_that_turns_out_to_be_elsewhere_counts_there() -> None:
    shares = Shares(total=10, each=2)
    for name in ("a", "b", "c"):
        assert shares.acquire(name)
    assert shares.move("a", "victim")
    assert shares.move("b", "victim")
    assert not shares.move("c", "victim")
    assert (shares.held_by("victim"), shares.held_by("c"), shares.held) == (2, 1, 3)
    assert not shares.acquire("victim")


def test_prefixes_take_turns_and_names_within_them() -> None:
    queue: FairQueue[str] = FairQueue(total=100, each=50)
    for number in range(30):
        queue.put("crowd", f"name{number % 3}", f"crowd{number}")
    queue.put("alone", "x", "alone0")
    taken = [found[1] for found in iter(queue.take, None)]
    assert taken[:4] == ["crowd0", "alone0", "crowd1", "crowd2"]
    assert len(taken) == 31


@pytest.mark.parametrize("kind", ["unknown", "nowhere"])
def test_names_that_nobody_has_connected_to_leave_lanes_to_those_that_are_known(kind: str) -> None:
    """Domains whose name servers never answer hold a lane for as long as a request may take."""
    prefixes = KnownPrefixes()
    queue: FairQueue[str] = FairQueue(total=32, each=4, unknown=16)
    for number in range(1000):
        name = f"www.silent-{number}.example"
        if kind == "nowhere":
            prefixes.led_nowhere(name)
        queue.put(prefixes.of(name), name, name)
    assert len(list(iter(queue.take, None))) == (16 if kind == "unknown" else 4)
    prefixes.learn("feed.example", "192.0.2.1", 80)
    queue.put(prefixes.of("feed.example"), "feed.example", "known")
    queue.put(prefixes.of("new.example.net"), "new.example.net", "new")
    taken = [item for _, item in iter(queue.take, None)]
    assert taken == (["known"] if kind == "unknown" else ["known", "new"])


def test_what_led_nowhere_is_remembered_until_it_leads_somewhere() -> None:
    prefixes = KnownPrefixes(max_names=2)
    prefixes.led_nowhere("a.example")
    assert prefixes.of("a.example") == "~~a.example"
    assert prefixes.of("b.a.example") == "~a.example"
    assert prefixes.learn("a.example", "192.0.2.1", 80) == prefixes.of("a.example") == "192.0.2.0/24"
    prefixes.led_nowhere("a.example")  # its name server failed once: where it is is known all the same
    assert prefixes.of("a.example") == "192.0.2.0/24"
    for name in ("x.example", "y.example", "z.example"):
        prefixes.led_nowhere(name)
    assert [prefixes.of(name) for name in ("x.example", "z.example")] == ["~x.example", "~~z.example"]


PREFIXES = ("a", "b", "~u", "~v", "~~n", "~~m")
KINDS = {"a": "known", "b": "known", "~u": "unknown", "~v": "unknown", "~~n": "nowhere", "~~m": "nowhere"}
MOST_OF = {"known": 4, "unknown": 2, "nowhere": 1}
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(PREFIXES), st.sampled_from("xy")),
        st.tuples(st.just("take"), st.just(""), st.just("")),
        st.tuples(st.just("acquire"), st.sampled_from(PREFIXES), st.just("")),
        st.tuples(st.just("release"), st.sampled_from(PREFIXES), st.just("")),
        st.tuples(st.just("move"), st.sampled_from(PREFIXES), st.sampled_from("ab")),
    ),
    max_size=60,
)


@given(STEPS)
def test_any_order_of_events(steps: list[tuple[str, str, str]]) -> None:
    """Bounds hold, nothing is lost or doubled, and what can start does start."""
    queue: FairQueue[int] = FairQueue(total=4, each=2, unknown=2)
    held: Counter[str] = Counter()

    def has_room(prefix: str) -> bool:
        of_kind = sum(count for other, count in held.items() if KINDS[other] == KINDS[prefix])
        return held.total() < 4 and of_kind < MOST_OF[KINDS[prefix]] and held[prefix] < 2

    waiting: dict[tuple[str, str], deque[int]] = {}
    for number, (what, one, other) in enumerate(steps):
        if what == "put":
            queue.put(one, other, number)
            waiting.setdefault((one, other), deque()).append(number)
        elif what == "take":
            can = any(line and has_room(key[0]) for key, line in waiting.items())
            found = queue.take()
            assert (found is not None) == can
            if found is not None:
                prefix, item = found
                assert has_room(prefix)
                held[prefix] += 1
                assert item in [
                    line.popleft() for key, line in waiting.items() if line and key[0] == prefix and line[0] == item
                ]
        elif what == "acquire":
            can = has_room(one)
            assert queue.acquire(one) == can
            held[one] += can
        elif what == "release" and held[one]:
            queue.release(one)
            held[one] -= 1
        elif what == "move" and held[one]:
            can = one == other or held[other] < 2
            assert queue.move(one, other) == can
            if can:
                held[one] -= 1
                held[other] += 1
    assert queue.shares.held == held.total()
    for prefix in list(held):
        while held[prefix]:
            queue.release(prefix)
            held[prefix] -= 1
    rest = 0
    while (found := queue.take()) is not None:
        queue.release(found[0])
        rest += 1
    assert rest == sum(map(len, waiting.values()))


def test_time_that_was_used_comes_back_slowly_and_is_not_anybody_elses() -> None:
    budgets = TimeBudgets(Rate(0.1, 10.0), max_prefixes=2)
    assert budgets.left("a", 0.0) == 10.0
    budgets.spend("a", 14.0, 0.0)
    assert budgets.left("a", 0.0) == -4.0
    assert budgets.left("b", 0.0) == 10.0
    assert budgets.left("a", 50.0) == pytest.approx(1.0)
    assert budgets.left("a", 1000.0) == 10.0
    assert budgets.left("a", -5.0) == -4.0
    budgets.spend("b", 1.0, 0.0)
    budgets.spend("c", 1.0, 0.0)
    assert len(budgets) == 2
