"""A report: one HTML file that needs nothing else, plots as PNG, tables as Parquet and CSV."""
