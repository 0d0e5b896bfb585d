"""The loads of all replicas, as columns: what depends on each of two thousand is computed in a few operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from cluster.router.load import ReplicaLoad

Column = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Loads:
    """A row for each replica. The columns are those of `ReplicaLoad` and its report; `waiting` is the report's."""

    queued_tokens: Column
    queued: Column
    waiting: Column
    running: Column
    prefill_rate: Column
    step_seconds: Column
    decode_step_seconds: Column
    churn: Column


class LoadTable(Mapping[str, ReplicaLoad]):
    """Rows are in the order in which replicas have joined. A load may be changed only by way of `change`: its row is
    brought up to date when the columns are asked for, however often it was changed until then."""

    def __init__(self) -> None:
        self._loads: dict[str, ReplicaLoad] = {}
        self._changed: set[str] = set()
        self._number()

    def join(self, replica: str) -> None:
        """Nothing is known of it yet."""
        self._loads[replica] = ReplicaLoad()
        self._number()

    def leave(self, replica: str) -> None:
        del self._loads[replica]
        self._number()

    def change(self, replica: str) -> ReplicaLoad:
        """Of a replica that is there: its load, to be changed now."""
        self._changed.add(replica)
        return self._loads[replica]

    @property
    def columns(self) -> Loads:
        """As of now; valid until something changes."""
        for replica in self._changed:
            self._cells[:, self.rows[replica]] = _row(self._loads[replica])
        self._changed.clear()
        return self._columns

    def _number(self) -> None:
        self.names = list(self._loads)
        self.rows = {replica: row for row, replica in enumerate(self.names)}
        self._cells = np.empty((len(Loads.__slots__), len(self.names)))
        self._columns = Loads(*self._cells)
        self._changed = set(self.names)

    def __getitem__(self, replica: str) -> ReplicaLoad:
        return self._loads[replica]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loads)

    def __len__(self) -> int:
        return len(self._loads)


def _row(load: ReplicaLoad) -> tuple[float, ...]:
    report = load.report
    return (
        load.queued_tokens,
        load.queued,
        report.waiting,
        load.running,
        load.prefill_rate,
        report.step_seconds,
        report.decode_step_seconds,
        load.churn,
    )
