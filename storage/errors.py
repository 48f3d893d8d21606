"""What can go wrong with a store, in words an operator can act on."""


class StorageError(Exception):
    """The base of everything this package raises."""


class DatabaseInUseError(StorageError):
    """Another process has the file open for writing."""


class DatabaseClosedError(StorageError):
    """The database was closed before the work could run."""


class DatabaseBusyError(StorageError):
    """More writes are waiting than the configured bound: the caller should shed load."""


class StorageFullError(StorageError):
    """The disk (or the configured size limit) is full; nothing of the failed group was kept."""


class MigrationError(StorageError):
    """The file's schema cannot be brought to the one this version of the software needs."""
