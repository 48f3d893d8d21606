"""Frames drawn by hypothesis, to start mutations from: it likes the borders of every field, as scapy's fuzz() does not.

Hypothesis is a tool of developers; the fuzzer does without this module where it is not installed.
"""

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from psirp_stack.wire.codec import (
    AuthenticationHeader,
    ForwardingHeader,
    Frame,
    Header,
    MetadataHeader,
    RendezvousHeader,
    build,
)
from psirp_stack.wire.numbers import RENDEZVOUS_TYPES

_STRATEGIES: dict[type[Header], dict[str, st.SearchStrategy[object]]] = {
    cls: {
        field.name: st.integers(0, (1 << 8 * field.size) - 1)
        if field.number
        else st.binary(min_size=field.size, max_size=field.size)
        for field in cls.LAYOUT
        if field.name != "proto"
    }
    for cls in (ForwardingHeader, RendezvousHeader, MetadataHeader, AuthenticationHeader)
}
_STRATEGIES[RendezvousHeader]["type"] = st.sampled_from(sorted(RENDEZVOUS_TYPES))
_FURTHER = (RendezvousHeader, MetadataHeader, AuthenticationHeader)


@st.composite
def _frames(draw: st.DrawFn) -> bytes:
    kinds = draw(st.permutations(_FURTHER))[: draw(st.integers(0, len(_FURTHER)))]
    headers = tuple(draw(st.builds(cls, **_STRATEGIES[cls])) for cls in (ForwardingHeader, *kinds))
    return build(Frame(headers, draw(st.one_of(st.none(), st.binary(max_size=64)))))


def drawn_frames(count: int, number: int) -> list[bytes]:
    """`count` well-formed frames; the same `number` gives the same ones."""
    found: list[bytes] = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(_frames())
    def collect(frame: bytes) -> None:
        found.append(frame)

    collect()
    return found
