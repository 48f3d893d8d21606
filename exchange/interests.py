"""Who wants one item, and for which of them a publication is. Sans-I/O."""

from collections.abc import Iterable

from exchange.model import Interest, SessionKey
from exchange.selection import Attributes, SelectorIndex

Matching = dict[SessionKey, list[Interest]]


class ItemInterests:
    """What is read through a converter is selected after it was converted, so here it counts as wanting everything."""

    def __init__(self, interests: Iterable[tuple[SessionKey, Interest]] = ()) -> None:
        self._numbers: dict[SessionKey, dict[str, int]] = {}
        self._wants: dict[int, tuple[SessionKey, Interest]] = {}
        self._index = SelectorIndex()
        self._selective = 0
        self._next = 0
        for key, interest in interests:
            self.put(key, interest)

    def __len__(self) -> int:
        return len(self._wants)

    @property
    def selects(self) -> bool:
        """Whether it matters what a publication's attributes are."""
        return self._selective > 0

    def put(self, key: SessionKey, interest: Interest) -> None:
        self.drop(key, interest.name)
        number, self._next = self._next, self._next + 1
        self._numbers.setdefault(key, {})[interest.name] = number
        self._wants[number] = key, interest
        self._index.add(number, interest.entry_selector)
        self._selective += bool(interest.entry_selector.predicates)

    def drop(self, key: SessionKey, name: str) -> bool:
        numbers = self._numbers.get(key, {})
        number = numbers.pop(name, None)
        if number is None:
            return False
        if not numbers:
            del self._numbers[key]
        _, interest = self._wants.pop(number)
        self._index.remove(number)
        self._selective -= bool(interest.entry_selector.predicates)
        return True

    def everyone(self, now: float) -> Matching:
        return _grouped(self._wants.values(), now)

    def selected(self, attributes: Attributes, now: float) -> Matching:
        return _grouped((self._wants[number] for number in self._index.match(attributes)), now)

    def of(self, key: SessionKey) -> list[Interest]:
        return [self._wants[number][1] for number in self._numbers.get(key, {}).values()]


def _grouped(wants: Iterable[tuple[SessionKey, Interest]], now: float) -> Matching:
    found: Matching = {}
    for key, interest in wants:
        if interest.until > now:
            found.setdefault(key, []).append(interest)
    return found
