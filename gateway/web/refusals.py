"""What the web port answers when the rules, the network or the store refuse."""

from gateway.model import NetworkError, NotAllowedError, RefusedError
from serving.answers import HttpError
from storage import StorageError

BUSY_RETRY_AFTER = 5.0


def translated(error: Exception) -> HttpError | None:
    match error:
        case NotAllowedError():
            return HttpError(403, str(error))
        case RefusedError():
            return HttpError(400, str(error))
        case NetworkError():
            return HttpError(502 if error.lasting else 503, f"the network: {error}", BUSY_RETRY_AFTER)
        case StorageError():
            return HttpError(503, "the gateway cannot write to its store now", BUSY_RETRY_AFTER, bound="storage")
    return None
