"""Workloads: what is offered to two or more gateways and a network between them, and the traces that come of it."""
