"""What came of a request: messages that may be sent now, because what they say is on disk."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from psirp_stack.control.codes import Code
from psirp_stack.control.messages import (
    MAX_REASON,
    MAX_REFUSED,
    DeclarationRefused,
    DeclarationsRefused,
    Match,
    RendezvousAnswer,
    Reply,
)


class RequestRefusedError(Exception):
    """A request that is not done, with the code and the words that the caller gets."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason[:MAX_REASON]


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """Send `to_nodes` in order to the nodes named, `matches` to the topology manager."""

    to_nodes: tuple[tuple[str, RendezvousAnswer], ...] = ()
    matches: tuple[Match, ...] = ()
    background: bool = False
    """There is background work now: `next_timer` says so."""
    bounds: tuple[str, ...] = ()
    """Settings whose bound was reached."""
    kept: tuple[int, ...] = ()
    """Events in it that are sent again after a crash, unless `Rendezvous.settled` was called with this outcome."""

    def __iter__(self) -> Iterator[RendezvousAnswer]:
        return (message for _, message in self.to_nodes)

    @property
    def replies(self) -> tuple[Reply, ...]:
        return tuple(message for message in self if isinstance(message, Reply))


@dataclass(slots=True)
class OutcomeBuilder:
    """Gathers an outcome while a request is worked on."""

    to_nodes: list[tuple[str, RendezvousAnswer]] = field(default_factory=list)
    matches: list[Match] = field(default_factory=list)
    refused: dict[str, list[DeclarationRefused]] = field(default_factory=dict)
    background: bool = False
    bounds: list[str] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)

    def say(self, node: str, message: RendezvousAnswer) -> None:
        self.to_nodes.append((node, message))

    def reply(self, node: str, number: int, code: Code = Code.SUCCESS, reason: str = "") -> None:
        self.say(node, Reply(number, code, reason[:MAX_REASON]))

    def refuse(self, node: str, declaration: DeclarationRefused) -> None:
        self.refused.setdefault(node, []).append(declaration)

    def say_refused(self, number: int) -> None:
        """Put the refused declarations into messages, before the reply."""
        for node, refused in self.refused.items():
            for start in range(0, len(refused), MAX_REFUSED):
                self.say(node, DeclarationsRefused(number, tuple(refused[start : start + MAX_REFUSED])))
        self.refused.clear()

    def build(self) -> RequestOutcome:
        return RequestOutcome(
            tuple(self.to_nodes), tuple(self.matches), self.background, tuple(self.bounds), tuple(self.kept)
        )
