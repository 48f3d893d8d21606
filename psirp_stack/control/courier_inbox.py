"""The receiving half of a courier for one other node: puts messages together, in order, each once."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from psirp_stack.control.courier_wire import (
    MAX_HELD_FIELDS,
    MAX_PIECES,
    MAX_RECEIVED_FIELDS,
    WINDOW,
    HeldPieces,
    Piece,
    Received,
    Speaker,
    bits_of,
)
from psirp_stack.control.messages import MAX_MESSAGE_BYTES


@dataclass(slots=True)
class Partial:
    """A message of which some pieces are there."""

    cut: int
    parts: int
    function: int
    touched: float
    chunks: dict[int, bytes] = field(default_factory=dict)
    size: int = 0

    @property
    def whole(self) -> bool:
        return len(self.chunks) == self.parts


@dataclass(slots=True)
class Inbox:
    """What is known of the messages that one life of one sender sends here."""

    boot: int
    floor: int = 0
    """Everything below is settled as far as the sender is concerned."""
    expected: int = 0
    """The next number to hand up."""
    partials: dict[int, Partial] = field(default_factory=dict)
    """Messages that were not handed up yet, whole or not, by number."""
    handed: dict[int, int] = field(default_factory=dict)
    """Handed up, not acknowledged: the cut by number."""
    parts_handed: dict[int, int] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    """Numbers whose sender wants to know what is here."""
    answer_due: bool = False

    @property
    def held_bytes(self) -> int:
        return sum(partial.size for partial in self.partials.values())

    def raise_floor(self, floor: int) -> int:
        """The sender settled everything below; says how many bytes became free."""
        if floor <= self.floor:
            return 0
        self.floor = floor
        self.expected = max(self.expected, floor)
        freed = sum(self.drop(number) for number in [n for n in self.partials if n < floor])
        for known in (self.handed, self.parts_handed):
            for number in [n for n in known if n < floor]:
                del known[number]
        self.done = {number for number in self.done if number >= floor}
        self.asked = {number for number in self.asked if number >= floor}
        return freed

    def drop(self, number: int) -> int:
        """Forget the pieces of a message; says how many bytes became free."""
        partial = self.partials.pop(number, None)
        return 0 if partial is None else partial.size

    def is_settled(self, number: int) -> bool:
        return number < self.floor or number in self.done

    def add(self, piece: Piece, now: float) -> int | None:
        """Keep a piece; says how many bytes more are held (fewer when a former cut goes), None if it does not fit."""
        freed = 0
        partial = self.partials.get(piece.number)
        if partial is not None and piece.cut > partial.cut and not partial.whole:
            freed = self.drop(piece.number)
            partial = None
        if partial is None:
            partial = Partial(piece.cut, piece.parts, piece.function, now)
            self.partials[piece.number] = partial
        elif (piece.cut, piece.parts, piece.function) != (partial.cut, partial.parts, partial.function):
            return None
        size = len(piece.body)
        if partial.size + size > MAX_MESSAGE_BYTES:
            return None
        partial.chunks[piece.part] = piece.body
        partial.size += size
        partial.touched = now
        return size - freed

    def next_whole(self) -> Iterator[tuple[int, int, bytes]]:
        """Number, function and body of the messages whose turn it is."""
        while (partial := self.partials.get(self.expected)) is not None and partial.whole:
            number = self.expected
            del self.partials[number]
            self.handed[number] = partial.cut
            self.parts_handed[number] = partial.parts
            self.expected += 1
            yield number, partial.function, b"".join(partial.chunks[part] for part in range(partial.parts))

    def acknowledge(self, number: int) -> bool:
        """The handler is done with a message; false when its sender has given up waiting."""
        if self.handed.pop(number, None) is None:
            return False
        del self.parts_handed[number]
        self.done.add(number)
        self.answer_due = True
        return True

    def has(self, piece: Piece) -> bool:
        partial = self.partials.get(piece.number)
        return partial is not None and partial.cut == piece.cut and piece.part in partial.chunks

    def is_whole(self, number: int) -> bool:
        partial = self.partials.get(number)
        return partial is not None and partial.whole

    def answer(self, speaker: Speaker, room: int) -> Received:
        """Everything the sender should know now, as far as it fits."""
        held: list[HeldPieces] = []
        room -= MAX_RECEIVED_FIELDS
        for number in sorted(self.asked):
            if held:
                room -= MAX_HELD_FIELDS + len(held[-1].bits)
            if room < MAX_HELD_FIELDS + MAX_PIECES // 8:
                break
            self.asked.discard(number)
            if (partial := self.partials.get(number)) is not None:
                held.append(HeldPieces(number, partial.cut, bits_of(set(partial.chunks), partial.parts)))
            elif number in self.handed:
                parts = self.parts_handed[number]
                held.append(HeldPieces(number, self.handed[number], bits_of(set(range(parts)), parts)))
            elif number not in self.done:
                held.append(HeldPieces(number, 0, b""))
        self.answer_due = bool(self.asked)
        mask = sum(1 << number - self.floor for number in self.done if number < self.floor + WINDOW)
        source, boot, shown, token = speaker
        return Received(source, boot, self.boot, self.floor, mask, tuple(held), shown, token)
