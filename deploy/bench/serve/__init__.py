"""`mobula bench serve`: a load generator for any OpenAI-compatible server, and what it makes of what it saw.

A plan of requests (`lengths`, `arrivals`, `traces`, `workload`) is sent (`generator`, `target`, `http`, `events`) and
becomes outcomes, from which everything else (`measure`, `slo`, `compare`, `sweep`, `report`, `plots`) is computed
without a clock.
"""
