"""Certificate and key of a port, as the configuration writes them; the same for all three ports."""

from typing import Annotated

from msgspec import Meta, Struct


class TlsSection(Struct, frozen=True, forbid_unknown_fields=True):
    """PEM files, looked at again when they change."""

    certificate: Annotated[str, Meta(min_length=1)]
    key: Annotated[str, Meta(min_length=1)]
    look_every: Annotated[float, Meta(gt=0.0)] = 10.0
