"""Header fields of a request."""

import re

_UNSAFE_NAME = re.compile(r"[^!#$%&'*+.^_`|~0-9A-Za-z-]")
_UNSAFE_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def header_line(name: str, value: str) -> bytes:
    """One header field as libcurl takes it. Refuses what could smuggle in another field."""
    if _UNSAFE_NAME.search(name) or not name or _UNSAFE_VALUE.search(value):
        raise ValueError(f"the header field {name!r} has a character that is not allowed")
    # A semicolon is how libcurl is told that a field is there, but empty.
    return (f"{name}: {value}" if value else f"{name};").encode("latin-1")
