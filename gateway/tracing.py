"""Where a gateway's traces go: the section [traces] of its configuration. What writes them is plugged in by others."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct


class TraceForm(StrEnum):
    AUTO = "auto"
    """Parquet if pyarrow is there, otherwise JSON lines."""
    PARQUET = "parquet"
    JSON_LINES = "jsonl"


class TracesSection(Struct, frozen=True, forbid_unknown_fields=True):
    directory: Annotated[str, Meta(min_length=1)] | None = None
    """Every life of the gateway makes a run below it, for `psph report`. Without it nothing is traced."""
    rate: Annotated[float, Meta(ge=0.0, le=1.0)] = 1.0
    """The share of publications that is traced; one that is, is traced as a whole, at every gateway."""
    format: TraceForm = TraceForm.AUTO
    max_bytes: Annotated[int, Meta(ge=1)] = 1 << 30
    """The oldest files of a run are removed above this."""
    run: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    """What the run is called; the same at several gateways, if their traces are to be put together."""


@dataclass(frozen=True, slots=True)
class TracesConfig:
    directory: Path
    rate: float = 1.0
    form: TraceForm = TraceForm.AUTO
    max_bytes: int = 1 << 30
    run: str | None = None


def traces_config(section: TracesSection, folder: Path) -> TracesConfig | None:
    if section.directory is None:
        return None
    return TracesConfig(folder / section.directory, section.rate, section.format, section.max_bytes, section.run)
