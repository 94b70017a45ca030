"""Benchmarks: ratios measured in one run on real parts; see `benchmarks.run`."""
