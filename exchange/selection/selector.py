"""What one subscription asks of a publication's attributes: predicates that must all be true. Sans-I/O.

An attribute has a name and one value or several (a feed's entry can have many categories). A value is text; where a
predicate compares with a number, texts that are numbers are compared as such, and others fail. Every predicate is false
for an attribute that is not there, `!=` and `not in` too: say `exists` or nothing for what may be absent.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

Value = str | float
"""A number is always a float: 3 and 3.0 are one value."""
Attributes = Mapping[str, Sequence[str]]
"""The values of each attribute, in the order in which they stand."""
MAX_PREDICATES: Final = 8
MAX_VALUES: Final = 64
"""Of one predicate with `in` or `not in`."""
MAX_TEXT: Final = 256
"""Characters of a name or of a value that is compared with."""


class Operator(Enum):
    EQUAL = "="
    NOT_EQUAL = "!="
    LESS = "<"
    AT_MOST = "<="
    GREATER = ">"
    AT_LEAST = ">="
    IN = "in"
    NOT_IN = "not in"
    PREFIX = "prefix"
    SUFFIX = "suffix"
    CONTAINS = "contains"
    EXISTS = "exists"


_TEXT_ONLY: Final = frozenset({Operator.PREFIX, Operator.SUFFIX, Operator.CONTAINS})
_LISTS: Final = frozenset({Operator.IN, Operator.NOT_IN})
_NONE: Final = frozenset({Operator.NOT_EQUAL, Operator.NOT_IN})
"""True when none of an attribute's values is one of those that are named."""


def number_of(text: str) -> float | None:
    """The number that a text is, if it is one that can be compared."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


@dataclass(frozen=True, slots=True)
class Predicate:
    """One condition. Raises `ValueError` for what makes no sense."""

    name: str
    operator: Operator
    values: tuple[Value, ...] = ()

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > MAX_TEXT:
            raise ValueError(f"a name has 1 to {MAX_TEXT} characters")
        expected = 0 if self.operator is Operator.EXISTS else 1
        if self.operator in _LISTS:
            if not 1 <= len(self.values) <= MAX_VALUES:
                raise ValueError(f"{self.operator.value} takes 1 to {MAX_VALUES} values")
        elif len(self.values) != expected:
            raise ValueError(f"{self.operator.value} takes {expected or 'no'} value")
        for value in self.values:
            if isinstance(value, str) and len(value) > MAX_TEXT:
                raise ValueError(f"a value has at most {MAX_TEXT} characters")
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError("a number is finite")
            if isinstance(value, float) and self.operator in _TEXT_ONLY:
                raise ValueError(f"{self.operator.value} takes a text, in quotes")

    @property
    def value(self) -> Value:
        return self.values[0]

    @property
    def is_negative(self) -> bool:
        return self.operator in _NONE

    def holds(self, attributes: Attributes) -> bool:
        found = attributes.get(self.name)
        if not found:
            return False
        if self.operator is Operator.EXISTS:
            return True
        if self.is_negative:
            return not any(self._is_named(text) for text in found)
        if self.operator in (Operator.EQUAL, Operator.IN):
            return any(self._is_named(text) for text in found)
        compare = _COMPARISONS[self.operator]
        if isinstance(self.value, float):
            numbers = map(number_of, found)
            return any(number is not None and compare(number, self.value) for number in numbers)
        return any(compare(text, self.value) for text in found)

    def _is_named(self, text: str) -> bool:
        number = number_of(text)
        return any(value == (number if isinstance(value, float) else text) for value in self.values)

    def __str__(self) -> str:
        name = self.name if is_plain_name(self.name) else _quoted(self.name)
        if self.operator is Operator.EXISTS:
            return f"{name} exists"
        if self.operator in _LISTS:
            return f"{name} {self.operator.value} ({', '.join(map(_shown, self.values))})"
        return f"{name} {self.operator.value} {_shown(self.value)}"


def is_plain_name(name: str) -> bool:
    """Whether a name needs no quotes where selectors are written."""
    return bool(_first_part(name)) and all(c.isalnum() or c in "_.:-/@" for c in name) and not _is_word(name)


def _first_part(name: str) -> bool:
    return name[:1].isalpha() or name[:1] in "_@"


def _is_word(name: str) -> bool:
    return name.lower() in ("and", "in", "not", "prefix", "suffix", "contains", "exists")


def _shown(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else repr(value)
    return _quoted(value)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_COMPARISONS: Final[Mapping[Operator, Callable[..., bool]]] = {
    Operator.LESS: lambda found, value: found < value,
    Operator.AT_MOST: lambda found, value: found <= value,
    Operator.GREATER: lambda found, value: found > value,
    Operator.AT_LEAST: lambda found, value: found >= value,
    Operator.PREFIX: str.startswith,
    Operator.SUFFIX: str.endswith,
    Operator.CONTAINS: lambda found, value: value in found,
}


@dataclass(frozen=True, slots=True)
class Selector:
    """All of these; none: everything is selected. Raises `ValueError`."""

    predicates: tuple[Predicate, ...] = ()

    def __post_init__(self) -> None:
        if len(self.predicates) > MAX_PREDICATES:
            raise ValueError(f"a selector has at most {MAX_PREDICATES} predicates")

    def matches(self, attributes: Attributes) -> bool:
        return all(predicate.holds(attributes) for predicate in self.predicates)

    def failed(self, attributes: Attributes) -> Predicate | None:
        """The first predicate that is not true, for people who ask why something did not come."""
        return next((predicate for predicate in self.predicates if not predicate.holds(attributes)), None)

    def __str__(self) -> str:
        """As `parse_selector` reads it."""
        return " and ".join(map(str, self.predicates))


ANYTHING: Final = Selector()
