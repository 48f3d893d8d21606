from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from identifiers import DEFAULT_NAMING, Identifier, Naming, Scheme, Topic, Transport
from identifiers.order import key_of, range_below, topic_of
from identifiers.registry import SMALLEST_REBUILD, NamingMismatchError, OverlapError, Registry
from storage import DatabaseInUseError

ORDERED = [
    "http://example.com/",
    "http://example.com/a",
    "http://example.com/a/b",
    "http://example.com/a?q",
    "http://example.com/a-b",
    "http://example.com/a.b",
    "http://example.com:8080/a",
    "http://news.example.com/",
    "http://example-x.com/",
]


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with Registry.open(tmp_path / "registry.db") as opened:
        yield opened


def urls_of(entries: Iterator[object]) -> list[str]:
    return [str(getattr(entry, "topic")) for entry in entries]  # noqa: B009


def test_both_directions(registry: Registry) -> None:
    topic = Topic.parse("http://example.com/a")
    entry = registry.add(topic)
    assert entry.item == DEFAULT_NAMING.of_topic(topic)
    assert registry.by_topic(topic) == registry.by_item(entry.item) == entry
    assert registry.by_topic(Topic.parse("http://example.com/b")) is None
    assert registry.by_item(DEFAULT_NAMING.of_topic(Topic.parse("http://example.com/b"))) is None


def test_http_and_https_are_one_entry(registry: Registry) -> None:
    registry.add(Topic.parse("http://example.com/a"))
    entry = registry.add(Topic.parse("https://example.com/a"))
    assert entry.transports == Transport.HTTP | Transport.HTTPS
    assert entry.topic.url == "https://example.com/a"
    assert len(registry) == 1
    assert registry.add(Topic.parse("http://example.com/a")) == entry


def test_everything_is_listed_as_a_hierarchy(registry: Registry) -> None:
    registry.add_many(Topic.parse(url) for url in reversed(ORDERED))
    assert urls_of(iter(registry)) == ORDERED
    assert urls_of(registry.below("Example.com")) == ORDERED[:-1]
    assert urls_of(registry.below("news.example.com")) == ["http://news.example.com/"]
    assert urls_of(registry.below("com")) == ORDERED
    assert urls_of(registry.below("http://example.com/a")) == ORDERED[1:4]
    assert urls_of(registry.below("https://example.com/")) == ORDERED[:6]
    assert urls_of(registry.below("http://example.com/a/")) == ["http://example.com/a/b"]
    assert urls_of(registry.below("org")) == []


