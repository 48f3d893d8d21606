"""Selectors as people write them. Sans-I/O.

    symbol = 'psph' and price >= 3.5 and tag in ('a', 'b') and title contains 'it''s' and author exists

Names stand bare, or in quotes if they have spaces or are words of the language. Texts stand in single or double quotes,
a quote in them is doubled; numbers stand bare.
"""

import re
from typing import Final, NoReturn

from exchange.selection.selector import ANYTHING, MAX_PREDICATES, Operator, Predicate, Selector, Value, number_of

MAX_LENGTH: Final = 4096
_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
      | (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
      | (?P<word>[^\W\d][\w.:/@-]*|@[\w.:/@-]+)
      | (?P<sign><=|>=|!=|<|>|=|\(|\)|,)
    )""",
    re.VERBOSE,
)
_SIGNS: Final = {one.value: one for one in Operator if not one.value[0].isalpha()}
_WORDS: Final = {one.value: one for one in Operator if one.value.isalpha()}


class SelectorError(ValueError):
    """A text is no selector; it says where and what was expected."""


def parse_selector(text: str) -> Selector:
    """Raises `SelectorError`."""
    if len(text) > MAX_LENGTH:
        raise SelectorError(f"a selector has at most {MAX_LENGTH} characters, this one has {len(text)}")
    return _Reader(text).selector()


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._kind: str | None = None
        self._found = ""
        self._next()

    def selector(self) -> Selector:
        if self._is_over():
            return ANYTHING
        predicates = [self._predicate()]
        while not self._is_over():
            if not self._is_word("and"):
                self._fail("and, or the end")
            self._next()
            if len(predicates) == MAX_PREDICATES:
                raise SelectorError(f"a selector has at most {MAX_PREDICATES} predicates")
            predicates.append(self._predicate())
        return Selector(tuple(predicates))

    def _is_over(self) -> bool:
        return self._kind is None

    def _predicate(self) -> Predicate:
        if self._kind == "word":
            name = self._found
        elif self._kind == "text":
            name = _unquoted(self._found)
        else:
            self._fail("the name of an attribute")
        self._next()
        operator = self._operator()
        values: tuple[Value, ...] = ()
        if operator in (Operator.IN, Operator.NOT_IN):
            values = self._list()
        elif operator is not Operator.EXISTS:
            values = (self._value(),)
        try:
            return Predicate(name, operator, values)
        except ValueError as error:
            raise SelectorError(f"{name[:80]}: {error}") from None

    def _operator(self) -> Operator:
        operator = _SIGNS.get(self._found) if self._kind == "sign" else None
        if self._kind == "word":
            operator = _WORDS.get(self._found.lower())
            if self._is_word("not"):
                self._next()
                if not self._is_word("in"):
                    self._fail("in, after not")
                operator = Operator.NOT_IN
        if operator is None:
            self._fail("one of = != < <= > >= in, not in, prefix, suffix, contains, exists")
        self._next()
        return operator

    def _list(self) -> tuple[Value, ...]:
        self._expect("(")
        values = [self._value()]
        while self._kind == "sign" and self._found == ",":
            self._next()
            values.append(self._value())
        self._expect(")")
        return tuple(values)

    def _value(self) -> Value:
        value: Value | None = None
        if self._kind == "text":
            value = _unquoted(self._found)
        elif self._kind == "number":
            value = number_of(self._found)
        if value is None:
            self._fail("a text in quotes or a number")
        self._next()
        return value

    def _expect(self, sign: str) -> None:
        if self._kind != "sign" or self._found != sign:
            self._fail(sign)
        self._next()

    def _is_word(self, word: str) -> bool:
        return self._kind == "word" and self._found.lower() == word

    def _next(self) -> None:
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            rest = self._text[self._at :].strip()
            if rest:
                raise SelectorError(f"at {self._at + 1}: {rest[:20]!r} is nothing that stands in a selector")
            self._kind, self._found = None, ""
            return
        self._kind = found.lastgroup
        self._found = found[self._kind] if self._kind else ""
        self._at = found.end()

    def _fail(self, expected: str) -> NoReturn:
        found = repr(self._found[:40]) if self._kind is not None else "the end"
        raise SelectorError(f"at {self._at}: expected {expected}, found {found}")


def _unquoted(token: str) -> str:
    quote = token[0]
    return token[1:-1].replace(quote * 2, quote)
