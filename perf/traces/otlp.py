"""Trace records as OpenTelemetry spans, and spans as trace records: lines of OTLP/JSON, as a collector's file exporter
writes and its file receiver reads them.

A record becomes a span with all its columns as attributes `psph.COLUMN`: what went out comes back as it was. A span
of anybody else is a stay: at the node that its resource names (`service.instance.id` or `service.name`), in what the
span is called after, from its start to its end.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import msgspec

from perf.traces.schema import COLUMNS, ColumnType, Domain, StepOutcome, TraceRecord, TraceStep

PREFIX: Final = "psph."
SPANS_A_LINE: Final = 500
LONGEST_LINE: Final = 64 << 20
ERROR: Final = 2
_TEXTS: Final = {column.name for column in COLUMNS if column.kind is ColumnType.TEXT}
_REALS: Final = {column.name for column in COLUMNS if column.kind is ColumnType.REAL}


@dataclass(slots=True)
class SpansRead:
    """What was found in a file."""

    records: int = 0
    stays: int = 0
    unusable: int = 0
    """Lines and spans that are none."""


def as_lines(rows: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Rows as files of traces hold them: by column name, without what is null."""
    spans: list[dict[str, object]] = []
    node: str | None = None
    for number, row in enumerate(rows):
        if spans and (row["node"] != node or len(spans) >= SPANS_A_LINE):
            yield _line(str(node), spans)
            spans = []
        node = row["node"]
        spans.append(_span(row, number))
    if spans:
        yield _line(str(node), spans)


def _line(node: str, spans: list[dict[str, object]]) -> bytes:
    names = {"service.name": "psph", "service.instance.id": node}
    resource = {"attributes": [{"key": key, "value": {"stringValue": value}} for key, value in names.items()]}
    scopes = [{"scope": {"name": "psph.traces"}, "spans": spans}]
    return msgspec.json.encode({"resourceSpans": [{"resource": resource, "scopeSpans": scopes}]}) + b"\n"


def _span(row: Mapping[str, Any], number: int) -> dict[str, object]:
    whole = f"{row['run']}\0{row['publication']}".encode()
    lasted = row["monotonic_ns"] - row["queued_ns"] if row.get("queued_ns") is not None else 0
    return {
        "traceId": blake2b(whole, digest_size=16).hexdigest(),
        "spanId": blake2b(b"%d\0%b" % (number, whole), digest_size=8).hexdigest(),
        "name": row["step"],
        "kind": 1,
        "startTimeUnixNano": str(row["wall_ns"] - lasted),
        "endTimeUnixNano": str(row["wall_ns"]),
        "attributes": [
            {"key": PREFIX + name, "value": _value(name, value)} for name, value in row.items() if value is not None
        ],
        "status": {"code": ERROR if row["outcome"] == StepOutcome.FAILED else 0},
    }


def _value(name: str, value: Any) -> dict[str, object]:
    if name in _TEXTS:
        return {"stringValue": str(value)}
    return {"doubleValue": value} if name in _REALS else {"intValue": str(value)}


class _Value(msgspec.Struct):
    stringValue: str | None = None  # noqa: N815 - as the protocol spells it
    intValue: str | int | None = None  # noqa: N815
    doubleValue: float | None = None  # noqa: N815


class _Attribute(msgspec.Struct):
    key: str
    value: _Value = msgspec.field(default_factory=_Value)


class _Status(msgspec.Struct):
    code: int | str = 0


class _Span(msgspec.Struct):
    traceId: str  # noqa: N815
    name: str
    startTimeUnixNano: str | int  # noqa: N815
    endTimeUnixNano: str | int  # noqa: N815
    attributes: list[_Attribute] = []
    status: _Status = msgspec.field(default_factory=_Status)


class _Scope(msgspec.Struct):
    spans: list[_Span] = []


class _Resource(msgspec.Struct):
    attributes: list[_Attribute] = []


class _ResourceSpans(msgspec.Struct):
    resource: _Resource = msgspec.field(default_factory=_Resource)
    scopeSpans: list[_Scope] = []  # noqa: N815


class _Document(msgspec.Struct):
    resourceSpans: list[_ResourceSpans]  # noqa: N815


def records_in(lines: Iterable[bytes], run: str, found: SpansRead) -> Iterator[TraceRecord]:
    """Records of `run`, which spans of others become a part of too."""
    decoder = msgspec.json.Decoder(_Document)
    for line in lines:
        if not line.strip():
            continue
        try:
            document = decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            found.unusable += 1
            continue
        for group in document.resourceSpans:
            names = _plain(group.resource.attributes)
            node = str(names.get("service.instance.id") or names.get("service.name") or "unknown")
            for span in (span for scope in group.scopeSpans for span in scope.spans):
                try:
                    record = _record(span, node, run)
                except (KeyError, TypeError, ValueError):
                    found.unusable += 1
                    continue
                found.stays += record.step is TraceStep.SERVED and f"{PREFIX}step" not in _plain(span.attributes)
                found.records += 1
                yield record


def _plain(attributes: Iterable[_Attribute]) -> dict[str, str | int | float | None]:
    plain: dict[str, str | int | float | None] = {}
    for one in attributes:
        value = one.value
        plain[one.key] = int(value.intValue) if value.intValue is not None else value.stringValue or value.doubleValue
    return plain


def _record(span: _Span, node: str, run: str) -> TraceRecord:
    said = _plain(span.attributes)
    if f"{PREFIX}step" in said:
        row: dict[str, Any] = {column.name: said.get(PREFIX + column.name) for column in COLUMNS}
        for column in COLUMNS:
            if column.required and row[column.name] is None:
                row[column.name] = "" if column.kind is ColumnType.TEXT else said[PREFIX + column.name]
        row |= {
            "run": run,
            "step": TraceStep(row["step"]),
            "domain": Domain(row["domain"]),
            "outcome": StepOutcome(row["outcome"]),
        }
        return TraceRecord(**row)
    begin, end = int(span.startTimeUnixNano), int(span.endTimeUnixNano)
    if not 0 <= begin <= end:
        raise ValueError("a span ends before it begins")
    failed = span.status.code in (ERROR, "STATUS_CODE_ERROR")
    return TraceRecord(
        run=run, publication=span.traceId, step=TraceStep.SERVED, domain=Domain.PUSH, node=node, topic=None, sid=None,
        rid=None, payload=None, hop=None, delivery=None, attempt=None, load=None, monotonic_ns=end, wall_ns=end,
        clock=f"otlp-{node}", outcome=StepOutcome.FAILED if failed else StepOutcome.OK, resource=span.name,
        queued_ns=begin, started_ns=begin,
    )  # fmt: skip
