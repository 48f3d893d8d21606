"""Keys as files.

Private keys are PKCS #8 in PEM and readable by their owner alone: a file that others can read is not loaded, because
nobody can say who has it by now.
"""

import os
from pathlib import Path

from psirp_stack.authentication.keys import KeyFileError, KeyPair, PublicKey
from psirp_stack.authentication.trust import MAX_TRUSTED_KEYS, TRUSTED_SUFFIX, TrustStore

MAX_KEY_FILE_BYTES = 16 * 1024
PRIVATE_MODE = 0o600
OTHERS = 0o077


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
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, PRIVATE_MODE)
    except FileExistsError:
        raise KeyFileError(f"{path} is there already and is not overwritten") from None
    except OSError as error:
        raise KeyFileError(f"cannot write {path}: {error.strerror}") from None
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, PRIVATE_MODE)  # whatever the umask says
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def read_key_file(path: Path, *, private: bool = False, most: int = MAX_KEY_FILE_BYTES) -> bytes:
    """A file with keys. `private`: nobody but its owner may be able to read it."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if private and mode & OTHERS:
                raise KeyFileError(
                    f"{path} can be read by others (mode {mode & 0o777:03o}): chmod 600 it, or make a new key"
                )
            data = file.read(most + 1)
    except OSError as error:
        raise KeyFileError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > most:
        raise KeyFileError(f"{path} is longer than {most} bytes: no key is")
    return data
