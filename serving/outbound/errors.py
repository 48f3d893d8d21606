"""Why a request to somebody else's server came to nothing, in words for the person who reads the history."""


class OutboundError(Exception):
    """The request got no usable answer. `reason` is one sentence without secrets, fit to be shown.

    `reached`: the server took the connection (and TLS was agreed on), so the fault is that of whatever answers there,
    not of the way to it.
    """

    def __init__(self, reason: str, *, reached: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.reached = reached


class UrlRefusedError(OutboundError):
    """The URL itself is against the policy: nothing was resolved or connected."""


class AddressRefusedError(OutboundError):
    """The name resolved to addresses this hub does not connect to."""


class ResponseTooLargeError(OutboundError):
    """The answer was longer than the caller allows; the connection was cut."""


class OutboundTimeoutError(OutboundError):
    """No complete answer in the time allowed."""


class ClientClosedError(OutboundError):
    """The client was closed before the request was finished."""


class ClientBusyError(OutboundError):
    """More requests are under way than the configured bound."""


class ShareTakenError(OutboundError):
    """The network that the request would have gone to has its share already: no connection was made."""

    def __init__(self, prefix: str) -> None:
        super().__init__(f"as many requests as are allowed are under way to {prefix} already")
        self.prefix = prefix
