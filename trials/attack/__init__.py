"""Attacks on real processes in network namespaces, beside an innocent user who must not feel them: `psph attack`."""
