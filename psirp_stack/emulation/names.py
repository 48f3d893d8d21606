"""Names of nodes, made from names that stand in somebody's file of a graph: «Adelaide,+Australia1722» and the like."""

import re
from collections.abc import Iterable

MAX_NAME = 64
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_BEFORE_NAMES = re.compile(r"^[^A-Za-z0-9]+")


def node_names(given: Iterable[str]) -> dict[str, str]:
    """A node's name for each given one. Those that are names of nodes stay; no two become the same."""
    asked = list(dict.fromkeys(given))
    made = {name: name for name in asked if _made(name) == name}
    taken = set(made)
    for name in asked:
        if name not in made:
            made[name] = _free(_made(name) or "node", taken)
            taken.add(made[name])
    return made


def _made(name: str) -> str:
    return _BEFORE_NAMES.sub("", _NOT_IN_NAMES.sub("-", name))[:MAX_NAME].rstrip("-")


def _free(name: str, taken: set[str]) -> str:
    number, tried = 1, name
    while tried in taken:
        number += 1
        tail = f"-{number}"
        tried = name[: MAX_NAME - len(tail)] + tail
    return tried
