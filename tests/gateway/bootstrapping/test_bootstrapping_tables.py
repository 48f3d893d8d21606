"""What manager and requester remember and say to each other, without a network: under loss, reordering and restarts."""

import asyncio
import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.bootstrapping.background import Background
from gateway.bootstrapping.manager_table import (
    RESTART_GRACE,
    HeldRequest,
    Known,
    ManagerLimits,
    ManagerOutcome,
    ManagerTable,
    RequestVerdict,
)
from gateway.bootstrapping.messages import (
    MAX_REASON,
    Message,
    RequestAnswer,
    RequestAnswers,
    RequestMode,
    SignallingMessageError,
    TopicRequest,
    TopicRequests,
    ZoneAnnouncement,
    announcement_item,
    answers_item,
    decode,
    encode,
    requests_item,
    shortened,
)
from gateway.bootstrapping.requester_table import MAX_LIST_BYTES, RequesterTable, TooManyWantedError
from identifiers import DEFAULT_NAMING, HashName, Naming, Scheme, zone_of

ZONE = "feedspsirp.com"
ZONES = {ZONE: zone_of(ZONE)}
ME = "ab" * 16
TOPICS = [f"http://news.{ZONE}/{number}" for number in range(4)]
LIMITS = ManagerLimits(max_lease=1000.0, max_requesters=3, max_topics_per_requester=3, max_topics=4)
YES, NO = RequestVerdict(True, "subscribed"), RequestVerdict(False, "it names no hub")


def manager(limits: ManagerLimits = LIMITS, naming: Naming = DEFAULT_NAMING) -> ManagerTable:
    return ManagerTable("b", naming, ZONES, limits)


def wants(*topics: str, serial: int = 1, number: int = 1, requester: str = ME, lease: int = 100) -> TopicRequests:
    requests = tuple(TopicRequest(RequestMode.SUBSCRIBE, topic, number, lease) for topic in topics)
    return TopicRequests(ZONE, requester, "fqdn-path", "sha1", serial, requests)


# Messages.

names = st.text(min_size=1, max_size=300)
counts = st.integers(0, 2**63 - 1)
ids = st.text("0123456789abcdef", min_size=32, max_size=32)
requests = st.builds(TopicRequest, st.sampled_from(RequestMode), st.text(min_size=1, max_size=200), counts, counts)
answers = st.builds(
    RequestAnswer, st.text(min_size=1, max_size=200), counts, st.booleans(), st.text(max_size=MAX_REASON)
)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(ZoneAnnouncement, names, names, names),
    st.builds(TopicRequests, names, ids, names, names, counts, st.lists(requests, max_size=5).map(tuple)),
    st.builds(RequestAnswers, names, ids, names, names, counts, st.lists(answers, max_size=5).map(tuple)),
)


@given(messages)
def test_a_message_comes_out_as_it_went_in(message: Message) -> None:
    assert decode(encode(message)) == message


@given(
    st.one_of(
        st.binary(max_size=300),
        st.tuples(messages, st.integers(0, 400), st.binary(max_size=8)).map(
            lambda parts: encode(parts[0])[: parts[1]] + parts[2] + encode(parts[0])[parts[1] + 1 :]
        ),
    )
)
@settings(max_examples=1000)
def test_no_bytes_do_harm(data: bytes) -> None:
    try:
        message = decode(data)
    except SignallingMessageError:
        return
    assert decode(encode(message)) == message
    request_table, asking = manager(), RequesterTable(ME, DEFAULT_NAMING, 100.0, 3)
    asking.want(ZONE, TOPICS[0], 0.0)
    if isinstance(message, TopicRequests):
        request_table.hear(message, 0.0)
    elif isinstance(message, RequestAnswers):
        asking.hear(message)
    assert len(request_table.held) <= LIMITS.max_topics


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"\x93", b"\x91" * 100_000, encode(wants(TOPICS[0])) + b"\x00", b"\x00" * (16 * 1024 * 1024 + 1)],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(SignallingMessageError):
        decode(data)


