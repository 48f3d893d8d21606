"""Patterns over names with levels, and names under patterns: one matcher for all protocols with wildcards. Sans-I/O.

A name is levels between slashes. In a pattern `+` stands for one level, and `#` at the end for the level before it and
all below. Wildcards at the front do not stand for a first level that begins with `$`: such names are not of everybody.

Patterns are a tree whose edges are levels, so a name costs as much as it has levels, whatever the number of patterns;
names that were asked for are remembered until a pattern comes or goes.
"""

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

ONE: Final = "+"
REST: Final = "#"
BETWEEN: Final = "/"
APART: Final = "$"
REMEMBERED: Final = 20_000
"""Names whose answer is known."""

K = TypeVar("K")
V = TypeVar("V")


def has_wildcard(pattern: str) -> bool:
    return ONE in pattern or REST in pattern


class _Branch(Generic[K, V]):
    __slots__ = ("below", "ends", "tails")

    def __init__(self) -> None:
        self.below: dict[str, _Branch[K, V]] = {}
        self.ends: dict[K, V] = {}
        self.tails: dict[K, V] = {}
        """Of patterns that end in `#` here."""

    @property
    def is_bare(self) -> bool:
        return not (self.below or self.ends or self.tails)


class PatternTree(Generic[K, V]):
    """Values under a pattern and a key, found by names."""

    def __init__(self) -> None:
        self._root: _Branch[K, V] = _Branch()
        self._known: dict[str, tuple[V, ...]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, pattern: str, key: K, value: V) -> bool:
        """Whether it is new; a value that was there is replaced."""
        place, leaf = self._place(pattern)
        ends = place.tails if leaf else place.ends
        is_new = key not in ends
        ends[key] = value
        self._count += is_new
        self._known.clear()
        return is_new

    def drop(self, pattern: str, key: K) -> bool:
        levels = pattern.split(BETWEEN)
        is_rest = levels[-1] == REST
        if is_rest:
            levels.pop()
        way = [self._root]
        for level in levels:
            found = way[-1].below.get(level)
            if found is None:
                return False
            way.append(found)
        ends = way[-1].tails if is_rest else way[-1].ends
        if ends.pop(key, None) is None:
            return False
        self._count -= 1
        self._known.clear()
        for level, above, branch in zip(reversed(levels), reversed(way[:-1]), reversed(way[1:]), strict=True):
            if not branch.is_bare:
                break
            del above.below[level]
        return True

    def matching(self, name: str) -> tuple[V, ...]:
        known = self._known.get(name)
        if known is None:
            known = tuple(self.look_up(name))
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[name] = known
        return known

    def look_up(self, name: str) -> list[V]:
        """Without what is remembered."""
        levels = name.split(BETWEEN)
        found: list[V] = []
        root = self._root
        if name.startswith(APART):
            first = root.below.get(levels[0])
            if first is not None:
                self._search(first, levels, 1, found)
            return found
        self._search(root, levels, 0, found)
        return found

    def _search(self, branch: _Branch[K, V], levels: list[str], at: int, found: list[V]) -> None:
        if branch.tails:
            found += branch.tails.values()
        if at == len(levels):
            found += branch.ends.values()
            return
        below = branch.below
        exact = below.get(levels[at])
        if exact is not None:
            self._search(exact, levels, at + 1, found)
        one = below.get(ONE)
        if one is not None:
            self._search(one, levels, at + 1, found)

    def _place(self, pattern: str) -> tuple[_Branch[K, V], bool]:
        levels = pattern.split(BETWEEN)
        is_rest = levels[-1] == REST
        if is_rest:
            levels.pop()
        branch = self._root
        for level in levels:
            branch = branch.below.setdefault(level, _Branch())
        return branch, is_rest


class _Twig:
    __slots__ = ("below", "is_name")

    def __init__(self) -> None:
        self.below: dict[str, _Twig] = {}
        self.is_name = False


class NameTree:
    """Names, found by patterns."""

    def __init__(self) -> None:
        self._root = _Twig()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, name: str) -> None:
        twig = self._root
        for level in name.split(BETWEEN):
            twig = twig.below.setdefault(level, _Twig())
        self._count += not twig.is_name
        twig.is_name = True

    def remove(self, name: str) -> None:
        levels = name.split(BETWEEN)
        way = [self._root]
        for level in levels:
            found = way[-1].below.get(level)
            if found is None:
                return
            way.append(found)
        self._count -= way[-1].is_name
        way[-1].is_name = False
        for level, above, twig in zip(reversed(levels), reversed(way[:-1]), reversed(way[1:]), strict=True):
            if twig.below or twig.is_name:
                break
            del above.below[level]

    def matching(self, pattern: str) -> Iterator[str]:
        levels = pattern.split(BETWEEN)
        waiting: list[tuple[_Twig, int, str]] = [(self._root, 0, "")]
        while waiting:
            twig, at, name = waiting.pop()
            if at == len(levels):
                if twig.is_name:
                    yield name
                continue
            level = levels[at]
            if level == REST:
                if twig.is_name:
                    yield name
                waiting += [(below, at, self._joined(name, one, twig)) for one, below in self._open(twig)]
            elif level == ONE:
                waiting += [(below, at + 1, self._joined(name, one, twig)) for one, below in self._open(twig)]
            elif level in twig.below:
                waiting.append((twig.below[level], at + 1, self._joined(name, level, twig)))

    def _open(self, twig: _Twig) -> Iterator[tuple[str, _Twig]]:
        """What a wildcard stands for."""
        for level, below in twig.below.items():
            if twig is not self._root or not level.startswith(APART):
                yield level, below

    def _joined(self, name: str, level: str, above: _Twig) -> str:
        return level if above is self._root else f"{name}{BETWEEN}{level}"
