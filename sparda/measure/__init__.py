"""Benchmarks: each module times one topic on the present GPU, prints a table and writes tidy rows."""