@given(st.text(max_size=1000))
def test_a_shortened_reason_is_fit_for_a_message_and_a_line(reason: str) -> None:
    short = shortened(reason)
    assert len(short) <= MAX_REASON
    assert "\n" not in short
    assert "\r" not in short


def test_every_channel_of_a_zone_is_below_its_signalling_scope_and_an_item_of_its_own() -> None:
    zone = ZONES[ZONE]
    items = [
        announcement_item(DEFAULT_NAMING, zone),
        requests_item(DEFAULT_NAMING, zone, ME),
        answers_item(DEFAULT_NAMING, zone, ME),
        requests_item(DEFAULT_NAMING, zone, "cd" * 16),
    ]
    assert {item.sid for item in items} == {DEFAULT_NAMING.of_seed("feedspsirp")}
    assert items[0].rid == DEFAULT_NAMING.of_seed(".com")
    assert len({item.rid for item in items}) == len(items)


# The manager.


def test_a_topic_is_considered_once_and_ended_with_the_last_who_wants_it() -> None:
    request_table = manager()
    assert request_table.hear(wants(TOPICS[0]), 0.0).consider == (TOPICS[0],)
    assert request_table.hear(wants(TOPICS[0], requester="cd" * 16), 0.0).consider == ()
    assert len(request_table.decide(TOPICS[0], YES)) == 2
    assert request_table.hear(wants(serial=2), 1.0).ended == ()
    assert request_table.hear(wants(serial=2, requester="cd" * 16), 1.0).ended == (TOPICS[0],)
    assert not request_table.held


def test_a_list_that_is_heard_again_is_answered_and_changes_nothing() -> None:
    request_table = manager()
    request_table.hear(wants(TOPICS[0]), 0.0)
    held = request_table.held
    again = request_table.hear(wants(TOPICS[0]), 50.0)
    assert again == ManagerOutcome(answer=((ZONE, ME),))
    assert request_table.held == held, "hearing it again does not prolong it"
    # Not even after its lease ended: who repeats old lists gets nothing for it.
    assert request_table.expire(100.0).ended == (TOPICS[0],)
    assert request_table.hear(wants(TOPICS[0]), 101.0).consider == ()
    assert not request_table.held
    assert request_table.hear(wants(TOPICS[0], serial=2, number=2), 101.0).consider == (TOPICS[0],)


def test_an_older_list_is_a_replay_also_after_a_restart() -> None:
    request_table = manager()
    request_table.hear(wants(TOPICS[0], serial=5), 0.0)
    outcome = request_table.hear(wants(serial=6), 0.0)
    assert outcome.known == Known(ZONE, ME, 6, "")
    assert "older" in (request_table.hear(wants(TOPICS[0], serial=5), 1.0).refused or "")
    restarted = manager()
    restarted.restore([], [outcome.known], {}, (), 2.0)
    assert "older" in (restarted.hear(wants(TOPICS[0], serial=5), 3.0).refused or "")
    assert restarted.counters.replayed == request_table.counters.replayed == 1


def test_nobody_speaks_for_a_requester_that_signs() -> None:
    request_table = manager()
    request_table.hear(wants(TOPICS[0]), 0.0, "k1")
    for signer in ("", "k2"):
        assert "not signed with its key" in (request_table.hear(wants(serial=99), 1.0, signer).refused or "")
    assert request_table.counters.forged == 2
    assert [held.topic for held in request_table.held] == [TOPICS[0]]
    assert request_table.hear(wants(TOPICS[1], serial=2, number=2), 1.0, "k1").consider == (TOPICS[1],)


