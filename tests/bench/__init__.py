"""Benchmarks: each module measures one thing, returns its figures, and is run by `make bench`; none is a test."""
