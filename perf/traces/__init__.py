"""Traces: one record per step of a publication, beside the run they came from. See `docs/traces.md`."""