def test_who_may_not_ask_is_told_and_keeps_nobody_s_name() -> None:
    request_table = manager(ManagerLimits(1000.0, 3, 3, 4, keys=frozenset({"good"})))
    for signer in ("", "bad"):
        assert request_table.hear(wants(TOPICS[0], serial=2**62), 0.0, signer).consider == ()
    (answer,) = request_table.answers((ZONE, ME)).answers
    assert not answer.accepted
    assert "keys it was told" in answer.reason
    assert request_table.hear(wants(TOPICS[0]), 0.0, "good").consider == (TOPICS[0],)
    assert request_table.hear(wants(TOPICS[0], serial=2), 0.0, "bad").refused is not None


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("http://example.com/x", "not the name of a topic"),
        (f"HTTP://news.{ZONE}/0", "not the name of a topic"),
        (f"http://news.{ZONE}/0#part", "not the name of a topic"),
        ("http://127.0.0.1/x", "address"),
        ("nonsense", "no topic"),
    ],
)
def test_only_topics_of_the_zone_in_their_one_spelling_are_taken(topic: str, words: str) -> None:
    request_table = manager()
    assert request_table.hear(wants(topic, TOPICS[0]), 0.0).consider == (TOPICS[0],)
    (answer,) = request_table.answers((ZONE, ME)).answers
    assert (answer.topic, answer.accepted) == (topic, False)
    assert words in answer.reason


def test_another_scheme_or_hash_is_refused_in_words() -> None:
    for naming in (Naming(Scheme.ZONE), Naming(hash_name=HashName.SHA256)):
        request_table = manager(naming=naming)
        assert request_table.hear(wants(TOPICS[0]), 0.0).consider == ()
        (answer,) = request_table.answers((ZONE, ME)).answers
        assert naming.announcement in answer.reason
        assert "fqdn-path/sha1" in answer.reason


def test_every_limit_says_so() -> None:
    request_table = manager()
    request_table.hear(wants(*TOPICS), 0.0)
    assert len(request_table.held) == LIMITS.max_topics_per_requester
    assert "may want 3 topics" in request_table.answers((ZONE, ME)).answers[-1].reason
    more = [f"{TOPICS[0]}/{number}" for number in range(2)]
    request_table.hear(wants(*more, requester="cd" * 16), 0.0)
    assert "4 topics are followed here already" in request_table.answers((ZONE, "cd" * 16)).answers[-1].reason
    request_table.hear(wants(TOPICS[0], requester="ef" * 16), 0.0)
    assert "3 gateways are heard already" in (
        request_table.hear(wants(TOPICS[0], requester="01" * 16), 0.0).refused or ""
    )
    assert request_table.counters.turned_away == 1
    # One that wants nothing any more makes room.
    request_table.hear(wants(serial=2, requester="ef" * 16), 0.0)
    assert request_table.hear(wants(TOPICS[0], requester="01" * 16), 0.0).forgotten == ((ZONE, "ef" * 16),)
    assert request_table.known == LIMITS.max_requesters


def test_leases_that_ended_while_the_manager_was_away_wait_for_their_renewals() -> None:
    request_table = manager()
    held = HeldRequest(ZONE, ME, TOPICS[0], 1, 100.0)
    outcome = request_table.restore(
        [held], [Known(ZONE, ME, 1, "")], {TOPICS[0]: YES, TOPICS[1]: YES}, [TOPICS[2]], 5000.0
    )
    assert outcome.ended == (TOPICS[1], TOPICS[2])
    assert outcome.consider == ()
    assert request_table.expire(5000.0 + RESTART_GRACE - 1) == ManagerOutcome()
    assert request_table.hear(wants(TOPICS[0], serial=9, number=9), 5001.0).consider == (), "what was decided stays so"
    assert request_table.expire(5000.0 + RESTART_GRACE + 1) == ManagerOutcome()
    assert request_table.expire(5101.0).ended == (TOPICS[0],)


async def test_what_runs_in_the_background_ends_also_when_it_overhears_that_once() -> None:
    failures: list[str] = []
    background = Background(failures.append)
    waiting = asyncio.Event()

    async def deaf_once() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await waiting.wait()
        await waiting.wait()

    async def broken() -> None:
        raise ValueError("nobody foresaw this")

    background.run(deaf_once())
    background.run(broken())
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await background.stop()
    assert failures == ["ValueError: nobody foresaw this"]


# The requester.


