"""Where the processes of a cluster write what an operator should know: to standard error, which Ray keeps."""

from __future__ import annotations

import logging
import sys
import traceback


class _Formatter(logging.Formatter):
    def formatException(self, ei: logging._SysExcInfoType) -> str:
        """Without `print`, which Serve replaces in its replicas."""
        return "".join(traceback.format_exception(*ei)).rstrip()


def configure_logging() -> None:
    """Once in each process of ours, at its start."""
    handler = logging.StreamHandler(sys.__stderr__)  # Serve replaces the other one by a logger of its own
    handler.setFormatter(_Formatter("%(levelname)s %(asctime)s %(name)s %(process)d -- %(message)s"))
    for package in ("cluster", "replicas", "parallel"):
        logger = logging.getLogger(package)
        logger.handlers = [handler]
        logger.setLevel(logging.INFO)
        logger.propagate = False
