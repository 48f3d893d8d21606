"""What the admin port is about: a gateway, or a hub that runs alone."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from identifiers import Naming
from push_hub.hub import Hub

if TYPE_CHECKING:
    from gateway.gateway import Gateway


class Described(Protocol):
    """Of its configuration, what is shown."""

    @property
    def name(self) -> str: ...
    @property
    def data(self) -> Path: ...
    @property
    def naming(self) -> Naming: ...
    @property
    def domain(self) -> str | None: ...
    @property
    def zones(self) -> tuple[str, ...]: ...


class Administered(Protocol):
    log_dropped: Callable[[], int]

    @property
    def config(self) -> Described: ...
    @property
    def hub(self) -> Hub: ...
    @property
    def joined(self) -> "Gateway | None":
        """What joins the hub to a network; None for a hub that runs alone."""
