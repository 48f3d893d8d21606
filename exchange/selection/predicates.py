"""Which of many predicates are true, one of each number at the most. Sans-I/O."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from pyroaring import BitMap

from exchange.selection.selector import Attributes, Operator, Predicate, Value, number_of
from exchange.selection.thresholds import SortedLimits

_LIMITS: Final = (Operator.LESS, Operator.AT_MOST, Operator.GREATER, Operator.AT_LEAST)


class PredicateIndex:
    """Predicates of selectors that are known by numbers."""

    def __init__(self) -> None:
        self._attributes: dict[str, _AttributeIndex] = {}
        self._numbers = BitMap()

    def __len__(self) -> int:
        return len(self._numbers)

    def numbers(self) -> BitMap:
        return self._numbers

    def add(self, number: int, predicate: Predicate) -> None:
        self._numbers.add(number)
        self._attributes.setdefault(predicate.name, _AttributeIndex()).add(number, predicate)

    def remove(self, number: int, predicate: Predicate) -> None:
        self._numbers.discard(number)
        attribute = self._attributes[predicate.name]
        attribute.remove(number, predicate)
        if not len(attribute):
            del self._attributes[predicate.name]

    def match(self, attributes: Attributes) -> BitMap:
        names = self._attributes if len(self._attributes) < len(attributes) else attributes
        true = [
            self._attributes[name].match(attributes[name])
            for name in names
            if name in self._attributes and attributes.get(name)
        ]
        return BitMap.union(*true) if true else BitMap()


class _AttributeIndex:
    """Predicates on one attribute."""

    def __init__(self) -> None:
        self._count = 0
        self._exists = BitMap()
        self._equal = _ByValue()
        self._unlike = _ByValue()
        """Those that are false for a value; true for all others."""
        self._limits: dict[tuple[Operator, bool], SortedLimits] = {}
        self._parts: dict[Operator, _ByText] = {}

    def __len__(self) -> int:
        return self._count

    def add(self, number: int, predicate: Predicate) -> None:
        self._count += 1
        operator = predicate.operator
        if operator is Operator.EXISTS:
            self._exists.add(number)
        elif operator in (Operator.EQUAL, Operator.IN):
            self._equal.add(number, predicate.values)
        elif predicate.is_negative:
            self._unlike.add(number, predicate.values)
        elif operator in _LIMITS:
            key = operator, isinstance(predicate.value, float)
            self._limits.setdefault(key, SortedLimits()).add(predicate.value, number)
        else:
            self._parts.setdefault(operator, _ByText()).add(number, str(predicate.value))

    def remove(self, number: int, predicate: Predicate) -> None:
        self._count -= 1
        operator = predicate.operator
        if operator is Operator.EXISTS:
            self._exists.discard(number)
        elif operator in (Operator.EQUAL, Operator.IN):
            self._equal.remove(number, predicate.values)
        elif predicate.is_negative:
            self._unlike.remove(number, predicate.values)
        elif operator in _LIMITS:
            self._limits[operator, isinstance(predicate.value, float)].remove(predicate.value, number)
        else:
            self._parts[operator].remove(number, str(predicate.value))

    def match(self, values: Iterable[str]) -> BitMap:
        """Those that are true for an attribute with these values, of which there is at least one."""
        texts = set(values)
        both: list[Value] = [*texts, *(number for text in texts if (number := number_of(text)) is not None)]
        true = [self._exists, *self._equal.of(both)]
        if self._unlike.everyone:
            true.append(self._unlike.everyone - BitMap.union(BitMap(), *self._unlike.of(both)))
        for (operator, is_number), limits in self._limits.items():
            compared = [one for one in both if isinstance(one, float) is is_number]
            true += [_BEYOND[operator](limits, one) for one in compared]
        for operator, parts in self._parts.items():
            true += [found for text in texts for found in _PARTS[operator](parts, text)]
        return BitMap.union(*true)


class _ByValue:
    """Numbers by values that they name."""

    __slots__ = ("_bitmaps", "everyone")

    def __init__(self) -> None:
        self._bitmaps: dict[Value, BitMap] = {}
        self.everyone = BitMap()

    def add(self, number: int, values: Iterable[Value]) -> None:
        self.everyone.add(number)
        for value in values:
            self._bitmaps.setdefault(value, BitMap()).add(number)

    def remove(self, number: int, values: Iterable[Value]) -> None:
        self.everyone.discard(number)
        for value in set(values):
            bitmap = self._bitmaps[value]
            bitmap.discard(number)
            if not bitmap:
                del self._bitmaps[value]

    def of(self, values: Iterable[Value]) -> Iterator[BitMap]:
        return (found for value in values if (found := self._bitmaps.get(value)) is not None)


class _ByText:
    """Numbers by parts of texts that they ask for."""

    __slots__ = ("_by_length",)

    def __init__(self) -> None:
        self._by_length: dict[int, dict[str, BitMap]] = {}

    def add(self, number: int, part: str) -> None:
        self._by_length.setdefault(len(part), {}).setdefault(part, BitMap()).add(number)

    def remove(self, number: int, part: str) -> None:
        parts = self._by_length[len(part)]
        parts[part].discard(number)
        if not parts[part]:
            del parts[part]
            if not parts:
                del self._by_length[len(part)]

    def prefixes_of(self, text: str) -> Iterator[BitMap]:
        for length, parts in self._by_length.items():
            if length <= len(text) and (found := parts.get(text[:length])) is not None:
                yield found

    def suffixes_of(self, text: str) -> Iterator[BitMap]:
        for length, parts in self._by_length.items():
            if length <= len(text) and (found := parts.get(text[len(text) - length :])) is not None:
                yield found

    def parts_of(self, text: str) -> Iterator[BitMap]:
        for length, parts in self._by_length.items():
            if len(parts) < len(text) - length:
                yield from (found for part, found in parts.items() if part in text)
            else:
                windows = {text[at : at + length] for at in range(len(text) - length + 1)}
                yield from (found for window in windows if (found := parts.get(window)) is not None)


_BEYOND: Final[dict[Operator, Callable[[SortedLimits, Value], BitMap]]] = {
    Operator.LESS: lambda limits, value: limits.above(value, equal=False),
    Operator.AT_MOST: lambda limits, value: limits.above(value, equal=True),
    Operator.GREATER: lambda limits, value: limits.below(value, equal=False),
    Operator.AT_LEAST: lambda limits, value: limits.below(value, equal=True),
}
_PARTS: Final[dict[Operator, Callable[[_ByText, str], Iterator[BitMap]]]] = {
    Operator.PREFIX: _ByText.prefixes_of,
    Operator.SUFFIX: _ByText.suffixes_of,
    Operator.CONTAINS: _ByText.parts_of,
}
