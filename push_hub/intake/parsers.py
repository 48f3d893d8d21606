"""The hub's side of the parser processes: a bounded pool, started when first needed, replaced when they fail.

feedparser is pure Python: in a thread it would take the interpreter away from the event loop for milliseconds at a
time, and could not be stopped. In a process of its own it can, and the other processor core is put to use.

What is plain (`plain`) is taken apart by the hub itself, in a time that is bounded by what plain is.

Whatever happens to a parser (too slow, killed, out of memory), its document is passed on whole: no ping waits for it.
One network has at most one parser at a time, whatever names its origins have, and so many seconds of them in a while:
slow documents of one publisher leave the others theirs.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from push_hub.discovery import is_called_feed
from push_hub.intake.config import IntakeConfig
from push_hub.intake.events import Observer, ParserGaveUp, ParsersDisagreed
from push_hub.intake.feeds import Feed
from push_hub.intake.packing import MAX_PACKED, unpacked
from push_hub.intake.plain import plain_feed
from push_hub.intake.ports import reason_of
from push_hub.intake.threads import Threads
from push_hub.intake.worker import ANSWER, QUESTION, ParseVerdict
from push_hub.xmlguard import UnsafeXmlError
from serving.fairness import FairQueue, KnownPrefixes, TimeBudgets, name_in
from storage.queues import QueueObserver, watch_queue

MAX_CONTENT_TYPE = 500


class ParserError(Exception):
    """The document was not taken apart; `reason` says why in words."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ParserGoneError(ParserError):
    """The process ended without an answer. That may be its own fault or the document's."""


class _Parser:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.documents = 0

    @classmethod
    async def start(cls, config: IntakeConfig) -> "_Parser":
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            # Isolated: neither the working directory nor the environment may say where modules come from.
            "-I",
            "-c",
            "from push_hub.intake.worker import main; main()",
            str(max(1, int(config.parse_timeout))),
            str(config.parser_memory),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the hub
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, content_type: str, body: bytes) -> tuple[ParseVerdict, bytes]:
        """Raises `ParserError`."""
        questions, answers = self._process.stdin, self._process.stdout
        assert questions is not None and answers is not None  # noqa: S101 - both are pipes
        kind = content_type[:MAX_CONTENT_TYPE].encode("utf-8", "replace")
        self.documents += 1
        try:
            questions.write(QUESTION.pack(len(kind), len(body)) + kind)
            questions.write(body)
            await questions.drain()
            letter, length = ANSWER.unpack(await answers.readexactly(ANSWER.size))
            if length > MAX_PACKED:
                raise ParserError("the parser's answer is too long")
            return ParseVerdict(letter), await answers.readexactly(length)
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            raise ParserGoneError("the parser ended without an answer") from error

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._process.wait()


