"""Measurement: benchmarks, workloads and the analysis of what they recorded."""
