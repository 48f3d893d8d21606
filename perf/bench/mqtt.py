"""`psph bench mqtt`: the broker beside mosquitto, at the same load by the same lean clients, taking turns.

Mosquitto keeps nothing on disk here, which is how it comes; ours acknowledges QoS 1 when a message is on disk, together
with its place in the queue of the subscriber, whose session lasts. Clients are processes of their own; what is measured
is the time from the publisher's first byte to the subscriber's last message.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from perf.bench.family import Bar, BenchError, BenchOutcome, Row, Sense, Ticker, progress_bar
from perf.processes import resident
from serving.listening import open_socket

QOS_0_BAR = QOS_1_BAR = 0.25
CODEC_BAR = 500_000
IDLE_CLIENTS = 10_000
IDLE_BAR = 300 * 1024 * 1024
CLIENT = "perf.bench.mqtt_client"
CODEC = """
import time
from gateway.protocols.mqtt.decode import Decoder
from gateway.protocols.mqtt.encode import write
from gateway.protocols.mqtt.numbers import Level
from gateway.protocols.mqtt.packets import PublishPacket
for level in (Level.V311, Level.V5):
    packet = PublishPacket("home/kitchen/temp", b"x" * 64, 1, packet_id=7)
    stream = write(packet, level) * 1000
    decoder = Decoder(level=level)
    best_read = best_write = 9e9
    for _ in range(ROUNDS):
        began = time.perf_counter()
        found = decoder.feed(stream)
        best_read = min(best_read, time.perf_counter() - began)
        assert len(found) == 1000 and found[-1] == packet
        began = time.perf_counter()
        for _ in range(1000):
            write(packet, level)
        best_write = min(best_write, time.perf_counter() - began)
    print(int(level), 1000 / best_read, 1000 / best_write)
