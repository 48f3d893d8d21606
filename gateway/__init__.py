"""The appliance: what an operator runs, and the `psph` command line."""

__version__ = "0.1.0"
