"""Retained versions: bounds, «since», equal content; in memory and on disk."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from psirp_stack.node.version_store import TRANSPORT_TABLES, OutOfOrderError, on_disk
from psirp_stack.transport.positions import Positions
from psirp_stack.transport.sender import ContentTooLarge, Sender
from psirp_stack.transport.versions import (
    MemoryVersions,
    RetentionLimits,
    Version,
    Versions,
    VersionsFor,
    content_ids,
    in_memory,
)
from psirp_stack.wire.numbers import HeaderType
from storage import Database, StorageError, StorageFullError
from tests.psirp_stack.transport.transport_network import ITEM, WALL_START_MS, Network, line, wall_ms

Make = Callable[[RetentionLimits], VersionsFor]


@pytest.fixture(params=["memory", "disk"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    if request.param == "memory":
        yield lambda limits: in_memory(1, limits)
        return
    with Database.open(tmp_path / "versions", TRANSPORT_TABLES) as database:
        yield lambda limits: on_disk(database, 1, limits)


def version(number: int, content: bytes, epoch: int, published_ms: int = WALL_START_MS) -> Version:
    return Version(epoch, number, *content_ids(content), published_ms, b"", content)


def fill(versions: Versions, *contents: bytes, step_ms: int = 0) -> None:
    for content in contents:
        number = versions.next_number
        stored = versions.add(version(number, content, versions.epoch, WALL_START_MS + number * step_ms))
        if stored is not None:
            stored.result(10)


def test_the_window_is_bounded_by_count(make: Make) -> None:
    versions = make(RetentionLimits(count=3))(ITEM)
    fill(versions, *(b"%d" % n for n in range(5)))
    versions.trim(WALL_START_MS, versions.newest)
    assert (versions.oldest, versions.newest) == (3, 5)
    assert versions.get(2) is None
    kept = versions.get(3)
    assert kept is not None and kept.content == b"2"
    assert [number for number, _ in versions.costs()] == [3, 4, 5]


def test_the_window_is_bounded_by_bytes_but_the_current_version_stays(make: Make) -> None:
    versions = make(RetentionLimits(bytes=3000))(ITEM)
    fill(versions, b"a" * 1000, b"b" * 1000, b"c" * 1000)
    versions.trim(WALL_START_MS, versions.newest)
    assert versions.oldest == 3
    fill(versions, b"d" * 10_000)
    versions.trim(WALL_START_MS, versions.newest)
    assert (versions.oldest, versions.newest) == (4, 4)


def test_the_window_is_bounded_by_age(make: Make) -> None:
    versions = make(RetentionLimits(age=10))(ITEM)
    fill(versions, b"a", b"b", b"c", step_ms=5000)
    versions.trim(WALL_START_MS + 21_000, versions.newest)
    assert versions.oldest == 3
    versions.trim(WALL_START_MS + 100_000, versions.newest)
    assert versions.oldest == 3, "the current version does not age"


def test_what_a_receiver_waits_for_is_kept(make: Make) -> None:
    versions = make(RetentionLimits(count=1))(ITEM)
    fill(versions, b"a", b"b", b"c")
    versions.trim(WALL_START_MS, 2)
    assert versions.oldest == 2


def test_a_version_is_found_by_its_id_and_the_latest_of_equal_ones_counts(make: Make) -> None:
    versions = make(RetentionLimits())(ITEM)
    fill(versions, b"a", b"b", b"a", b"c")
    assert versions.numbers_of(content_ids(b"a")[0])[0] == 3
    assert versions.numbers_of(content_ids(b"x")[0]) == []


def test_numbers_have_no_holes(make: Make) -> None:
    versions = make(RetentionLimits())(ITEM)
    with pytest.raises(ValueError, match="the next version is 1, not 2"):
        versions.add(version(2, b"a", versions.epoch))


def test_each_window_in_memory_has_an_epoch_of_its_own() -> None:
    factory = in_memory(3)
    first, second = factory(ITEM), factory(ITEM)
    assert in_memory(2)(ITEM).epoch < first.epoch < second.epoch < in_memory(4)(ITEM).epoch


def test_what_everybody_has_confirmed_is_not_kept_ready_and_can_be_sent_again(make: Make) -> None:
    versions = make(RetentionLimits())(ITEM)
    fill(versions, *(b"%d" % number for number in range(1, 11)))
    positions = Positions(versions, 128, wall_ms)
    for number in range(1, 11):
        assert positions.outgoing(number) is not None
    positions.trim(WALL_START_MS, 8)
    assert list(positions._outgoing) == [8, 9, 10]
    again = positions.outgoing(3)
    assert again is not None
    assert again.body == b"3"


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="count of at least 1"):
        RetentionLimits(count=0)


def test_after_a_restart_epoch_and_numbers_go_on(tmp_path: Path) -> None:
    path = tmp_path / "versions"
    with Database.open(path, TRANSPORT_TABLES) as database:
        versions = on_disk(database, 5)(ITEM)
        fill(versions, b"a", b"b")
        epoch = versions.epoch
    with Database.open(path, TRANSPORT_TABLES) as database:
        versions = on_disk(database, 6)(ITEM)
        assert (versions.epoch, versions.oldest, versions.newest) == (epoch, 1, 2)
        last = versions.last
        assert last is not None and last.content == b"b"
        fill(versions, b"c")
        assert versions.newest == 3
        assert versions.numbers_of(content_ids(b"a")[0]) == [1]


def test_a_version_that_could_not_be_stored_is_not_sent_and_its_number_is_given_again(tmp_path: Path) -> None:
    with Database.open(tmp_path / "versions", TRANSPORT_TABLES, max_pages=64) as database:
        net = Network(line(2), versions={0: on_disk(database, 1)})
        net.subscribe(1)
        net.grant(0, [1])
        sender = net.hosts[0].sender

        def publish(content: bytes) -> Exception | None:
            published = sender.publish(ITEM, content, b"", net.clock.now())
            assert published.stored is not None
            failure = published.stored.exception(10)
            sender.stored(ITEM, net.clock.now())
            net.pump(0)
            net.run(1)
            return failure if isinstance(failure, Exception) else None

        assert publish(b"small") is None
        assert isinstance(publish(b"x" * 1_000_000), StorageFullError)
        assert net.hosts[1].numbers == [1]
        assert publish(b"small again") is None
        assert net.hosts[1].contents == [b"small", b"small again"]
        assert net.hosts[1].numbers == [1, 2]
        assert not net.hosts[1].skipped


def test_versions_after_one_that_failed_fail_too(tmp_path: Path) -> None:
    with Database.open(tmp_path / "versions", TRANSPORT_TABLES, max_pages=64) as database:
        versions = on_disk(database, 1)(ITEM)
        first = versions.add(version(1, b"x" * 1_000_000, versions.epoch))
        second = versions.add(version(2, b"y", versions.epoch))
        assert first is not None and second is not None
        assert isinstance(first.exception(10), StorageError)
        assert isinstance(second.exception(10), OutOfOrderError)
        assert (versions.newest, versions.next_number) == (0, 1)


def test_nothing_is_sent_before_it_is_stored(tmp_path: Path) -> None:
    with Database.open(tmp_path / "versions", TRANSPORT_TABLES) as database:
        gate = threading.Event()
        database.write(lambda _: gate.wait(10))
        net = Network(line(2), versions={0: on_disk(database, 1)})
        net.subscribe(1)
        net.grant(0, [1])
        net.run(1)
        published = net.hosts[0].sender.publish(ITEM, b"a", b"", net.clock.now())
        assert published.stored is not None
        net.pump(0)
        net.run(1)
        assert not net.crossed_kinds[(0, 1), HeaderType.PUBLISH_DATA], "the version is not on disk"
        assert net.hosts[0].sender.current(ITEM) is None
        gate.set()
        published.stored.result(10)
        net.hosts[0].sender.stored(ITEM, net.clock.now())
        net.pump(0)
        net.run(1)
        assert net.hosts[1].contents == [b"a"]


def test_a_publisher_that_restarts_with_its_store_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "versions"

    def publish(net: Network, content: bytes) -> None:
        published = net.hosts[0].sender.publish(ITEM, content, b"", net.clock.now())
        if published.stored is not None:
            published.stored.result(10)
        net.hosts[0].sender.stored(ITEM, net.clock.now())
        net.pump(0)
        net.run(1)

    with Database.open(path, TRANSPORT_TABLES) as database:
        net = Network(line(3), versions={0: on_disk(database, 1)})
        net.subscribe(2)
        net.grant(0, [2])
        publish(net, b"a")
        publish(net, b"b")
    with Database.open(path, TRANSPORT_TABLES) as database:
        net.versions[0] = on_disk(database, 2)
        net.hosts[0].sender = net.new_sender(0)
        net.grant(0, [2])
        net.run(1)
        publish(net, b"c")
        assert net.hosts[2].contents == [b"a", b"b", b"c"]
        assert net.hosts[2].numbers == [1, 2, 3]


def test_equal_content_is_no_new_version() -> None:
    net = Network(line(2))
    net.subscribe(1)
    net.grant(0, [1])
    assert [net.publish(0, content) for content in (b"a", b"a", b"b", b"a", b"a")] == [1, 1, 2, 3, 3]
    net.run(1)
    assert net.hosts[1].contents == [b"a", b"b", b"a"]
    assert net.hosts[0].sender.counters.equal_content == 2


def test_what_is_too_large_is_refused() -> None:
    net = Network(line(2))
    with pytest.raises(ContentTooLarge, match="at most 16777216 bytes"):
        net.publish(0, bytes(16 * 1024 * 1024 + 1))
    with pytest.raises(ContentTooLarge, match="attributes have at most 4096"):
        net.publish(0, b"a", bytes(4097))


def test_the_current_version_can_be_read_without_a_subscription() -> None:
    sender: Sender = Network(line(2)).hosts[0].sender
    assert sender.current(ITEM) is None
    sender.publish(ITEM, b"a", b"x", 3.0)
    current = sender.current(ITEM)
    assert current is not None
    assert (current.content, current.attributes, current.published_ms) == (b"a", b"x", wall_ms(3.0))


def test_memory_versions_satisfy_the_interface() -> None:
    versions: Versions = MemoryVersions(1)
    assert (versions.oldest, versions.newest, versions.next_number, versions.last) == (1, 0, 1, None)
