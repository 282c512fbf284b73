"""Benchmarks that a user can run: each prints ratios measured in one run."""
