"""What `Delivery` may refuse."""


class DeliveryError(Exception):
    """The base of what delivery raises."""


class DeliveryOverloadedError(DeliveryError):
    """Too much is waiting: the publisher should ask again after `retry_after` seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"the hub is busy: try again in {retry_after:g} seconds")
        self.retry_after = retry_after


class ContentRefusedError(DeliveryError):
    """The content or its URL cannot be put into a delivery's header."""
