"""Subscriptions by content: what a publication's attributes must be, and which of many such wishes one fulfils.

    selector = parse_selector("symbol = 'psph' and price >= 3.5 and tag in ('a', 'b')")
    selector.matches({"symbol": ("psph",), "price": ("4",)})
    index = SelectorIndex()
    index.add(7, selector)
    index.match(attributes)                                  # a bitmap of numbers: 7 is in it or not

No module here names a protocol or does I/O; whoever has a publication says what its attributes are.
"""

from exchange.selection.grammar import SelectorError, parse_selector
from exchange.selection.index import SelectorIndex
from exchange.selection.selector import ANYTHING, Attributes, Operator, Predicate, Selector

__all__ = [
    "ANYTHING",
    "Attributes",
    "Operator",
    "Predicate",
    "Selector",
    "SelectorError",
    "SelectorIndex",
    "parse_selector",
]
