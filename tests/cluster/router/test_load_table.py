"""The columns say of each replica what its load says, whatever has happened before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cluster.router.load import UNMEASURED_PREFILL_RATE, Booking
from cluster.router.load_table import LoadTable
from replicas.messages import LoadReport

STEPS = st.lists(
    st.tuples(st.sampled_from(["join", "leave", "report", "book", "counted", "look"]), st.sampled_from("abcd"))
)


def as_rows(table: LoadTable):
    columns = table.columns
    return [
        (columns.queued_tokens[row], columns.running[row], columns.prefill_rate[row], columns.churn[row])
        for row in range(len(table))
    ]


@given(STEPS)
def test_columns_follow_the_loads(steps):
    table = LoadTable()
    for number, (what, replica) in enumerate(steps):
        if what == "look":
            assert len(as_rows(table)) == len(table)
        elif what == "join" and replica not in table:
            table.join(replica)
        elif replica not in table:
            continue
        elif what == "leave":
            table.leave(replica)
        elif what == "report":
            table.change(replica).report = LoadReport(running=number, waiting_prefill_tokens=number)
            table.change(replica).churn += number
        elif what == "book":
            table.change(replica).book(str(number % 3), Booking(number, 1))
        elif what == "counted":
            table.change(replica).counted(str(number % 3))
    assert table.names == list(table)
    assert [table.rows[name] for name in table.names] == list(range(len(table)))
    assert as_rows(table) == [
        (load.queued_tokens, load.running, UNMEASURED_PREFILL_RATE, load.churn) for load in table.values()
    ]
