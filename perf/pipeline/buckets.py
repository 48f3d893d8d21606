"""Log-linear buckets: values above 2^(k+1) share one with those at most 2^-k away, smaller ones stand alone.

Counts by bucket are small, add up over partitions and micro-batches in any order, and hold the whole distribution:
percentiles, ranks and time slices are made from them. Batch and live use the same buckets.
"""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

LATENCY_BITS: Final = 10
"""Buckets of latencies are at most 1/1024 of their value wide."""
PAYLOAD_BITS: Final = 2
"""Classes of payloads: four to an octave."""


def bucket(value: Column, bits: int = LATENCY_BITS) -> Column:
    """The number of the bucket of a value that is not negative. Numbers order as values do."""
    # A logarithm that is off by one at a power of two still gives the right number: numbers run on without a gap.
    exponent = F.floor(F.log2(value) + F.lit(1e-9)).cast("int")
    shift = F.greatest(exponent - F.lit(bits), F.lit(0))
    top = F.call_function("shiftright", value.cast("long"), shift)
    return shift.cast("long") * F.lit(1 << bits) + top


def payload_class(payload: Column) -> Column:
    return bucket(payload, PAYLOAD_BITS)


def bucket_of(value: int, bits: int = LATENCY_BITS) -> int:
    """The same in Python."""
    shift = max(value.bit_length() - (bits + 1), 0)
    return (shift << bits) + (value >> shift)


def lowest_of(number: int, bits: int = LATENCY_BITS) -> int:
    """The smallest value in a bucket."""
    shift = max((number >> bits) - 1, 0)
    return (number - (shift << bits)) << shift


def middle_of(number: int, bits: int = LATENCY_BITS) -> float:
    shift = max((number >> bits) - 1, 0)
    return lowest_of(number, bits) + ((1 << shift) - 1) / 2
