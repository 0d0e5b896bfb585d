"""Where a request runs: which replica has its prefix, how loaded each is, and what it would cost there."""
