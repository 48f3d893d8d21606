"""What is news: gateways of two domains, one publisher, any order of pings and arrivals."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from exchange.judging import Judgement, Reached, Twin, judge
from exchange.model import OriginId, Profile


def gate(name: str) -> bytes:
    return name.encode().ljust(16)


@dataclass(frozen=True)
class Said:
    origin: OriginId
    state: str
    known: tuple[OriginId, ...]


@dataclass
class Mind:
    """A gateway's log of one item, kept as simply as can be."""

    name: str
    log: list[Said] = field(default_factory=list)
    reached: dict[bytes, Reached] = field(default_factory=dict)

    def ping(self, state: str) -> Said | None:
        """Fetched: news if it is not what stands here."""
        if self.log and self.log[-1].state == state:
            return None
        me = gate(self.name)
        number = sum(said.origin.gateway == me for said in self.log) + 1
        known = tuple(OriginId(gateway, one.number) for gateway, one in self.reached.items() if gateway != me)
        said = Said(OriginId(me, number), state, known)
        self._append(said)
        return said

    def hear(self, said: Said) -> Judgement:
        reached = self.reached.get(said.origin.gateway)
        behind = reached.position if reached else 0
        twins = [
            Twin(place, one.origin)
            for place, one in enumerate(self.log, 1)
            if one.state == said.state and place > behind
        ]
        newest = len(self.log) if self.log and self.log[-1].state == said.state else None
        ruling = judge(said.origin, Profile.DOCUMENT, said.known, reached, newest, twins)
        if ruling.judgement is Judgement.NEWS:
            self._append(said)
        elif ruling.judgement is Judgement.SAME_STATE:
            self._reach(said, ruling.position or 0)
        return ruling.judgement

    def _append(self, said: Said) -> None:
        self.log.append(said)
        self._reach(said, len(self.log))

    def _reach(self, said: Said, position: int) -> None:
        for one in (said.origin, *said.known):
            before = self.reached.get(one.gateway)
            if before is None or one.number > before.number:
                self.reached[one.gateway] = Reached(one.number, position)

    @property
    def states(self) -> list[str]:
        return [said.state for said in self.log]


# What a publisher's document goes through, no state twice in a row; and for each state, the order of two pings and when
# what each gateway published reaches the listener.
journeys = st.lists(st.sampled_from("ABC"), min_size=1, max_size=8).map(
    lambda states: [state for place, state in enumerate(states) if place == 0 or state != states[place - 1]]
)


@given(journeys, st.lists(st.booleans(), min_size=16, max_size=16))
def test_two_gateways_pinged_for_every_state_bring_each_once_in_the_publisher_s_order(
    states: list[str], order: list[bool]
) -> None:
    one, two, listener = Mind("b1"), Mind("b2"), Mind("a")
    first, second = ([said for state in states if (said := mind.ping(state))] for mind in (one, two))
    for takes_first in [*order, *[True] * 16, *[False] * 16]:
        queue = first if takes_first else second
        if queue:
            listener.hear(queue.pop(0))
    assert listener.states == states


@given(journeys, st.lists(st.booleans(), min_size=8, max_size=8))
def test_a_publisher_that_pings_now_here_now_there_is_heard_at_both_each_time(
    states: list[str], order: list[bool]
) -> None:
    """Also when it goes back to what it said before: nothing is guessed from the content."""
    minds = [Mind("g1"), Mind("g2")]
    for state, here in zip(states, order, strict=False):
        said = minds[here].ping(state)
        if said is not None:
            minds[not here].hear(said)
            assert minds[here].hear(said) is Judgement.REPEATED, "its own echo"
    assert minds[0].states == minds[1].states == states


@given(journeys, st.randoms(use_true_random=False))
def test_whatever_is_repeated_changes_nothing(states: list[str], random: object) -> None:
    source, listener = Mind("b"), Mind("a")
    said = [one for state in states if (one := source.ping(state))]
    for one in said:
        listener.hear(one)
    before = listener.states
    for one in sorted(said, key=lambda _: random.random()):  # type: ignore[attr-defined]
        assert listener.hear(one) is not Judgement.NEWS
    assert listener.states == before == states


def test_what_a_newer_publication_knew_of_is_not_gone_back_to() -> None:
    g, h, listener = Mind("g"), Mind("h"), Mind("a")
    first = g.ping("A")
    assert first
    h.hear(first)
    middle = h.ping("B")
    assert middle
    g.hear(middle)
    last = g.ping("A")
    assert last
    listener.hear(first)
    listener.hear(last)
    listener.hear(middle)
    assert listener.states[-1] == "A"


def test_messages_each_count() -> None:
    twin = Twin(1, OriginId(gate("b"), 1))
    ruling = judge(OriginId(gate("a"), 1), Profile.MESSAGE, (), None, 1, [twin])
    assert ruling.judgement is Judgement.NEWS
