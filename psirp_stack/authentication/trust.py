"""The public keys a node knows. Frames name their signer by key hash alone, so the keys have to be there before."""

from collections.abc import Iterable, Iterator

from psirp_stack.authentication.keys import KeyFileError, PublicKey

TRUSTED_SUFFIX = ".pub"
MAX_TRUSTED_KEYS = 100_000


class TrustStore:
    """Key hash to public key."""

    __slots__ = ("_keys", "_max_keys")

    def __init__(self, keys: Iterable[PublicKey] = (), max_keys: int = MAX_TRUSTED_KEYS) -> None:
        self._keys: dict[bytes, PublicKey] = {}
        self._max_keys = max_keys
        for key in keys:
            self.add(key)

    def add(self, key: PublicKey) -> None:
        if key.hash not in self._keys and len(self._keys) >= self._max_keys:
            raise KeyFileError(f"more than {self._max_keys} trusted keys")
        self._keys[key.hash] = key

    def remove(self, key_hash: bytes) -> bool:
        return self._keys.pop(key_hash, None) is not None

    def get(self, key_hash: bytes) -> PublicKey | None:
        return self._keys.get(key_hash)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[PublicKey]:
        return iter(self._keys.values())
