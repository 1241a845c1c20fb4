"""Benchmarks against peers: ratios measured in one run, never a bare time."""
