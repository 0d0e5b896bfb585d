"""Where the processes of a cluster write what an operator should know: to standard error, which Ray keeps."""

from __future__ import annotations

import logging
import sys


def configure_logging() -> None:
    """Once in each process of ours, at its start."""
    handler = logging.StreamHandler(sys.__stderr__)  # Serve replaces the other one by a logger of its own
    handler.setFormatter(logging.Formatter("%(levelname)s %(asctime)s %(name)s %(process)d -- %(message)s"))
    for package in ("cluster", "replicas", "parallel"):
        logger = logging.getLogger(package)
        logger.handlers = [handler]
        logger.setLevel(logging.INFO)
        logger.propagate = False
