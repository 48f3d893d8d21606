"""Whole networks in one process: on a virtual clock for tests and experiments, or on an event loop."""
