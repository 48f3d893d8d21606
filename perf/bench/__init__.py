"""The benchmark family: `psph bench NAME`. One module per benchmark, listed here, imported when asked for."""

import importlib
from typing import cast

from perf.bench.family import Benchmark

BENCHMARKS: dict[str, str] = {
    "cache": "versions kept by nodes on the way: requests they answer, traffic saved, beside a model of NFD",
    "congestion": "flows that share a slow link, and one beside TCP: utilisation, fairness, what is sent in vain",
    "crossing": "from a ping to the callback: a hub alone, and across PSIRP with 1, 3 and 8 hops",
    "fanout": "deliver publications to many callbacks: the hub, bare pycurl, bare aiohttp",
    "failover": "links, nodes with roles and halves of a network go: how long nothing arrives, what is lost",
    "forwarding": "forward by filter: in process, raw Ethernet, UDP, beside a bare loop and scapy",
    "hub": "subscribe through verification, start with a million subscriptions, ping to first delivery",
    "ingest": "publications a second from ping to callback: a bare loop, a hub, gateways, across 1 and 3 hops",
    "matching": "find a topic among many: list, Bloom filter, registry, dict",
    "models": "published experiments on the models done again, each figure with a verdict",
    "predict": "two gateways at 30, 50 and 70 %: every queue predicted from traces, beside what was measured",
    "mqtt": "the MQTT broker beside mosquitto: rates of QoS 0 and durable QoS 1, the codec, idle clients",
    "psirp": "publications over PSIRP: round trip, rate, matches, recovery, the rendezvous' growth",
    "scale": "networks of 50 to 1,000 nodes: until all know each other, what idle nodes send, a ring of 200",
    "selectors": "which of many selectors a publication fulfils, beside asking each",
    "traces": "what tracing costs the fan-out; with --rows, synthetic traces",
    "viewers": "deliveries a second with nobody and with 200 at the dashboard",
    "workload": "payload, load, fan-out, hops, loss, bursts, soak: gateways traced under open-loop load",
    "zfilter": "forwarding efficiency of in-packet filters: one table, fpa, fpr, ours",
}


def load(name: str) -> Benchmark:
    return cast("Benchmark", importlib.import_module(f"perf.bench.{name}").BENCHMARK)
