"""The analysis of traces on Spark: DataFrames in, small tables out. See `docs/design/pipeline.md`."""
