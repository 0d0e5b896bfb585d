"""Models that make vectors: a Serve deployment of their own, which computes what comes at the same time together."""
