"""Patterns match as the specification says, and the tree says the same as looking at each pattern by itself."""

from hypothesis import given
from hypothesis import strategies as st

from exchange.patterns import NameTree, PatternTree

LEVELS = st.sampled_from(["", "a", "b", "$x", "$SYS"])
NAMES = st.lists(LEVELS, min_size=1, max_size=4).map("/".join)


@st.composite
def patterns(draw: st.DrawFn) -> str:
    levels = draw(st.lists(st.sampled_from(["", "a", "b", "$x", "$SYS", "+"]), max_size=4))
    if draw(st.booleans()) or not levels:
        levels.append("#")
    return "/".join(levels)


def matches(pattern: str, name: str) -> bool:
    """As the specification has it, level by level."""
    wanted, levels = pattern.split("/"), name.split("/")
    if name.startswith("$") and wanted[0] in ("+", "#"):
        return False
    for place, level in enumerate(wanted):
        if level == "#":
            return True
        if place >= len(levels) or level not in ("+", levels[place]):
            return False
    return len(wanted) == len(levels)


@given(st.lists(patterns(), max_size=20), st.lists(NAMES, max_size=10), st.data())
def test_the_tree_says_what_every_pattern_says(wanted: list[str], names: list[str], data: st.DataObject) -> None:
    tree: PatternTree[int, int] = PatternTree()
    kept = dict(enumerate(wanted))
    for key, pattern in kept.items():
        assert tree.put(pattern, key, key)
    for name in names:
        assert sorted(tree.matching(name)) == [key for key, pattern in kept.items() if matches(pattern, name)]
    for key in data.draw(st.lists(st.sampled_from(sorted(kept)), unique=True)) if kept else []:
        assert tree.drop(kept.pop(key), key)
        for name in names:
            assert sorted(tree.matching(name)) == [key for key, pattern in kept.items() if matches(pattern, name)]
    assert len(tree) == len(kept)
    for key, pattern in kept.items():
        assert tree.drop(pattern, key)
        assert not tree.drop(pattern, key)
    assert tree._root.is_bare, "nothing is left of what went"


@given(st.lists(NAMES, max_size=15, unique=True), patterns(), st.data())
def test_names_are_found_by_patterns(names: list[str], pattern: str, data: st.DataObject) -> None:
    tree = NameTree()
    for name in names:
        tree.add(name)
        tree.add(name)
    assert sorted(tree.matching(pattern)) == sorted(name for name in names if matches(pattern, name))
    for name in data.draw(st.lists(st.sampled_from(names), unique=True)) if names else []:
        tree.remove(name)
        names.remove(name)
        assert sorted(tree.matching(pattern)) == sorted(name for name in names if matches(pattern, name))
    assert len(tree) == len(names)


def test_examples_of_the_specification() -> None:
    assert matches("sport/tennis/player1/#", "sport/tennis/player1")
    assert matches("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon")
    assert not matches("sport/+", "sport")
    assert matches("sport/+", "sport/")
    assert matches("/+", "/finance")
    assert not matches("+", "/finance")
    assert not matches("#", "$SYS/broker")
    assert not matches("+/monitor/Clients", "$SYS/monitor/Clients")
    assert matches("$SYS/monitor/+", "$SYS/monitor/Clients")