class ParserPool:
    """`FeedReader` by at most `max_parses` processes."""

    def __init__(
        self,
        config: IntakeConfig,
        threads: Threads,
        observer: Observer | None = None,
        prefixes: KnownPrefixes | None = None,
        clock: Callable[[], float] = time.monotonic,
        queues: QueueObserver | None = None,
    ) -> None:
        self._documents = watch_queue("parser", queues)
        self._config = config
        self._threads = threads
        self._observer = observer
        self._prefixes = KnownPrefixes() if prefixes is None else prefixes
        self._clock = clock
        self._lines: FairQueue[asyncio.Future[str]] = FairQueue(config.max_parses, 1)
        self._budgets = TimeBudgets(config.parse_share)
        self._free: list[_Parser] = []
        self._all: set[_Parser] = set()

    @property
    def pids(self) -> list[int]:
        return [parser.pid for parser in self._all]

    async def read(self, topic: str, content_type: str, body: bytes) -> Feed | None:
        """None for what is no feed, and when the parsers disagree or give up. Raises `UnsafeXmlError`."""
        plain = self.read_plain(topic, content_type, body)
        if plain is not None:
            return plain
        try:
            if len(body) > self._config.parse_max_bytes:
                raise ParserError(f"larger than {self._config.parse_max_bytes} bytes")
            async with self._place(topic):
                verdict, answer = await self._judged(content_type, body)
            if verdict is ParseVerdict.FEED:
                return await self._threads.run_on(answer, unpacked, answer)
        except (ParserError, OSError, ValueError) as error:
            verdict, answer = ParseVerdict.FAILED, reason_of(error).encode()
        words = answer.decode("utf-8", "replace")
        if verdict is ParseVerdict.UNSAFE:
            raise UnsafeXmlError(words)
        if self._observer is not None:
            if verdict is ParseVerdict.FAILED:
                self._observer(ParserGaveUp(topic, words))
            elif verdict is ParseVerdict.DISAGREEMENT:
                self._observer(ParsersDisagreed(topic, words))
            elif is_called_feed(content_type):
                self._observer(ParserGaveUp(topic, "its type says that it is a feed, and no parser finds one in it"))
        return None

    def read_plain(self, topic: str, content_type: str, body: bytes) -> Feed | None:
        """Here and now, when it is so plain that nobody needs to be asked. It costs its network's time all the same."""
        prefix = self._prefixes.of_url(topic)
        began = self._clock()
        if self._budgets.left(prefix, began) <= 0:
            return None
        feed = plain_feed(body, content_type)
        now = self._clock()
        self._budgets.spend(prefix, now - began, now)
        return feed

    @asynccontextmanager
    async def _place(self, topic: str) -> AsyncIterator[None]:
        """A place for one document, charged to the network that its topic is in. Raises `ParserError`."""
        turn: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        stay = None if self._documents is None else self._documents.came(topic)
        self._lines.put(self._prefixes.of_url(topic), name_in(topic), turn)
        self._give_places()
        try:
            prefix = await turn
        except asyncio.CancelledError:
            if stay is not None:
                stay.leaves()
            if turn.done() and not turn.cancelled():
                self._leave(turn.result())
            raise
        began = self._clock()
        if stay is not None:
            stay.begins()
        try:
            if self._budgets.left(prefix, began) <= 0:
                raise ParserError(f"the parsers' time for {prefix} is used up for now")
            yield
        finally:
            now = self._clock()
            self._budgets.spend(prefix, now - began, now)
            if stay is not None:
                stay.ends()
            self._leave(prefix)

    def _leave(self, prefix: str) -> None:
        self._lines.release(prefix)
        self._give_places()

    def _give_places(self) -> None:
        while (found := self._lines.take()) is not None:
            prefix, turn = found
            if turn.done():  # whoever waited has gone
                self._lines.release(prefix)
            else:
                turn.set_result(prefix)

    async def close(self) -> None:
        await asyncio.gather(*(self._end(parser) for parser in list(self._all)))

    async def _judged(self, content_type: str, body: bytes) -> tuple[ParseVerdict, bytes]:
        if self._free:
            # It may have died since its last document, which says nothing about this one: a new one is asked then.
            with contextlib.suppress(ParserGoneError):
                return await self._asked(self._free.pop(), content_type, body)
        parser = await _Parser.start(self._config)
        self._all.add(parser)
        return await self._asked(parser, content_type, body)

    async def _asked(self, parser: _Parser, content_type: str, body: bytes) -> tuple[ParseVerdict, bytes]:
        usable = False
        try:
            async with asyncio.timeout(self._config.parse_timeout):
                verdict, words = await parser.ask(content_type, body)
            usable = verdict is not ParseVerdict.FAILED and parser.documents < self._config.parser_documents
            return verdict, words
        except TimeoutError:
            raise ParserError(f"not taken apart within {self._config.parse_timeout:g} s") from None
        finally:
            if usable:
                self._free.append(parser)
            else:
                await self._end(parser)

    async def _end(self, parser: _Parser) -> None:
        self._all.discard(parser)
        if parser in self._free:
            self._free.remove(parser)
        await parser.end()
