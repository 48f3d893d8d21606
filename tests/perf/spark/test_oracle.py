# ruff: noqa: S608, E501 - queries are put together from words of this file, and read better on one line
"""Every table again, by DuckDB from the raw records: another engine, other code, the same figures.

Both gateways are on one machine here: clocks have tests of their own.
"""

from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from perf.pipeline.analysis import Analysis, analyse
from perf.pipeline.buckets import bucket_of, lowest_of
from perf.report.tables import TABLES
from perf.traces.run import TRACES
from perf.traces.synth import SynthConfig, synthesise

pytestmark = pytest.mark.timeout(600)
CONFIG = SynthConfig(
    12_000, seed=11, one_clock=True, clock_offset_ns=0, loss=0.03, duplicates=0.02, topics=5, ns_a_byte=200.0,
    loads=(100.0, 400.0), batch=400,
)  # fmt: skip
MS = 1e6
STAGES = """
create table stages as
with first as (
  select *, row_number() over (partition by publication, node, step, delivery, hop order by monotonic_ns) as nth from raw
), good as (select * from first where nth = 1),
whole as (
  select publication, max(payload) as size, max(load) as offered,
    min(monotonic_ns) filter (step = 'pinged') as pinged, min(wall_ns) filter (step = 'pinged') as start_ns,
    min(monotonic_ns) filter (step = 'fetched') as fetched, min(monotonic_ns) filter (step = 'accepted') as accepted,
    min(monotonic_ns) filter (step = 'published') as published,
    min(wall_ns) filter (step = 'published') as published_ns,
    min(node) filter (step = 'published') as publisher, min(topic) as topic,
    count(*) filter (step = 'received') as received
  from good group by publication
), here as (
  select publication, node, min(monotonic_ns) filter (step = 'received') as got, max(hop) filter (step = 'received') as
    hops, min(monotonic_ns) filter (step = 'relayed') as relayed
  from good group by publication, node
)
select g.publication, g.node, g.delivery, whole.topic, whole.size as payload, whole.offered as load, whole.publisher,
  whole.published_ns, s.stage, s.begin + g.wall_ns - g.monotonic_ns as start_ns,
  case when here.got is not null or g.domain = 'psirp' then 'psirp' else 'push' end as domain,
  coalesce(g.hop, here.hops, 0) as hop, g.monotonic_ns - s.begin as ns,
  whole.fetched - whole.pinged as part_fetch, whole.accepted - whole.fetched as part_store,
  case when here.got is not null then whole.published - whole.accepted end as part_hand_over,
  here.relayed - here.got as part_relay, g.monotonic_ns - coalesce(here.relayed, whole.accepted) as part_fan_out
from good g join whole using (publication) join here on here.publication = g.publication and here.node = g.node,
lateral (
  select 'fetch' as stage, whole.pinged as begin where g.step = 'fetched'
  union all select 'store', whole.fetched where g.step = 'accepted'
  union all select 'hand_over', whole.accepted where g.step = 'published'
  union all select 'hop', whole.published where g.step = 'forwarded'
  union all select 'carry', whole.published where g.step = 'received'
  union all select 'relay', here.got where g.step = 'relayed'
  union all select 'fan_out', coalesce(here.relayed, whole.accepted) where g.step = 'delivered'
  union all select 'end_to_end', whole.pinged where g.step = 'delivered'
) s
"""
DIMENSIONS = {"all": "0", "payload": "payload_class(payload)", "hop": "hop", "load": "load"}
STEPS = """
create table steps as
select *, ns - lag(ns) over flow as step, lag(ns) over flow as before, lag(load) over flow as load_before,
  count(*) over (partition by stage, topic, node, delivery, home) - row_number() over flow as newer
from (select *, case when stage in ('hop', 'carry', 'end_to_end') then publisher else node end as home from stages)
window flow as (partition by stage, topic, node, delivery, home order by start_ns, ns)
"""


class Oracle:
    def __init__(self, folder: Path) -> None:
        self._db = duckdb.connect()
        self._db.create_function("payload_class", lambda value: float(lowest_of(bucket_of(value, 2), 2)), ["BIGINT"], "DOUBLE")  # type: ignore[list-item, arg-type]  # fmt: skip
        self._db.execute(f"create table raw as select * from read_parquet('{folder / TRACES}/*.parquet')")
        self._db.execute(STAGES)
        self._db.execute(STEPS)

    def __call__(self, query: str) -> list[tuple[Any, ...]]:
        return self._db.execute(query).fetchall()


