"""Between profiles: what a publication of one kind is to a protocol of another kind. Names no protocol."""

from gateway.converters.addresses import FeedAddresses
from gateway.converters.converters import CONVERTERS, Converters, FeedForm
from gateway.converters.readable import Readable, Readers

__all__ = ["CONVERTERS", "Converters", "FeedAddresses", "FeedForm", "Readable", "Readers"]
