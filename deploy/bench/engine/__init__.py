"""`mobula bench engine`: one engine in this process, without HTTP and Ray, held against what the machine can do.

The first package to look into is `phases`: what is measured. `limits` measures the machine, `work` knows what a phase
cannot do without, and a share of the limit is the time that the limits leave for that work over the time it took.
"""
