"""Loads of replicas as placement keeps them."""

from __future__ import annotations

from cluster.router.load import ReplicaLoad
from cluster.router.load_table import LoadTable


def table_of(*loads: ReplicaLoad, **named: ReplicaLoad) -> LoadTable:
    """Replicas without a name have that of their place."""
    table = LoadTable()
    for name, load in ({str(place): load for place, load in enumerate(loads)} | named).items():
        put(table, name, load)
    return table


def put(table: LoadTable, name: str, load: ReplicaLoad) -> None:
    if name not in table:
        table.join(name)
    present = table.change(name)
    present.report, present.churn = load.report, load.churn
    for request_id in list(present.bookings):
        present.counted(request_id)
    for request_id, booking in load.bookings.items():
        present.book(request_id, booking)
