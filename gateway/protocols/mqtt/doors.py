"""Doors of the broker: TCP, TLS, and WebSockets on the port that HTTP protocols share."""

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from aiohttp import WSMsgType, web

from gateway.protocols.mqtt.connection import ConnectionState, MqttConnection
from gateway.protocols.mqtt.runner import BrokerRunner
from serving.acceptor import Acceptor, ConnectionRoom
from serving.listening import open_socket
from serving.tls import TlsFiles, TlsPort

BUFFER = 256 * 1024
"""Bytes that may wait for a client before no more are given to its connection."""
LINGER = 5.0
"""Seconds that a client has to take what was written to it before the end."""
HANDSHAKE = 10.0
SUBPROTOCOLS = ("mqtt", "mqttv3.1")
MAX_FRAME = 4 * 1024 * 1024

MakeConnection = Callable[[str], MqttConnection]


class MqttWire(asyncio.Protocol):
    """One TCP connection."""

    def __init__(self, runner: BrokerRunner, make: MakeConnection) -> None:
        self._runner = runner
        self._make = make
        self._transport: asyncio.Transport | None = None
        self._is_reading = True
        self._is_held = False
        self._ending: asyncio.TimerHandle | None = None
        self.connection: MqttConnection = None  # type: ignore[assignment]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = self._transport = cast("asyncio.Transport", transport)
        stream.set_write_buffer_limits(BUFFER)
        peer = stream.get_extra_info("peername")
        self._runner.broker.now = self._runner.now()
        self.connection = self._make(str(peer[0]) if peer else "")
        self._runner.wires[self.connection] = self

    def data_received(self, data: bytes) -> None:
        self.connection.receive(data, self._runner.now())
        self._read_or_wait()
        self._runner.soon()

    def pause_writing(self) -> None:
        self.connection.is_paused = True

    def resume_writing(self) -> None:
        self.connection.resume()
        self._runner.soon()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._ending is not None:
            self._ending.cancel()
        self._transport = None
        self._runner.wires.pop(self.connection, None)
        self.connection.lost(self._runner.now())
        self._runner.soon()

    def flush(self) -> None:
        transport, connection = self._transport, self.connection
        if transport is None:
            return
        if connection.out:
            data = b"".join(connection.out) if len(connection.out) > 1 else connection.out[0]
            connection.out.clear()
            self._runner.broker.counters.bytes_out += len(data)
            transport.write(data)
        if connection.state is ConnectionState.CLOSED and self._ending is None and not transport.is_closing():
            transport.close()
            self._ending = asyncio.get_running_loop().call_later(LINGER, transport.abort)
        self._read_or_wait()

    def hold(self, *, reading: bool) -> None:
        self._is_held = not reading
        self._read_or_wait()

    def _read_or_wait(self) -> None:
        transport = self._transport
        should = not (self._is_held or self.connection.is_waiting)
        if transport is None or transport.is_closing() or should == self._is_reading:
            return
        self._is_reading = should
        if should:
            transport.resume_reading()
        else:
            transport.pause_reading()


class MqttDoor:
    """A listening socket, with or without TLS. Raises `OSError`, `TlsError`."""

    def __init__(
        self,
        host: str,
        port: int,
        tls: TlsFiles | None,
        room: ConnectionRoom,
        observer: Callable[[object], None] | None,
    ) -> None:
        self._socket: socket.socket = open_socket(host, port)
        try:
            self._tls = None if tls is None else TlsPort(tls, observer)
        except BaseException:
            self._socket.close()
            raise
        if self._tls is not None:
            self._tls.context.set_alpn_protocols(["mqtt"])
        self._room = room
        self._observer = observer
        self._acceptor: Acceptor | None = None
        self._watching: asyncio.Task[None] | None = None
        address = self._socket.getsockname()
        self.host, self.port = str(address[0]), int(address[1])

    @property
    def url(self) -> str:
        scheme = "mqtt" if self._tls is None else "mqtts"
        return f"{scheme}://[{self.host}]:{self.port}" if ":" in self.host else f"{scheme}://{self.host}:{self.port}"

    def open(self, runner: BrokerRunner, make: MakeConnection) -> None:
        self._acceptor = Acceptor(
            self._socket,
            self._room,
            lambda _: MqttWire(runner, make),
            tls=None if self._tls is None else self._tls.context,
            handshake_timeout=HANDSHAKE,
            observer=self._observer,
        )
        if self._tls is not None:
            self._watching = asyncio.create_task(self._tls.watch())

    def take_up(self, tls: TlsFiles | None) -> None:
        if self._tls is not None:
            self._tls.refresh(tls)

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._acceptor is not None:
            self._acceptor.close()
        self._socket.close()


class WebSocketWire:
    """MQTT in the binary frames of a WebSocket."""

    def __init__(self, runner: BrokerRunner, connection: MqttConnection) -> None:
        self._runner = runner
        self.connection = connection
        self._wake = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._is_held = False

    def flush(self) -> None:
        size = sum(map(len, self.connection.out))
        self.connection.is_paused = size > BUFFER
        self._wake.set()
        self._look()

    def hold(self, *, reading: bool) -> None:
        self._is_held = not reading
        self._look()

    def _look(self) -> None:
        if self._is_held or self.connection.is_waiting:
            self._may_read.clear()
        else:
            self._may_read.set()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        answer = web.WebSocketResponse(protocols=SUBPROTOCOLS, max_msg_size=MAX_FRAME, heartbeat=None)
        await answer.prepare(request)
        runner = self._runner
        runner.wires[self.connection] = self
        writing = asyncio.create_task(self._write(answer))
        try:
            if answer.ws_protocol is None:
                await answer.close(code=1002, message=b"the subprotocol is mqtt")
                return answer
            async for message in answer:
                if message.type is not WSMsgType.BINARY:
                    break  # [MQTT-6.0.0-1]
                self.connection.receive(message.data, runner.now())
                runner.soon()
                self._look()
                await self._may_read.wait()
                if self.connection.state is ConnectionState.CLOSED:
                    break
        finally:
            runner.wires.pop(self.connection, None)
            self.connection.lost(runner.now())
            runner.soon()
            self._wake.set()
            await asyncio.gather(writing, return_exceptions=True)
            await answer.close()
        return answer

    async def _write(self, answer: web.WebSocketResponse) -> None:
        connection = self.connection
        while True:
            if not connection.out:
                if connection.state is ConnectionState.CLOSED:
                    await answer.close()
                    return
                self._wake.clear()
                await self._wake.wait()
                continue
            data = b"".join(connection.out)
            connection.out.clear()
            self._runner.broker.counters.bytes_out += len(data)
            try:
                async with asyncio.timeout(30.0):
                    await answer.send_bytes(data)
            except (OSError, TimeoutError):
                connection.state = ConnectionState.CLOSED
                connection.out.clear()
                return
            if connection.is_paused:
                connection.resume()
                self._runner.soon()