@pytest.fixture(scope="module")
def both(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Analysis, Oracle]:
    folder = tmp_path_factory.mktemp("oracle")
    synthesise(folder / "run", CONFIG, name="r")
    return analyse(session, [folder / "run"], folder / "work"), Oracle(folder / "run")


def test_latency(both: tuple[Analysis, Oracle]) -> None:
    analysis, oracle = both
    seen = 0
    for by, value in DIMENSIONS.items():
        found = oracle(
            f"select stage, domain, {value} as value, count(*), avg(ns), min(ns), max(ns), "
            + ", ".join(f"quantile_disc(ns, {q})" for q in (0.25, 0.5, 0.9, 0.99, 0.999))
            + " from stages where value is not null group by all"
        )
        rows = {(row.stage, row.domain, row.value): row for row in analysis.latency if row.by == by}
        assert rows.keys() == {(stage, domain, float(at)) for stage, domain, at, *_ in found}
        for stage, domain, at, count, mean, least, most, *quantiles in found:
            row = rows[stage, domain, float(at)]
            assert row.count == count
            assert [row.mean_ms, row.least_ms, row.most_ms] == pytest.approx([v / MS for v in (mean, least, most)])
            told = [row.p25_ms, row.p50_ms, row.p90_ms, row.p99_ms, row.p999_ms]
            # DuckDB's discrete quantile may choose the neighbour where a rank is a whole number.
            near = oracle(
                f"select list(ns order by ns) from stages where stage = '{stage}' and domain = '{domain}' and {value} = {at}"
            )[0][0]
            for told_ms, duck, q in zip(told, quantiles, (0.25, 0.5, 0.9, 0.99, 0.999), strict=True):
                place = max(1, -(-round(q * count * 1000) // 1000))
                assert round(told_ms * MS) == near[place - 1]
                assert duck in near[max(0, place - 2) : place + 1]
            seen += 1
    assert seen > 100


def test_jitter_and_variation(both: tuple[Analysis, Oracle]) -> None:
    analysis, oracle = both
    found = oracle(
        "select stage, domain, count(*), stddev_pop(ns), stddev_pop(ns) / avg(ns), mad(ns), count(step), "
        "avg(abs(step)), quantile_disc(step, 0.5), corr(ns, before) filter (step is not null), "
        "sum(abs(step) * pow(15.0 / 16, newer) / 16) / count(*) filter (newer = 0 and step is not null) "
        "from steps group by all"
    )
    rows = {(row.stage, row.domain): row for row in analysis.variation if row.by == "all"}
    assert rows.keys() == {(stage, domain) for stage, domain, *_ in found}
    jitters = {(row.stage, row.domain): row.jitter_ms for row in analysis.latency if row.by == "all"}
    for stage, domain, count, deviation, cv, mad, steps, jitter, middle, again, rfc in found:
        row = rows[stage, domain]
        assert (row.count, row.steps) == (count, steps)
        assert (row.deviation_ms, row.variation) == (pytest.approx(deviation / MS), pytest.approx(cv))
        assert row.mad_ms == pytest.approx(mad / MS, rel=0.01)
        assert jitters[stage, domain] == pytest.approx(jitter / MS)
        assert row.ipdv_abs_mean_ms == pytest.approx(jitter / MS, rel=1e-3)
        assert row.ipdv_p50_ms == pytest.approx(middle / MS, abs=0.05)
        assert row.autocorrelation == pytest.approx(again, abs=1e-6)
        assert row.rfc3550_ms == pytest.approx(rfc / MS)
    by_load = oracle("select load, avg(abs(step)) from steps where stage = 'end_to_end' and domain = 'push' and load = load_before group by all")  # fmt: skip
    for load, jitter in by_load:
        (latency,) = [r for r in analysis.latency if (r.stage, r.domain, r.by, r.value) == ("end_to_end", "push", "load", load)]  # fmt: skip
        assert latency.jitter_ms == pytest.approx(jitter / MS)


def test_parts(both: tuple[Analysis, Oracle]) -> None:
    analysis, oracle = both
    names = ("fetch", "store", "hand_over", "relay", "fan_out")
    parts = [f"coalesce(part_{name}, 0)" for name in names]
    parts.append(f"ns - ({' + '.join(parts)})")
    query = (
        "with e as (select *, quantile_disc(ns, 0.99) over (partition by domain) as edge from stages "
        "where stage = 'end_to_end') select domain, "
        + ", ".join(
            f"avg({p}), covar_pop({p}, ns) / var_pop(ns), (avg({p}) filter (ns >= edge) - avg({p})) / "
            "(avg(ns) filter (ns >= edge) - avg(ns))"
            for p in parts
        )
        + " from e group by domain"
    )
    rows = {(row.domain, row.part): row for row in analysis.parts}
    for domain, *figures in oracle(query):
        for place, name in enumerate((*names, "carry")):
            mean, share, tail = figures[3 * place : 3 * place + 3]
            row = rows[domain, name]
            assert row.mean_ms == pytest.approx(mean / MS, abs=1e-6)
            assert row.variance_share == pytest.approx(share, abs=1e-6)
            assert row.tail_share == pytest.approx(tail, abs=0.01)
    for domain in ("push", "psirp"):
        assert sum(row.variance_share or 0 for row in analysis.parts if row.domain == domain) == pytest.approx(1)


def test_crossing_and_homogeneity(both: tuple[Analysis, Oracle]) -> None:
    analysis, oracle = both
    query = (
        "with b as (select publication from stages where stage = 'end_to_end' group by 1 having count(distinct domain) = 2) "
        "select count(*) filter (domain = 'push'), count(*) filter (domain = 'psirp'), count(distinct publication), "
        "quantile_cont(ns, {q}) filter (domain = 'push'), quantile_cont(ns, {q}) filter (domain = 'psirp') "
        "from stages join b using (publication) where stage = 'end_to_end'"
    )
    rows = {row.measure: row for row in analysis.crossing if row.stage == "end_to_end"}
    for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        ((local, crossed, publications, push, psirp),) = oracle(query.format(q=q))
        row = rows[name]
        assert (row.first_count, row.second_count, row.publications) == (local, crossed, publications)
        assert (row.first_ms, row.second_ms) == pytest.approx((push / MS, psirp / MS), rel=1 / 64)
    ((larger,),) = oracle(
        "with b as (select publication from stages where stage = 'end_to_end' group by 1 having count(distinct domain) = 2), "
        "e as (select ns, domain from stages join b using (publication) where stage = 'end_to_end') "
        "select avg(case when far.ns > near.ns then 1.0 when far.ns = near.ns then 0.5 else 0 end) from "
        "(select ns from e where domain = 'push') near, (select ns from e where domain = 'psirp') far"
    )
    (homogeneity,) = [row for row in analysis.homogeneity if (row.stage, row.test) == ("end_to_end", "Kruskal-Wallis")]
    assert homogeneity.effect == pytest.approx(larger, abs=0.01)


def test_correlation(both: tuple[Analysis, Oracle]) -> None:
    analysis, oracle = both
    query = (
        "with r as (select stage, domain, payload, ns, rank() over p + (count(*) over (partition by stage, domain, "
        "payload) - 1) / 2.0 as a, rank() over n as b from stages window p as (partition by stage, domain order by "
        "payload), n as (partition by stage, domain order by ns)) "
        "select stage, domain, count(*), corr(payload, ns), corr(a, b) from r group by all"
    )
    found = {(stage, domain): rest for stage, domain, *rest in oracle(query)}
    for row in analysis.correlation:
        count, pearson, spearman = found[row.stage, row.domain]
        assert row.pairs == count
        assert row.pearson == pytest.approx(pearson, abs=1e-9)
        assert row.spearman == pytest.approx(spearman, abs=2e-3)


def test_endings_receivers_loads_and_time(both: tuple[Analysis, Oracle]) -> None:
    analysis, oracle = both
    ((publications, deliveries, twice),) = oracle(
        "select count(distinct publication), (select count(*) from stages where stage = 'end_to_end'), count(*) filter "
        "(step = 'delivered') - (select count(*) from stages where stage = 'end_to_end') from raw"
    )
    (ending,) = analysis.endings
    assert (ending.publications, ending.deliveries, ending.duplicate_deliveries) == (publications, deliveries, twice)
    expected = oracle(
        "with got as (select node, topic, min(published_ns) as first, max(published_ns) as last, count(*) as n from stages "
        "where stage = 'carry' group by all), sent as (select publication, min(node) as publisher, min(topic) as topic, "
        "min(wall_ns) as said from raw where step = 'published' group by 1) "
        "select got.node, count(*) filter (said <= last), count(*) filter (said > last) from sent join got using (topic) "
        "where said >= first and publisher <> got.node group by 1"
    )
    received = dict(oracle("select node, count(*) from stages where stage = 'carry' group by 1"))
    nodes = {row.node: row for row in analysis.receivers if row.subscriber is None}
    for node, due, after in expected:
        row = nodes[node]
        assert (row.expected, row.received, row.missed, row.unknown, row.after_last) == (
            due, received[node], due - received[node], 0, after,
        )  # fmt: skip
    assert ending.lost == sum(row.missed for row in nodes.values())
    loads = oracle(
        "with p as (select publication, max(load) as load, min(wall_ns) as begin, max(wall_ns) filter (step = 'delivered')"
        " as last, count(*) filter (step = 'received') > 0 as whole from raw group by 1) "
        "select load, count(*), count(*) filter (whole), min(begin), max(last) from p group by 1 order by 1"
    )
    for row, (load, count, whole, begin, last) in zip(analysis.loads, loads, strict=True):
        assert (row.load, row.publications, row.completed) == (load, count, whole)
        assert row.achieved == pytest.approx((whole - 1) / ((last - begin) / 1e9), rel=0.01)
    begin, end = oracle("select min(start_ns), max(start_ns) from stages")[0]
    width = (end - begin) // 60 + 1
    slices = oracle(
        f"select domain, (start_ns - {begin}) // {width} as slice, count(*), quantile_disc(ns, 0.5) from stages "
        "where stage = 'end_to_end' group by all"
    )
    told = {(row.domain, round(row.second * 1e9 / width)): row for row in analysis.over_time}
    assert told.keys() == {(domain, place) for domain, place, *_ in slices}
    for domain, place, count, middle in slices:
        assert told[domain, place].count == count
        assert told[domain, place].p50_ms == pytest.approx(middle / MS, rel=0.02)
    bars = {(row.stage, row.domain) for row in analysis.histogram}
    for stage, domain in bars:
        ((count,),) = oracle(f"select count(*) from stages where stage = '{stage}' and domain = '{domain}'")
        assert sum(row.count for row in analysis.histogram if (row.stage, row.domain) == (stage, domain)) == count
    nodes_told = {row.node for row in analysis.nodes}
    assert nodes_told == {node for (node,) in oracle("select distinct node from raw")}


def test_where_to_look_next(both: tuple[Analysis, Oracle]) -> None:
    analysis, oracle = both
    told = {(row.kind, row.name, row.domain): row for row in analysis.places}
    for kind, name in (("gateway", "node"), ("topic", "topic"), ("subscriber", "node || ' ' || delivery")):
        found = oracle(
            f"select {name}, domain, count(*), quantile_disc(ns, 0.5), max(ns) from stages where stage = 'end_to_end' group by all"
        )
        assert {key[1:] for key in told if key[0] == kind} == {(who, domain) for who, domain, *_ in found}
        for who, domain, count, middle, most in found:
            row = told[kind, who, domain]
            assert (row.count, row.most_ms) == (count, pytest.approx(most / MS))
            assert row.p50_ms == pytest.approx(middle / MS, rel=0.01)
    slowest = oracle(
        "select publication, topic, node, delivery, ns, part_fetch, part_store, part_fan_out from stages "
        "where stage = 'end_to_end' order by ns desc limit 20"
    )
    assert [(row.publication, row.topic, row.node, row.subscriber) for row in analysis.slowest] == [
        tuple(row[:4]) for row in slowest
    ]
    for row, (*_, ns, fetch, store, fan_out) in zip(analysis.slowest, slowest, strict=True):
        assert [row.latency_ms, row.fetch_ms, row.store_ms, row.fan_out_ms] == pytest.approx(
            [value / MS for value in (ns, fetch, store, fan_out)]
        )


def test_no_table_is_without_its_oracle() -> None:
    """Whoever adds a table says here where its figures are checked a second time."""
    here = {
        "latency", "variation", "parts", "crossing", "homogeneity", "correlation", "endings", "receivers", "loads",
        "over_time", "histogram", "nodes", "places", "slowest",
    }  # fmt: skip
    elsewhere = {
        "between_runs": "test_truths",
        "queue_depth": "test_resources",
        "stability": "test_variation_figures, beside scipy",
        "saturation": "test_figures: follows from loads",
        "clocks": "test_control_clocks",
        "coverage": "test_truths",
        "files": "test_messy",
        "quality": "test_messy",
    }
    assert here | elsewhere.keys() == TABLES.keys()


def test_what_was_put_in_is_found(both: tuple[Analysis, Oracle]) -> None:
    analysis, _ = both
    assert [row.load for row in analysis.loads] == [100, 400]
    assert [row.keeps_up for row in analysis.loads] == [True, True]
    relation = {(row.stage, row.domain): row.pearson or 0 for row in analysis.correlation}
    assert relation["carry", "psirp"] > 0.2  # 200 ns a byte
    assert abs(relation["fan_out", "push"]) < 0.1
