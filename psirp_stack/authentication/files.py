"""Keys as files.

Private keys are PKCS #8 in PEM and readable by their owner alone: a file that others can read is not loaded, because
nobody can say who has it by now.
"""

import os
from pathlib import Path

from psirp_stack.authentication.keys import KeyFileError, KeyPair, PublicKey
from psirp_stack.authentication.trust import MAX_TRUSTED_KEYS, TRUSTED_SUFFIX, TrustStore
from storage.private import PrivateFileError, open_private_file, read_secret_file

MAX_KEY_FILE_BYTES = 16 * 1024


def load_public_key(path: Path) -> PublicKey:
    try:
        return PublicKey.from_pem(read_key_file(path))
    except ValueError as error:
        raise KeyFileError(f"{path}: {error}") from None


def save_public_key(key: PublicKey, path: Path) -> None:
    write_new(path, key.pem())


def load_key_pair(path: Path) -> KeyPair:
    try:
        return KeyPair.from_pem(read_key_file(path, private=True))
    except ValueError as error:
        raise KeyFileError(f"{path}: {error}") from None


def save_key_pair(pair: KeyPair, path: Path) -> None:
    """Write a new file that only its owner can read; an existing file is never replaced."""
    write_new(path, pair.pem())


def load_trusted(folder: Path, max_keys: int = MAX_TRUSTED_KEYS) -> TrustStore:
    """Every `*.pub` of a folder; none when there is no such folder. One bad file refuses them all, by name."""
    return TrustStore((load_public_key(path) for path in sorted(folder.glob(f"*{TRUSTED_SUFFIX}"))), max_keys)


def write_new(path: Path, data: bytes) -> None:
    """Create a file of mode 0600 with this content; `KeyFileError` when it is there already."""
    try:
        descriptor = open_private_file(path, os.O_WRONLY | os.O_EXCL | os.O_NOFOLLOW)
    except FileExistsError:
        raise KeyFileError(f"{path} is there already and is not overwritten") from None
    except OSError as error:
        raise KeyFileError(f"cannot write {path}: {error.strerror}") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def read_key_file(path: Path, *, private: bool = False, most: int = MAX_KEY_FILE_BYTES) -> bytes:
    """A file with keys. `private`: nobody but its owner may be able to read it."""
    try:
        if private:
            return read_secret_file(path, most)
        with path.open("rb") as file:
            data = file.read(most + 1)
    except PrivateFileError as error:
        raise KeyFileError(str(error)) from None
    except OSError as error:
        raise KeyFileError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > most:
        raise KeyFileError(f"{path} is longer than {most} bytes: no key is")
    return data