"""


@dataclass(frozen=True, slots=True)
class MqttScale:
    rounds: int
    qos_0: int
    """Messages of a round."""
    qos_1: int
    idle: int
    codec_rounds: int


FULL = MqttScale(5, 200_000, 30_000, IDLE_CLIENTS, 200)
QUICK = MqttScale(3, 60_000, 10_000, 2_000, 60)


class _BenchedBroker:
    def __init__(self, name: str, words: list[str], says: str) -> None:
        """It is up when it prints a line with `says`."""
        self.name = name
        self.port = 0
        self._process = subprocess.Popen(  # noqa: S603 - our own words
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.said = ""
        while says not in self.said:
            self.said = _line(self._process)

    @property
    def memory(self) -> int:
        return resident(self._process.pid)

    def end(self) -> None:
        self._process.terminate()
        self._process.communicate()


def _client(*words: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(  # noqa: S603 - our own words
        [sys.executable, "-m", CLIENT, *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None  # noqa: S101 - it was asked for
    line = process.stdout.readline().strip()
    if not line:
        raise BenchError("a broker or a client ended early: is the machine short of memory or descriptors?")
    return line


def _rate(broker: _BenchedBroker, qos: int, count: int, *, durable: bool) -> float:
    reader = _client("subscribe", broker.port, qos, count, *(["durable"] if durable else []))
    writer = _client("publish", broker.port, qos, count)
    try:
        _line(reader)
        _line(writer)
        assert writer.stdin is not None  # noqa: S101 - it was asked for
        writer.stdin.write("go\n")
        writer.stdin.flush()
        began = float(_line(writer))
        ended = float(_line(reader).split()[1])
        writer.communicate("done\n")
        reader.communicate()
        return count / (ended - began)
    finally:
        for one in (reader, writer):
            one.kill()
            one.communicate()


class MqttBench:
    name = "mqtt"
    description = "the MQTT broker beside mosquitto: rates of QoS 0 and durable QoS 1, the codec, idle clients"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.epilog = (
            f"Needs mosquitto. Bars: QoS 0 and durable QoS 1 at least {QOS_0_BAR:g} of mosquitto's in memory,\n"
            f"the codec {CODEC_BAR:,} PUBLISH a second, {IDLE_CLIENTS:,} idle clients below 300 MiB."
        )

    def run(self, options: argparse.Namespace) -> BenchOutcome:
        if shutil.which("mosquitto") is None:
            raise BenchError("mosquitto is not installed: apt-get install mosquitto")
        scale = QUICK if options.quick else FULL
        with progress_bar("mqtt", scale.rounds * 4 + 2) as tick:
            return _run(scale, tick)


def _run(scale: MqttScale, tick: Ticker) -> BenchOutcome:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="psph-bench-")))
        reserved = open_socket("127.0.0.1", 0)
        port = int(reserved.getsockname()[1])
        reserved.close()
        file = folder / "mosquitto.conf"
        file.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n")
        mosquitto = _BenchedBroker("mosquitto", ["mosquitto", "-c", str(file)], "running")
        stack.callback(mosquitto.end)
        mosquitto.port = port
        words = [sys.executable, "-m", "gateway.cli.main", "mqtt", "--port", "0", "--data", str(folder / "psph")]
        ours = _BenchedBroker("psph", words, "MQTT at")
        stack.callback(ours.end)
        ours.port = int(ours.said.rsplit(":", 1)[1])
        rates: dict[tuple[str, int], list[float]] = {}
        for number in range(scale.rounds):
            for qos, count in ((0, scale.qos_0), (1, scale.qos_1)):
                for broker in (mosquitto, ours) if number % 2 else (ours, mosquitto):
                    rate = _rate(broker, qos, count, durable=qos == 1 and broker is ours)
                    rates.setdefault((broker.name, qos), []).append(rate)
                    tick(f"QoS {qos}")
        before = ours.memory
        idle = _client("idle", ours.port, scale.idle)
        try:
            _line(idle)
            each = (ours.memory - before) / scale.idle
        finally:
            idle.communicate()
        tick("idle clients")
    codec = _codec(scale.codec_rounds)
    tick("codec")
    rows: list[Row] = [
        {
            "what": f"QoS {qos}{', durable' if qos and name == 'psph' else ''}",
            "broker": name,
            "per_second": round(statistics.median(found)),
            "least": round(min(found)),
            "most": round(max(found)),
        }
        for (name, qos), found in sorted(rates.items(), key=lambda one: (one[0][1], one[0][0]))
    ]
    rows += [
        {"what": f"codec, {what} of {level}", "broker": "psph", "per_second": round(value), "least": None, "most": None}
        for level, *values in codec
        for what, value in zip(("reading", "writing"), values, strict=True)
    ]
    ratios = {
        qos: statistics.median(a / b for a, b in zip(rates["psph", qos], rates["mosquitto", qos], strict=True))
        for qos in (0, 1)
    }
    slowest = min(min(values) for _, *values in codec)
    memory = before + each * IDLE_CLIENTS
    return BenchOutcome(
        {"rounds": scale.rounds, "messages_qos_0": scale.qos_0, "messages_qos_1": scale.qos_1, "idle": scale.idle},
        rows,
        [
            Bar("QoS 0 / mosquitto's", ratios[0], Sense.AT_LEAST, QOS_0_BAR),
            Bar("durable QoS 1 / mosquitto's in memory", ratios[1], Sense.AT_LEAST, QOS_1_BAR),
            Bar("PUBLISH read or written a second / 500,000", slowest / CODEC_BAR, Sense.AT_LEAST, 1.0),
            Bar(f"memory with {IDLE_CLIENTS:,} idle clients / 300 MiB", memory / IDLE_BAR, Sense.AT_MOST, 1.0),
        ],
        (
            f"an idle client takes {each / 1024:.1f} KiB, measured with {scale.idle:,}",
            f"the broker itself takes {before / 1024 / 1024:.0f} MiB",
            "ratios are medians over neighbouring rounds; same clients, a window of 400 messages, 64 bytes",
        ),
    )


def _codec(rounds: int) -> list[tuple[str, float, float]]:
    """In a process of its own: what is measured is not what measures."""
    done = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", CODEC.replace("ROUNDS", str(rounds))], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BenchError(f"the codec could not be measured: {done.stderr.strip()[-200:]}")
    names = {"4": "3.1.1", "5": "5.0"}
    return [
        (names[level], float(reading), float(writing))
        for level, reading, writing in (line.split() for line in done.stdout.splitlines())
    ]


BENCHMARK = MqttBench()
