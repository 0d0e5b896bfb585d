"""`mobula tune`: which settings serve the highest request rate within the objectives, found by trying.

`search` decides what to try next and knows nothing of engines; `trials` runs a setting on an engine in this process.
There is no HTTP and no Ray in it: the settings are the engine's, a trial starts in a second or two instead of half a
minute, and no load generator takes time on the same cores. What HTTP adds shows `mobula bench serve` on the result.
"""