def test_a_gateway_that_asks_for_too_much_is_stopped_here() -> None:
    request_table = RequesterTable(ME, DEFAULT_NAMING, 100.0, 2, max_zones=2)
    request_table.want(ZONE, TOPICS[0], 0.0)
    request_table.want(ZONE, TOPICS[1], 0.0)
    with pytest.raises(TooManyWantedError, match="2 topics of feedspsirp"):
        request_table.want(ZONE, TOPICS[2], 0.0)
    request_table.want("example.org", "http://example.org/", 0.0)
    with pytest.raises(TooManyWantedError, match="2 zones"):
        request_table.want("example.net", "http://example.net/", 0.0)
    request_table = RequesterTable(ME, DEFAULT_NAMING, 100.0, 10)
    request_table.want(ZONE, "x" * MAX_LIST_BYTES, 0.0)
    with pytest.raises(TooManyWantedError, match="bytes long"):
        request_table.want(ZONE, TOPICS[0], 0.0)
    request_table.drop(ZONE, "x" * MAX_LIST_BYTES, 0.0)
    assert request_table.want(ZONE, TOPICS[0], 0.0)


def test_a_zone_is_left_when_its_manager_knows_or_all_leases_are_over() -> None:
    request_table = RequesterTable(ME, DEFAULT_NAMING, 100.0, 10)
    request_table.want(ZONE, TOPICS[0], 0.0)
    request_table.drop(ZONE, TOPICS[0], 10.0)
    assert request_table.left(11.0) == []
    assert request_table.left(111.0) == [ZONE]
    request_table.hear(RequestAnswers(ZONE, ME, "b", "n", request_table.message(ZONE).serial, ()))
    assert request_table.left(11.0) == [ZONE]


def test_answers_that_nobody_can_have_given_are_passed_over() -> None:
    request_table = RequesterTable(ME, DEFAULT_NAMING, 100.0, 10)
    request_table.want(ZONE, TOPICS[0], 0.0)
    number = request_table.message(ZONE).requests[0].number
    answer = (RequestAnswer(TOPICS[0], number, False, "no"),)
    assert request_table.hear(RequestAnswers(ZONE, "cd" * 16, "b", "n", number, answer)) == []
    assert request_table.hear(RequestAnswers("example.org", ME, "b", "n", number, answer)) == []
    assert request_table.hear(RequestAnswers(ZONE, ME, "b", "n", 10**9, answer)) == []
    assert request_table.answer(ZONE, TOPICS[0]) is None
    assert request_table.hear(RequestAnswers(ZONE, ME, "b", "n", number, answer)) == list(answer)
    # Asked again, the old answer is none.
    assert request_table.want(ZONE, TOPICS[0], 1.0)
    assert request_table.answer(ZONE, TOPICS[0]) is None


