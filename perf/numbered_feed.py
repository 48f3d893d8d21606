"""A feed whose newest entry has a number, so that whoever gets it knows how far the publisher was."""


def document(number: int) -> bytes:
    """What a topic says: a feed whose newest entry has this number."""
    entries = "".join(
        f"<entry><id>urn:entry:{n}</id><title>Entry {n}</title><updated>2026-01-01T00:00:00Z</updated></entry>"
        for n in range(number, max(0, number - 5), -1)
    )
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:feed</id>'
        f"<title>A feed</title><updated>2026-01-01T00:00:00Z</updated>{entries}</feed>"
    ).encode()


def number_in(body: bytes) -> int:
    """The number of the newest entry of a feed, or of what the hub reduced it to."""
    return max((int(part.split(b"<", 1)[0]) for part in body.split(b"urn:entry:")[1:]), default=0)
