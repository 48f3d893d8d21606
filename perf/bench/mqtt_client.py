"""A lean MQTT client for measurements, as a process of its own: bytes that were made before, and no library between.

python -m perf.bench.mqtt_client subscribe PORT QOS COUNT    prints «ready», then when it began and ended
python -m perf.bench.mqtt_client publish PORT QOS COUNT      waits for a line on stdin
python -m perf.bench.mqtt_client idle PORT COUNT             connects, prints «ready», waits for the end of stdin
"""

import resource
import socket
import sys
import time

HOST = "127.0.0.1"
TOPIC = b"\0\x05bench"
PAYLOAD = b"x" * 64
READ = 262_144
WINDOW = 400
"""Messages of QoS 1 that are under way, at most."""
SLICE = 100
PATIENCE = 60.0


def _say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def connect(port: int, client: bytes, *, clean: bool) -> socket.socket:
    connection = socket.create_connection((HOST, port), PATIENCE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    body = b"\0\4MQTT\4" + bytes((2 * clean, 0, 0)) + len(client).to_bytes(2) + client
    connection.sendall(b"\x10" + bytes((len(body),)) + body)
    answer = connection.recv(4)
    if answer[:1] != b"\x20" or answer[3:] != b"\0":
        raise SystemExit(f"the broker said {answer.hex()} to CONNECT")
    return connection


def subscribe(port: int, qos: int, count: int, *, durable: bool) -> None:
    connection = connect(port, b"bench-reader", clean=not durable)
    body = b"\0\1" + TOPIC + bytes((qos,))
    connection.sendall(b"\x82" + bytes((len(body),)) + body)
    if connection.recv(5)[0] != 0x90:
        raise SystemExit("the broker did not answer SUBSCRIBE")
    _say("ready")
    got, rest, began = 0, b"", 0.0
    length = len(TOPIC) + len(PAYLOAD) + (2 if qos else 0) + 2
    at_id = 2 + len(TOPIC)
    while got < count:
        data = connection.recv(READ)
        if not data:
            raise SystemExit("the broker closed the connection")
        began = began or time.monotonic()
        rest += data
        whole = len(rest) // length
        if qos:
            connection.sendall(
                b"".join(b"\x40\2" + rest[at + at_id : at + at_id + 2] for at in range(0, whole * length, length))
            )
        got += whole
        rest = rest[whole * length :]
    _say(began, time.monotonic())
    if durable:  # leave nothing behind
        connection.close()
        connect(port, b"bench-reader", clean=True).close()


def publish(port: int, qos: int, count: int) -> None:
    connection = connect(port, b"bench-writer", clean=True)
    _say("ready")
    sys.stdin.readline()
    _say(time.monotonic())
    head = bytes((0x30 | qos << 1, len(TOPIC) + len(PAYLOAD) + (2 if qos else 0))) + TOPIC
    if not qos:
        together = (head + PAYLOAD) * SLICE
        for _ in range(count // SLICE):
            connection.sendall(together)
    else:
        sent = acknowledged = 0
        rest = b""
        while acknowledged < count:
            more = min(WINDOW - (sent - acknowledged), count - sent)
            if more > 0:
                ids = ((sent + number) % 65_535 + 1 for number in range(more))
                connection.sendall(b"".join(head + one.to_bytes(2) + PAYLOAD for one in ids))
                sent += more
            rest += connection.recv(READ)
            acknowledged += len(rest) // 4
            rest = rest[len(rest) // 4 * 4 :]
    sys.stdin.readline()  # until the reader has all
    connection.close()


def idle(port: int, count: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    connections = []
    for number in range(count):
        connections.append(connect(port, f"idle-{number}".encode(), clean=True))
    _say("ready")
    sys.stdin.read()


def main(words: list[str]) -> None:
    what, port, *numbers = words
    if what == "idle":
        idle(int(port), int(numbers[0]))
    elif what == "publish":
        publish(int(port), int(numbers[0]), int(numbers[1]))
    else:
        subscribe(int(port), int(numbers[0]), int(numbers[1]), durable="durable" in numbers)


if __name__ == "__main__":
    main(sys.argv[1:])
