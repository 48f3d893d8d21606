"""Feeds that are not well-formed XML: feedparser reads them, in a process of its own.

Broken feeds are common, and feedparser understands most of them; but it is slow, and a hostile document could keep
it busy. So it runs as a child with limits on processor time and memory, and is ended when it takes too long. It
cannot say where an entry stands in the bytes, so such feeds are passed on whole; what it does find out is which
entries are new.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import resource
import sys

from push_hub.intake.config import IntakeConfig
from push_hub.intake.feeds import MAX_ENTRIES, MAX_TEXT, Entry, Feed, NotAFeedError, entry_key, read_feed, told_apart


class LooseReader:
    def __init__(self, config: IntakeConfig) -> None:
        self._config = config
        self._parses = asyncio.Semaphore(config.max_parses)

    async def read(self, topic: str, content_type: str, body: bytes) -> Feed | None:
        async with self._parses:
            try:
                return await asyncio.to_thread(read_feed, body, content_type)
            except NotAFeedError as error:
                if not error.malformed or len(body) > self._config.loose_max_bytes:
                    return None
            return await read_loosely(body, content_type, self._config.loose_timeout)

    async def close(self) -> None:
        pass


CHILD_MEMORY = 512 * 1024 * 1024
MAX_ANSWER = 8 * 1024 * 1024


async def read_loosely(body: bytes, content_type: str, allowed_seconds: float) -> Feed | None:
    """The feed as feedparser sees it; None when even that finds no entries, or takes too long."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "push_hub.intake.loose",
        str(max(1, int(allowed_seconds))),
        content_type[:200].encode("ascii", "replace").decode() or "text/xml",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(allowed_seconds):
            answer, _ = await child.communicate(body)
    except TimeoutError:
        return None
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    return _from_answer(answer) if child.returncode == 0 and len(answer) <= MAX_ANSWER else None


def _from_answer(answer: bytes) -> Feed | None:
    try:
        found = json.loads(answer)
        entries = [Entry(base64.b64decode(key), base64.b64decode(digest)) for key, digest in found["entries"]]
        frame = base64.b64decode(found["frame"])
    except (ValueError, KeyError, TypeError):
        return None
    return Feed(told_apart(entries), frame, cuttable=False) if entries else None


def describe(body: bytes, content_type: str) -> str:
    """What the child answers: keys and digests of the entries, and a digest of what stands around them."""
    import feedparser

    parsed = feedparser.parse(body, response_headers={"content-type": content_type})
    entries = []
    for entry in parsed.entries[:MAX_ENTRIES]:
        digest = hashlib.sha256(_stable(entry)).digest()
        kind, text = next(
            ((kind, str(entry[kind])[:MAX_TEXT]) for kind in ("id", "link", "title") if entry.get(kind)),
            ("content", digest.hex()),
        )
        entries.append((_text(entry_key(kind, text)), _text(digest)))
    return json.dumps({"entries": entries, "frame": _text(hashlib.sha256(_stable(parsed.feed)).digest())})


def _stable(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode("utf-8", "surrogatepass")


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def main() -> None:
    seconds = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (CHILD_MEMORY, CHILD_MEMORY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    sys.stdout.write(describe(sys.stdin.buffer.read(), sys.argv[2]))


if __name__ == "__main__":
    main()
