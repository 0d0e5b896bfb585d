"""A cluster under a virtual clock: the real engines, KV pools, index and placement, with step times from a model.

Nothing here sleeps, reads a clock or draws randomness that was not seeded: a run is a function of its load, its policy
and its seed.
"""
