"""What is kept of the newest entries says the same as the log, or nothing."""

from hypothesis import given
from hypothesis import strategies as st

from exchange.model import Draft, LogEntry, OriginId, Profile
from exchange.newest import NewestEntries
from exchange.ports import Wanted
from identifiers import Identifier, ItemId

HERE, ELSEWHERE = b"h" * 16, b"e" * 16
ITEMS = [ItemId(Identifier(bytes(32)), Identifier(bytes([number] * 32))) for number in range(3)]


def entry(position: int, item: ItemId, gateway: bytes, via: str, size: int) -> LogEntry:
    origin = OriginId(gateway, position)
    draft = Draft(item, "name", Profile.DOCUMENT, "text/plain", b"x" * size, origin=origin)
    return LogEntry(position, origin, via, draft, 0)


@given(
    st.lists(
        st.tuples(st.sampled_from(ITEMS), st.sampled_from([HERE, ELSEWHERE]), st.sampled_from("ab"), st.integers(0, 9)),
        max_size=12,
    ),
    st.permutations(range(12)),
    st.integers(1, 4),
    st.integers(1, 30),
    st.sampled_from(ITEMS),
    st.booleans(),
    st.sampled_from(["", "a", "b"]),
)
def test_it_is_the_log_or_nothing(
    appended: list[tuple[ItemId, bytes, str, int]],
    order: list[int],
    most: int,
    most_bytes: int,
    item: ItemId,
    entered_here: bool,
    not_via: str,
) -> None:
    log = [entry(number + 1, *what) for number, what in enumerate(appended)]
    newest = NewestEntries(HERE, most, most_bytes)
    for number in order:  # commits are told of in any order
        if number < len(log):
            of_item = [one.position for one in log[:number] if one.item == log[number].item]
            newest.put(log[number], max(of_item, default=0))
    assert len(newest._kept) <= most
    assert newest._bytes == sum(one.size for _, one in newest._kept.values()) <= most_bytes
    wanted = Wanted(item, entered_here, not_via)
    for position in range(len(log) + 1):
        behind = newest.behind(wanted, position)
        if behind is not None:
            assert list(behind) == [
                one
                for one in log
                if one.item == item
                and one.position > position
                and one.via != not_via
                and (not entered_here or one.origin.gateway == HERE)
            ]


def test_what_was_put_last_is_known() -> None:
    newest = NewestEntries(HERE)
    first, second = (entry(position, ITEMS[0], HERE, "a", 3) for position in (4, 7))
    newest.put(first, 0)
    assert newest.behind(Wanted(ITEMS[0]), 3) == (first,)
    newest.put(second, 4)
    assert newest.behind(Wanted(ITEMS[0]), 4) == (second,)
    assert newest.behind(Wanted(ITEMS[0]), 7) == ()
    assert newest.behind(Wanted(ITEMS[0]), 3) is None  # there may be more than one
    assert newest.behind(Wanted(ITEMS[1]), 0) is None
