"""The `psph` command line: one module per command behind one dispatcher."""
