"""What happened in the intake: small, past tense, for whoever observes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from push_hub.intake.trouble import FetchTrouble


@dataclass(frozen=True, slots=True)
class PingsStored:
    count: int


@dataclass(frozen=True, slots=True)
class PingsUnwanted:
    """Nobody wants these topics: remembered for a while, and not fetched."""

    topics: Sequence[str]


@dataclass(frozen=True, slots=True)
class PingsRefused:
    """The bound on waiting topics (or on waiting writes) bit."""

    count: int


@dataclass(frozen=True, slots=True)
class DocumentArrived:
    """A topic's server answered; what it says is not looked at yet."""

    topic: str
    status: int
    size: int


@dataclass(frozen=True, slots=True)
class TopicFetched:
    """`changed` says whether a publication came of it; `new_entries` is None for other things than feeds."""

    topic: str
    status: int
    changed: bool
    new_entries: int | None


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """`retry_at` is None when the intake gave up until the next ping."""

    topic: str
    reason: str
    retry_at: float | None


@dataclass(frozen=True, slots=True)
class RetriesBounded:
    """A fetch failed, and so many of its network wait for another try that this one does not: the next ping counts."""

    topic: str


@dataclass(frozen=True, slots=True)
class DocumentRefused:
    """Too large, unsafe XML, or nothing that can be sent on: nothing of it was published."""

    topic: str
    reason: str
    trouble: FetchTrouble = FetchTrouble.UNSAFE


@dataclass(frozen=True, slots=True)
class FetchOvertaken:
    """A publisher brought content along while its topic was fetched: the answer was dropped, and is asked for again."""

    topic: str


@dataclass(frozen=True, slots=True)
class SweepFailed:
    """Waiting pings or polls could not be read from the store; the next round tries again."""

    reason: str


@dataclass(frozen=True, slots=True)
class ParserGaveUp:
    """A feed was not taken apart (too large, too slow, none after all, the process died): it is passed on whole."""

    topic: str
    reason: str


@dataclass(frozen=True, slots=True)
class ParsersDisagreed:
    """The two parsers did not see the same entries: the document is passed on whole."""

    topic: str
    reason: str


IntakeEvent = (
    PingsStored
    | PingsUnwanted
    | PingsRefused
    | DocumentArrived
    | TopicFetched
    | FetchFailed
    | RetriesBounded
    | DocumentRefused
    | FetchOvertaken
    | SweepFailed
    | ParserGaveUp
    | ParsersDisagreed
)
Observer = Callable[[IntakeEvent], None]
