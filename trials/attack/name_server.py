"""The name server of an attack's namespaces: names by rule, never to be kept (TTL 0).

python -m trials.attack.name_server

`LABEL.to-9-66-0-1.stranger.example` leads to 9.66.0.1; `LABEL.turns-9-66-0-1--10-0-0-1.stranger.example` there when it
is asked first, and to 10.0.0.1 from then on. The first question for each name counts, whoever asks.
"""

import asyncio
import sys
from typing import cast

import dns.exception
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

from trials.attack.places import FIXED_NAMES, NAME_SERVER, SILENT, STRANGERS_ZONE

PORT = 53
MAX_ASKED = 100_000


class NamesByRule:
    """Which address a name has."""

    def __init__(self) -> None:
        self._asked: set[str] = set()

    def address(self, name: str) -> str | None:
        name = name.lower()
        if name in FIXED_NAMES:
            return FIXED_NAMES[name]
        if not name.endswith(f".{STRANGERS_ZONE}"):
            return None
        rule, _, rest = name.removesuffix(f".{STRANGERS_ZONE}").rpartition(".")[2].partition("-")
        match rule:
            case "to":
                return rest.replace("-", ".")
            case "turns":
                first, _, then = rest.partition("--")
                chosen = then if name in self._asked else first
                if len(self._asked) < MAX_ASKED:
                    self._asked.add(name)
                return chosen.replace("-", ".")
        return None

    def answer(self, query: bytes) -> bytes | None:
        try:
            asked = dns.message.from_wire(query)
        except dns.exception.DNSException:
            return None
        if f".{SILENT}" in asked.question[0].name.to_text().lower():
            return None
        response = dns.message.make_response(asked)
        response.flags |= dns.flags.AA
        question = asked.question[0]
        if question.rdtype == dns.rdatatype.A:
            address = self.address(question.name.to_text())
            if address is None:
                response.set_rcode(dns.rcode.NXDOMAIN)
            else:
                response.answer.append(dns.rrset.from_text(question.name, 0, "IN", "A", address))
        return response.to_wire()


class NamePort(asyncio.DatagramProtocol):
    def __init__(self, names: NamesByRule) -> None:
        self._names = names
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        answer = self._names.answer(data)
        if answer is not None and self._transport is not None:
            self._transport.sendto(answer, addr)


async def main() -> None:
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(lambda: NamePort(NamesByRule()), (NAME_SERVER, PORT))
    sys.stdout.write("names\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
