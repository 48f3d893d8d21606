"""The commands of the trials, found by `psph` when this package is there."""
