"""Names that look like other names, by Unicode's Technical Standard 39.

    shape              what a name looks like: two names with one shape can be taken for each other (its «skeleton»)
    why_misleading     why a name should not be given to anybody, whatever other names there are

The table of characters that look alike is that of the package `confusable_homoglyphs`, made from Unicode's own.
"""

import json
import re
import unicodedata
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from itertools import groupby

NO_SCRIPT = frozenset({"COMMON", "INHERITED"})
WRITTEN_TOGETHER = (
    frozenset({"LATIN", "HAN", "HIRAGANA", "KATAKANA"}),
    frozenset({"LATIN", "HAN", "BOPOMOFO"}),
    frozenset({"LATIN", "HAN", "HANGUL"}),
)
"""Scripts that one word may mix: the «highly restrictive» level of the standard."""
_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""What Unicode calls default ignorable, some of it letters and marks, and the empty character of Braille."""
MAX_STEPS = 8
MAX_MARKS = 2
"""Accents on one letter."""


def shape(name: str) -> str:
    """Loads a table when it is first used, which takes a tenth of a second."""
    alike, before, looks = _alike(), "", unicodedata.normalize("NFD", name)
    for _ in range(MAX_STEPS):  # what stands for a character is put together of others, which may look like others too
        if looks == before:
            break
        before, looks = looks, unicodedata.normalize("NFD", "".join(alike.get(one, one) for one in looks).lower())
    return looks


def why_misleading(name: str) -> str | None:
    """In words for whoever wanted it; None for names that are in order. `name` is in lower case and NFC."""
    if _UNSEEN.search(name):
        return "it has characters that cannot be seen"
    plain = unicodedata.normalize("NFKC", name)
    if plain != name:
        return f"it has letters in another form than usual: write {plain!r}"
    marks = [len(list(run)) for is_mark, run in groupby(unicodedata.normalize("NFD", name), _is_mark) if is_mark]
    if _is_mark(name[:1]) or any(length > MAX_MARKS for length in marks):
        return f"it has accents without a letter, or more than {MAX_MARKS} on one"
    if len({ord(one) - unicodedata.decimal(one) for one in name if one.isdecimal()}) > 1:
        return "it mixes digits of several kinds"
    scripts = _scripts(name)
    if len(scripts) > 1 and not any(scripts <= together for together in WRITTEN_TOGETHER):
        listed = " and ".join(sorted(script.capitalize() for script in scripts))
        return f"it mixes letters of {listed}, which look alike: use one alphabet"
    return None


def _is_mark(character: str) -> bool:
    return bool(character) and unicodedata.category(character) in ("Mn", "Me")


def _scripts(name: str) -> frozenset[str]:
    from confusable_homoglyphs import categories

    return frozenset(categories.unique_aliases(name)) - NO_SCRIPT


@cache
def _alike() -> Mapping[str, str]:
    """What stands for each character that looks like another one.

    In the package's table each character has a list of all that look like it. Where that is only one, which has others
    beside, that one stands for all of them.
    """
    table: dict[str, list[dict[str, str]]] = json.loads(
        (files("confusable_homoglyphs") / "confusables.json").read_text(encoding="utf-8")
    )
    found = {}
    for character, likenesses in table.items():
        if len(character) == len(likenesses) == 1:
            other = likenesses[0]["c"]
            if len(table[other]) > 1 or other < character or len(other) > 1:
                found[character] = other
    return found