def test_listing_goes_on_beyond_one_page(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("identifiers.registry.PAGE_ROWS", 2)
    registry.add_many(Topic.parse(url) for url in ORDERED)
    assert urls_of(iter(registry)) == ORDERED


@pytest.mark.parametrize(
    "url",
    [*ORDERED, "http://[2001:db8::1]:81//x//?a?b", "http://10.0.0.1/", "http://a_b.example/?", "http://a.example/?/&:"],
)
def test_a_key_holds_the_whole_topic(url: str) -> None:
    topic = Topic.parse(url)
    assert topic_of(key_of(topic), "http") == topic
    assert range_below(url).first <= key_of(topic) < range_below(url).end


class CrowdedNaming(Naming):
    """Hashes so short that different topics collide."""

    full: ClassVar[Naming] = DEFAULT_NAMING

    def of_seed(self, seed: str) -> Identifier:
        return Identifier(bytes(31) + bytes(self.full.of_seed(seed))[-1:])


def test_two_topics_with_one_id_pair_are_refused(tmp_path: Path) -> None:
    naming = CrowdedNaming()
    topics = [Topic.parse(f"http://example.com/{number}") for number in range(300)]
    seen: dict[object, Topic] = {}
    with Registry.open(tmp_path / "crowded.db", naming) as registry:
        clashes = 0
        for topic in topics:
            item = naming.of_topic(topic)
            if item in seen:
                clashes += 1
                with pytest.raises(OverlapError, match="has the same ids as"):
                    registry.add(topic)
                assert registry.by_topic(topic) is None
            else:
                seen[item] = topic
                registry.add(topic)
        assert clashes > 0
        assert len(registry) == len(seen)
        for item, topic in seen.items():
            entry = registry.by_topic(topic)
            assert entry is not None
            assert entry.item == item


def test_a_file_made_with_another_naming_is_refused(tmp_path: Path) -> None:
    Registry.open(tmp_path / "registry.db").close()
    with pytest.raises(NamingMismatchError, match="'fqdn-path/sha1', not 'zone/sha1'"):
        Registry.open(tmp_path / "registry.db", Naming(Scheme.ZONE))
    Registry.open(tmp_path / "registry.db").close()


def test_a_second_opener_is_refused(registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(DatabaseInUseError):
        Registry.open(tmp_path / "registry.db")


def test_unknown_ids_cost_no_disk_access(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.add_many(Topic.parse(f"http://example.com/{number}") for number in range(1_000))
    registry.wait_for_guard()
    reads = []
    real = registry._database.read
    monkeypatch.setattr(registry._database, "read", lambda *args: reads.append(args) or real(*args))
    for number in range(2_000):
        assert registry.by_item(DEFAULT_NAMING.of_topic(Topic.parse(f"http://other.example/{number}"))) is None
    assert len(reads) <= 2  # the guard's false positives: one in ten thousand
    assert registry.by_topic(Topic.parse("http://example.com/7")) is not None
    assert reads


def test_the_guard_is_rebuilt_after_many_removals_and_never_lies(registry: Registry) -> None:
    topics = [Topic.parse(f"http://example.com/{number}") for number in range(2 * SMALLEST_REBUILD)]
    registry.add_many(topics)
    registry.wait_for_guard()
    first_guard = registry._guard
    for topic in topics[: SMALLEST_REBUILD + 1]:
        assert registry.remove_soon(topic).result()
    late = Topic.parse("http://late.example/")
    registry.add(late)
    registry.wait_for_guard()
    assert registry._guard is not first_guard
    assert registry._guard.added <= len(topics) - SMALLEST_REBUILD + 1
    for topic in [*topics[SMALLEST_REBUILD + 1 :], late]:
        assert registry.by_topic(topic) is not None


TOPICS = [Topic.parse(url) for url in ORDERED] + [Topic.parse(f"https://h{n % 7}.example.org/{n}") for n in range(30)]


class RegistryModel(RuleBasedStateMachine):
    """The registry behaves as a dict from names to transports, whatever is done to it and however often it restarts."""

    directory: ClassVar[Path]
    files: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).files += 1
        self.path = self.directory / f"{self.files}.db"
        self.registry = Registry.open(self.path)
        self.model: dict[str, Transport] = {}

    def teardown(self) -> None:
        self.registry.close()

    @rule(topic=st.sampled_from(TOPICS))
    def add(self, topic: Topic) -> None:
        self.registry.add(topic)
        self.model[topic.name] = self.model.get(topic.name, Transport(0)) | topic.transport

    @rule(topics=st.lists(st.sampled_from(TOPICS), max_size=8))
    def add_many(self, topics: list[Topic]) -> None:
        new = len({topic.name for topic in topics} - self.model.keys())
        assert self.registry.add_many(topics) == new
        for topic in topics:
            self.model[topic.name] = self.model.get(topic.name, Transport(0)) | topic.transport

    @rule(topic=st.sampled_from(TOPICS))
    def remove(self, topic: Topic) -> None:
        assert self.registry.remove(topic) == (self.model.pop(topic.name, None) is not None)

    @rule(topic=st.sampled_from(TOPICS))
    def look_up(self, topic: Topic) -> None:
        entry = self.registry.by_topic(topic)
        assert entry == self.registry.by_item(DEFAULT_NAMING.of_topic(topic))
        assert (None if entry is None else entry.transports) == self.model.get(topic.name)

    @rule()
    def restart(self) -> None:
        self.registry.close()
        self.registry = Registry.open(self.path)

    @invariant()
    def same_content(self) -> None:
        entries = list(self.registry)
        assert {entry.topic.name: entry.transports for entry in entries} == self.model
        assert [key_of(entry.topic) for entry in entries] == sorted(key_of(entry.topic) for entry in entries)
        assert len(self.registry) == len(self.model)


def test_the_registry_is_a_dict_that_survives_restarts(tmp_path: Path) -> None:
    RegistryModel.directory = tmp_path
    run_state_machine_as_test(
        RegistryModel, settings=settings(max_examples=25, stateful_step_count=20, deadline=None, derandomize=True)
    )
