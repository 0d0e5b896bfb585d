"""Benchmarks: they print what they measured and assert nothing about time."""
