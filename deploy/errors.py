"""The errors that a command prints as they stand."""

from __future__ import annotations


class UserError(ValueError):
    """A mistake of whoever runs the command, or a lack of their machine. Its message is complete: it is
    printed without a traceback, and the exit status is 2."""


class CatalogError(UserError):
    """A model cannot be found or fetched; the message says why and what to do."""
