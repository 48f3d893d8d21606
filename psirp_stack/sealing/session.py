"""One session of a sealed link: seals what leaves and opens what arrives, each frame once.

A sealed frame is a header of type, label and counter, then the encrypted frame and its tag. The header is the nonce:
the key of a direction never sees one twice, and a header that was changed does not open. Numbers that arrived are
remembered in a window, so that a frame sent again is dropped, while frames may overtake each other on the way.
"""

from collections.abc import Sequence
from enum import StrEnum
from itertools import repeat
from operator import lt

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from psirp_stack.sealing.keys import DirectionKeys, SessionKeys
from psirp_stack.wire.numbers import COUNTER_BYTES, COUNTER_OFFSET, SEALED_HEADER_BYTES, SEALED_TYPE

WINDOW = 2048
"""How many numbers behind the highest one a frame may arrive and still be told from a replay."""
MAX_COUNTER = 1 << 32
"""Frames that one key seals at most; the bound that is usual for AES-GCM. Keys are renewed long before."""
_WINDOW_MASK = (1 << WINDOW) - 1
_BYTES = [bytes((value,)) for value in range(256)]
_HEADER = slice(0, SEALED_HEADER_BYTES)
_BODY = slice(SEALED_HEADER_BYTES, None)


class SealDrop(StrEnum):
    """Why a frame on a sealed link had no effect, or could not be sent."""

    NOT_PROVED = "sent before the neighbour proved itself"
    WORN_OUT = "sent after the keys wore out"
    UNSEALED = "not sealed"
    UNKNOWN_KEY = "sealed with a key that this end does not have"
    FORGED = "changed, or sealed by somebody else"
    REPLAYED = "seen before, or too late to tell"
    MALFORMED_OFFER = "malformed offer"
    WRONG_SECRET = "offer without the domain's secret"  # noqa: S105  (a reason, not a password)
    REFLECTED = "offer of this end, sent back"
    STALE_OFFER = "offer of another time"
    TOO_MANY_OFFERS = "more offers than are answered"
    WRONG_CONFIRMATION = "offer whose confirmation is wrong"


class FrameWindow:
    """Which numbers have arrived. Frames mostly come in order: those only move two integers."""

    __slots__ = ("_before", "_run", "highest")

    def __init__(self) -> None:
        self.highest = -1
        self._run = 0
        """So many numbers up to the highest came without a gap since the bits below were last written."""
        self._before = 0
        """Bit n: the number n below the highest as it was before the run has arrived."""

    def is_new(self, number: int) -> bool:
        """Whether a frame of this number may be opened; it is remembered with `add` when it has been."""
        behind = self.highest - number
        if behind < 0:
            return True
        if behind >= WINDOW:
            return False
        behind -= self._run
        return behind >= 0 and not self._before >> behind & 1

    def add(self, number: int) -> None:
        ahead = number - self.highest
        if ahead == 1:
            self.highest = number
            self._run += 1
            return
        run = min(self._run, WINDOW)
        bits = (self._before << run | (1 << run) - 1) & _WINDOW_MASK
        self._run = 0
        if ahead > 0:
            self.highest = number
            bits = (bits << ahead | 1) & _WINDOW_MASK if ahead < WINDOW else 1
        else:
            bits |= 1 << -ahead
        self._before = bits

    def add_run(self, first: int, last: int) -> None:
        """All of these numbers, which are above the highest."""
        self.add(first)
        self.highest = last
        self._run += last - first


class SendingKey:
    """Seals frames for the neighbour."""

    __slots__ = ("_encrypt", "_prefix", "counter")

    def __init__(self, keys: DirectionKeys) -> None:
        self.counter = 0
        """Frames sealed so far; the number of the next one."""
        self._prefix = bytes((SEALED_TYPE,)) + keys.label
        self._encrypt = AESGCM(keys.key).encrypt

    def seal(self, frame: bytes) -> bytes:
        header = self._prefix + self.counter.to_bytes(COUNTER_BYTES, "big")
        self.counter += 1
        return header + self._encrypt(header, frame, None)

    def seal_many(self, frames: Sequence[bytes]) -> list[bytes]:
        first = self.counter
        self.counter = after = first + len(frames)
        if first >> 8 != (after - 1) >> 8:
            headers = [self._prefix + number.to_bytes(COUNTER_BYTES, "big") for number in range(first, after)]
        else:
            # All but the last byte is the same: one addition makes a header.
            start = self._prefix + (first >> 8).to_bytes(COUNTER_BYTES - 1, "big")
            headers = [start + last for last in _BYTES[first & 0xFF : (first & 0xFF) + len(frames)]]
        return list(map(bytes.__add__, headers, map(self._encrypt, headers, frames, repeat(None))))


class ReceivingKey:
    """Opens the neighbour's frames."""

    __slots__ = ("_decrypt", "_window", "label")

    def __init__(self, keys: DirectionKeys) -> None:
        self.label = bytes((SEALED_TYPE,)) + keys.label
        """What its frames begin with."""
        self._window = FrameWindow()
        self._decrypt = AESGCM(keys.key).decrypt

    def open(self, sealed: bytes) -> bytes | SealDrop:
        """The frame, or why it is dropped. Nothing changes before the frame has proved to be the neighbour's."""
        header = sealed[_HEADER]
        number = int.from_bytes(header[COUNTER_OFFSET:], "big")
        window = self._window
        if number <= window.highest and not window.is_new(number):
            return SealDrop.REPLAYED
        try:
            frame = self._decrypt(header, sealed[_BODY], None)
        except (InvalidTag, ValueError):  # ValueError: a header too short to be a nonce
            return SealDrop.FORGED
        window.add(number)
        return frame

    def open_in_order(self, sealed: Sequence[bytes]) -> list[bytes] | None:
        """All of a batch at once, if it is what batches nearly always are: this key's frames in rising order, all of
        them new and genuine. None, and nothing is changed, when it is not: then each frame is looked at by itself."""
        headers = [data[_HEADER] for data in sealed]
        first, last = headers[0], headers[-1]
        label, window = self.label, self._window
        # Rising headers between two with our label have our label.
        if not (first.startswith(label) and last.startswith(label) and all(map(lt, headers, headers[1:]))):
            return None
        lowest = int.from_bytes(first[COUNTER_OFFSET:], "big")
        if lowest <= window.highest:
            return None
        try:
            frames = list(map(self._decrypt, headers, [data[_BODY] for data in sealed], repeat(None)))
        except (InvalidTag, ValueError):
            return None
        highest = int.from_bytes(last[COUNTER_OFFSET:], "big")
        if highest - lowest == len(sealed) - 1:
            window.add_run(lowest, highest)
        else:
            for header in headers:
                window.add(int.from_bytes(header[COUNTER_OFFSET:], "big"))
        return frames


class SealSession:
    """The keys of one session at work."""

    __slots__ = ("keys", "receiving", "sending")

    def __init__(self, keys: SessionKeys) -> None:
        self.keys = keys
        self.sending = SendingKey(keys.send)
        self.receiving = ReceivingKey(keys.receive)
