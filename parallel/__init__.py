"""Ranks, meshes, collectives and sharded layers. Knows torch, and nothing of requests or Ray."""
