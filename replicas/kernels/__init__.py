"""Kernels of our own, by the kind of processor they are for."""
