"""A parser process: takes feeds apart, one after another, as they come on standard input.

It has limits of memory, files and processor time a document, so that a document that was made to harm a parser harms
only this process; the hub starts another. It ends when its input does, thus also when the hub was killed.

A question is two lengths, the content type and the body; an answer is a letter (`ParseVerdict`), a length and what
belongs to it.
"""

import resource
import struct
import sys
from enum import Enum
from typing import BinaryIO

from push_hub.intake.packing import packed
from push_hub.xmlguard import UnsafeXmlError

QUESTION = struct.Struct("!II")
ANSWER = struct.Struct("!cI")
MAX_FILES = 64
MAX_WORDS = 500


class ParseVerdict(Enum):
    FEED = b"F"
    NO_FEED = b"N"
    UNSAFE = b"U"
    DISAGREEMENT = b"D"
    FAILED = b"E"
    """The parser itself failed; this process ends after saying so."""


def judged(body: bytes, content_type: str) -> tuple[ParseVerdict, bytes]:
    # Here, so that the hub can import this module without feedparser.
    from push_hub.intake.entries import DisagreementError, take_apart

    try:
        feed = take_apart(body, content_type)
    except UnsafeXmlError as error:
        return ParseVerdict.UNSAFE, _words(str(error))
    except DisagreementError as error:
        return ParseVerdict.DISAGREEMENT, _words(str(error))
    except (Exception, MemoryError) as error:
        return ParseVerdict.FAILED, _words(f"{type(error).__name__}: {error}")
    return (ParseVerdict.NO_FEED, b"") if feed is None else (ParseVerdict.FEED, packed(feed))


def serve(questions: BinaryIO, answers: BinaryIO, seconds: int) -> None:
    while len(head := questions.read(QUESTION.size)) == QUESTION.size:
        type_length, body_length = QUESTION.unpack(head)
        content_type = questions.read(type_length).decode("utf-8", "replace")
        body = questions.read(body_length)
        if len(body) < body_length:
            return
        _allow_seconds(seconds)
        verdict, words = judged(body, content_type)
        answers.write(ANSWER.pack(verdict.value, len(words)) + words)
        answers.flush()
        if verdict is ParseVerdict.FAILED:
            return


def _allow_seconds(seconds: int) -> None:
    """So much processor time from now on; the kernel ends the process when it takes more."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime) + seconds + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _words(text: str) -> bytes:
    return text[:MAX_WORDS].encode("utf-8", "replace")


def main() -> None:
    seconds, memory = int(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_NOFILE, (MAX_FILES, MAX_FILES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import push_hub.intake.entries  # noqa: F401 - loads feedparser while the first document is on its way

    serve(sys.stdin.buffer, sys.stdout.buffer, seconds)
