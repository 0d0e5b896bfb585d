"""`mobula plan`: which layouts of a model fit on the GPUs at hand, and what each would cost.

Arithmetic on a model's shape, and times from other people's measurements. Nothing here starts an engine or needs a GPU.
"""