class Crossing(RuleBasedStateMachine):
    """Two requesters and a manager; any message may be lost, repeated or late, and each side may be killed any time.

    What is on disk is what the desks said to write. In the end, when everything current is heard once more, the manager
    follows exactly what the requesters want, and each of them knows the verdict.
    """

    LEASE = 100.0

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.names = [ME, "cd" * 16]
        self.wanted: dict[str, set[str]] = {name: set() for name in self.names}
        """What each hub's subscribers want: on disk there, whatever happens to the desk."""
        self.numbers = dict.fromkeys(self.names, 0)
        self.asking = {name: self._requester(name) for name in self.names}
        self.sent: dict[str, list[TopicRequests]] = {name: [] for name in self.names}
        self.answered: dict[str, list[RequestAnswers]] = {name: [] for name in self.names}
        self.disk: dict[tuple[str, str], HeldRequest] = {}
        self.known: dict[str, Known] = {}
        self.verdicts: dict[str, RequestVerdict] = {}
        self.open: set[str] = set()
        """Topics that are being looked at."""
        self.followed: set[str] = set()
        self.request_table = manager(ManagerLimits(1000.0, 10, 10, 10))

    def _requester(self, name: str) -> RequesterTable:
        request_table = RequesterTable(name, DEFAULT_NAMING, self.LEASE, 10, self.numbers[name])
        request_table.enter(ZONE, self.now)
        for topic in sorted(self.wanted[name]):
            request_table.want(ZONE, topic, self.now)
        return request_table

    def _publish(self, name: str) -> None:
        self.numbers[name] = self.asking[name].last_number
        self.sent[name].append(self.asking[name].message(ZONE))

    def _apply(self, outcome: ManagerOutcome) -> None:
        for held in outcome.dropped:
            self.disk.pop((held.requester, held.topic), None)
        for held in outcome.put:
            self.disk[held.requester, held.topic] = held
        if outcome.known is not None:
            self.known[outcome.known.requester] = outcome.known
        self.open |= set(outcome.consider)
        for topic in outcome.ended:
            self.followed.discard(topic)
            self.verdicts.pop(topic, None)
            self.open.discard(topic)
        for _, name in outcome.answer:
            self.answered[name].append(self.request_table.answers((ZONE, name)))

    @rule(who=st.integers(0, 1), topic=st.sampled_from(TOPICS))
    def want(self, who: int, topic: str) -> None:
        name = self.names[who]
        self.wanted[name].add(topic)
        if self.asking[name].want(ZONE, topic, self.now):
            self._publish(name)

    @rule(who=st.integers(0, 1), topic=st.sampled_from(TOPICS))
    def drop(self, who: int, topic: str) -> None:
        name = self.names[who]
        self.wanted[name].discard(topic)
        if self.asking[name].drop(ZONE, topic, self.now):
            self._publish(name)

    @rule(who=st.integers(0, 1), data=st.data())
    def some_list_is_heard(self, who: int, data: Any) -> None:
        """The newest, or one that is late, or one again."""
        name = self.names[who]
        if self.sent[name]:
            self._apply(self.request_table.hear(data.draw(st.sampled_from(self.sent[name])), self.now))

    @rule(who=st.integers(0, 1), data=st.data())
    def some_answers_are_heard(self, who: int, data: Any) -> None:
        name = self.names[who]
        if self.answered[name]:
            self.asking[name].hear(data.draw(st.sampled_from(self.answered[name])))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), accepted=st.booleans())
    def decide(self, data: Any, *, accepted: bool) -> None:
        topic = data.draw(st.sampled_from(sorted(self.open)))
        self._decide(topic, YES if accepted else NO)

    def _decide(self, topic: str, verdict: RequestVerdict) -> None:
        self.open.discard(topic)
        if verdict.accepted:
            self.followed.add(topic)
            self.verdicts[topic] = verdict
        for _, name in self.request_table.decide(topic, verdict):
            self.answered[name].append(self.request_table.answers((ZONE, name)))

    @rule(seconds=st.floats(0.0, 60.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for name in self.names:
            if self.asking[name].due(self.now):
                self._publish(name)
        self._apply(self.request_table.expire(self.now))

    @rule(who=st.integers(0, 1))
    def requester_is_killed(self, who: int) -> None:
        name = self.names[who]
        self.asking[name] = self._requester(name)
        self._publish(name)

    @rule()
    def manager_is_killed(self) -> None:
        self.request_table = manager(ManagerLimits(1000.0, 10, 10, 10))
        self.open.clear()
        self._apply(
            self.request_table.restore(
                list(self.disk.values()), list(self.known.values()), self.verdicts, self.followed, self.now
            )
        )

    @invariant()
    def nothing_is_followed_for_nobody(self) -> None:
        assert self.followed <= set(self.request_table.topics)
        assert {(held.requester, held.topic) for held in self.request_table.held} == set(self.disk)

    def teardown(self) -> None:
        for name in self.names:
            self.asking[name].renew(ZONE, self.now)
            self._publish(name)
            self._apply(self.request_table.hear(self.sent[name][-1], self.now))
        for topic in sorted(self.open):
            self._decide(topic, YES)
        assert set(self.request_table.topics) == self.wanted[self.names[0]] | self.wanted[self.names[1]]
        for name in self.names:
            self.asking[name].hear(self.request_table.answers((ZONE, name)))
            for topic in self.wanted[name]:
                answer = self.asking[name].answer(ZONE, topic)
                assert answer is not None
                assert answer.accepted


Crossing.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestLossReorderingAndRestarts = Crossing.TestCase
