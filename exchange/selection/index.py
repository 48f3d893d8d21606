"""Which of many selectors a publication fulfils, without asking each. Sans-I/O.

A selector with an equality (`=` or `in`) is kept under that value: a publication asks only those that name its own
values, one by one while they are few, by an index of their own when they are many. All others are in slots: their first
predicate in the first slot, their second in the second, and so on. A slot says by bitmaps which of its predicates are
true, and a selector is fulfilled that is true in every slot that it is in.
"""

from collections.abc import Iterable
from typing import Final

from pyroaring import BitMap

from exchange.selection.predicates import PredicateIndex
from exchange.selection.selector import ANYTHING, Attributes, Operator, Predicate, Selector, Value, number_of

FEW: Final = 32
"""Selectors under one value that are asked one by one."""
_EQUALITIES: Final = (Operator.EQUAL, Operator.IN)

Key = tuple[str, Value]


class SelectorIndex:
    """Selectors by numbers of 32 bits."""

    def __init__(self) -> None:
        self._selectors: dict[int, Selector] = {}
        self._by_value: dict[Key, _Bucket] = {}
        self._names: dict[str, int] = {}
        """Attributes by whose values selectors are kept, and how many are."""
        self._slots: list[PredicateIndex] = []
        self._shorter: list[BitMap] = []
        """Of each slot: selectors that end before it."""
        self._anything = BitMap()

    def __len__(self) -> int:
        return len(self._selectors)

    def __contains__(self, number: object) -> bool:
        return number in self._selectors

    def add(self, number: int, selector: Selector) -> None:
        """Raises `ValueError` for a number that is there."""
        if number in self._selectors:
            raise ValueError(f"there is a selector {number} already")
        self._selectors[number] = selector
        if not selector.predicates:
            self._anything.add(number)
            return
        access, rest = _taken_apart(selector)
        if access is None:
            self._put_in_slots(number, selector)
            return
        for value in set(access.values):
            key = access.name, value
            if key not in self._by_value:
                self._by_value[key] = _Bucket()
                self._names[access.name] = self._names.get(access.name, 0) + 1
            self._by_value[key].add(number, rest)

    def remove(self, number: int) -> None:
        """Raises `KeyError` for a number that is not there."""
        selector = self._selectors.pop(number)
        if not selector.predicates:
            self._anything.discard(number)
            return
        access, rest = _taken_apart(selector)
        if access is None:
            self._take_from_slots(number, selector)
            return
        for value in set(access.values):
            key = access.name, value
            self._by_value[key].remove(number, rest)
            if not len(self._by_value[key]):
                del self._by_value[key]
                self._names[access.name] -= 1
                if not self._names[access.name]:
                    del self._names[access.name]

    def match(self, attributes: Attributes) -> BitMap:
        """The numbers of all selectors that are fulfilled."""
        found = self._match_slots(attributes) if self._slots else BitMap()
        found |= self._anything
        # Whichever are fewer: what it has, or what is asked for.
        names = self._names if len(self._names) < len(attributes) else attributes
        for name in names:
            if name in self._names:
                for text in set(attributes.get(name, ())):
                    self._match_value(name, text, attributes, found)
        return found

    def _match_value(self, name: str, text: str, attributes: Attributes, found: BitMap) -> None:
        bucket = self._by_value.get((name, text))
        if bucket is not None:
            bucket.match(attributes, found)
        number = number_of(text)
        if number is not None:
            bucket = self._by_value.get((name, number))
            if bucket is not None:
                bucket.match(attributes, found)

    # Slots.

    def _put_in_slots(self, number: int, selector: Selector) -> None:
        predicates = selector.predicates
        while len(self._slots) < len(predicates):
            here = BitMap(one for one in self._slotted() if len(self._selectors[one].predicates) <= len(self._slots))
            self._slots.append(PredicateIndex())
            self._shorter.append(here)
        for slot, predicate in zip(self._slots, predicates, strict=False):
            slot.add(number, predicate)
        for shorter in self._shorter[len(predicates) :]:
            shorter.add(number)

    def _take_from_slots(self, number: int, selector: Selector) -> None:
        for slot, predicate in zip(self._slots, selector.predicates, strict=False):
            slot.remove(number, predicate)
        for shorter in self._shorter[len(selector.predicates) :]:
            shorter.discard(number)
        while self._slots and not len(self._slots[-1]):
            self._slots.pop()
            self._shorter.pop()

    def _slotted(self) -> Iterable[int]:
        return self._slots[0].numbers() if self._slots else ()

    def _match_slots(self, attributes: Attributes) -> BitMap:
        found = self._slots[0].match(attributes)
        for slot, shorter in zip(self._slots[1:], self._shorter[1:], strict=True):
            if not found:
                break
            found &= slot.match(attributes) | shorter
        return found


class _Bucket:
    """Selectors that name one value, without that."""

    __slots__ = ("_few", "_many")

    def __init__(self) -> None:
        self._few: dict[int, Selector] = {}
        self._many: SelectorIndex | None = None

    def __len__(self) -> int:
        return len(self._few) if self._many is None else len(self._many)

    def add(self, number: int, rest: Selector) -> None:
        if self._many is None and len(self._few) < FEW:
            self._few[number] = rest
            return
        if self._many is None:
            self._many = SelectorIndex()
            for one, selector in self._few.items():
                self._many.add(one, selector)
            self._few = {}
        self._many.add(number, rest)

    def remove(self, number: int, rest: Selector) -> None:
        if self._many is None:
            del self._few[number]
        else:
            self._many.remove(number)

    def match(self, attributes: Attributes, found: BitMap) -> None:
        if self._many is not None:
            found |= self._many.match(attributes)
            return
        for number, rest in self._few.items():
            if rest.matches(attributes):
                found.add(number)


def _taken_apart(selector: Selector) -> tuple[Predicate | None, Selector]:
    """The predicate by whose values a selector is kept, that with the fewest, and the rest of it."""
    equalities = [one for one in selector.predicates if one.operator in _EQUALITIES]
    if not equalities:
        return None, selector
    access = min(equalities, key=lambda one: len(one.values))
    rest = list(selector.predicates)
    rest.remove(access)
    return access, Selector(tuple(rest)) if rest else ANYTHING
