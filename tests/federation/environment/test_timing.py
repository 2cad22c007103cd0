"""Simulated rounds end when they should, and no update is lost or counted twice."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsdg.federation.environment.timing import Clock, Updates, end_of_round, everything_arrives

D = 3


def sent(round_, clients, due):
    """Updates that carry their sender and round, so that they are known again."""
    clients = np.asarray(clients, dtype=np.int64)
    rows = torch.tensor([[100.0 * round_ + c] * D for c in clients]).reshape(-1, D)
    return Updates(
        clients,
        np.full(len(clients), round_),
        np.asarray(due, dtype=float),
        np.ones(len(clients)),
        {"update": rows, "control": -rows},
    )


def clock(**options):
    return Clock(np.ones(20), **options)


def test_a_round_waits_for_everybody_where_nothing_limits_it():
    ending = end_of_round(clock(), 1, 10.0, sent(1, [4, 2, 7], [12, 15, 11]), Updates.none())
    assert ending.end == 15 and ending.late == ending.discarded == 0
    assert ending.arrived.clients.tolist() == [4, 2, 7] and len(ending.pending) == 0
    assert ending.idle == 3 + 0 + 4


def test_late_updates_join_the_round_in_which_they_arrive():
    limited = clock(deadline=5.0, max_age=1)
    first = end_of_round(limited, 1, 0.0, sent(1, [0, 1, 2], [4, 7, 20]), Updates.none())
    assert first.end == 5 and first.arrived.clients.tolist() == [0] and first.late == 2
    assert first.pending.clients.tolist() == [1, 2] and first.idle == 1
    second = end_of_round(limited, 2, first.end, sent(2, [0], [6]), first.pending)
    # Client 2 is the last to come, but the deadline is at 10.
    assert second.end == 10 and second.arrived.clients.tolist() == [1, 0]
    assert second.arrived.born.tolist() == [1, 2]
    assert second.arrived.update[:, 0].tolist() == [101, 200]
    assert second.arrived.rows["control"][:, 0].tolist() == [-101, -200]
    third = end_of_round(limited, 3, second.end, sent(3, [0], [11]), second.pending)
    # Client 2 began in round 1: at the end of round 3 it is older than 1 round.
    assert third.discarded == 1 and third.arrived.clients.tolist() == [0]
    assert len(third.pending) == 0


def test_late_updates_are_discarded_where_nothing_compensates():
    limited = clock(deadline=5.0, late="discard")
    ending = end_of_round(limited, 1, 0.0, sent(1, [0, 1], [4, 7]), Updates.none())
    assert (ending.late, ending.discarded, len(ending.pending)) == (1, 1, 0)


def test_a_round_may_end_with_a_number_of_arrivals():
    ending = end_of_round(
        clock(arrivals=2, deadline=50.0), 1, 0.0, sent(1, [0, 1, 2], [9, 3, 6]), Updates.none()
    )
    assert ending.end == 6 and ending.arrived.clients.tolist() == [1, 2]
    assert ending.pending.clients.tolist() == [0]


def test_without_a_clock_everything_arrives_as_it_was_sent():
    rows = sent(1, [3, 1], [0, 0])
    ending = everything_arrives(rows)
    assert ending.arrived is rows and not len(ending.pending)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_update_arrives_once_or_is_discarded_once(data):
    """Against a simulation that keeps a plain list of events."""
    options = {
        "deadline": data.draw(st.none() | st.floats(0.5, 5)),
        "arrivals": data.draw(st.none() | st.integers(1, 4)),
        "late": data.draw(st.sampled_from(["compensate", "discard"])),
        "max_age": data.draw(st.integers(1, 3)),
    }
    now, pending = 0.0, Updates.none()
    on_the_way, fate = [], {}
    total = 0
    for round_ in range(1, 8):
        busy = set(pending.clients.tolist())
        free = [c for c in range(6) if c not in busy]
        times = [data.draw(st.floats(0.1, 12)) for _ in free]
        total += len(free)
        here = sent(round_, free, [now + t for t in times])
        ending = end_of_round(clock(**options), round_, now, here, pending)

        on_the_way += [(now + t, round_, c) for t, c in zip(times, free, strict=True)]
        dues = sorted(due for due, *_ in on_the_way)
        stops = [dues[-1]] if dues else [now]
        if options["arrivals"] and dues:
            stops.append(dues[min(options["arrivals"], len(dues)) - 1])
        if options["deadline"] and dues:
            stops.append(now + options["deadline"])
        end = max(now, min(stops))
        left = []
        for due, born, client in on_the_way:
            key = (born, client)
            if round_ - born > options["max_age"]:
                fate[key] = "discarded"
            elif due <= end:
                fate[key] = "arrived"
            elif options["late"] == "discard":
                fate[key] = "discarded"
            else:
                left.append((due, born, client))
        on_the_way = left

        assert ending.end == pytest.approx(end)
        there = set(zip(ending.arrived.born.tolist(), ending.arrived.clients.tolist(), strict=True))
        assert len(there) == len(ending.arrived)
        assert all(fate[key] == "arrived" for key in there)
        waiting = set(
            zip(ending.pending.born.tolist(), ending.pending.clients.tolist(), strict=True)
        )
        assert waiting == {(born, client) for _, born, client in left}
        pending, now = ending.pending, ending.end
    assert len(fate) + len(pending) == total


def test_what_is_on_its_way_survives_a_checkpoint():
    rows = sent(2, [5, 3], [7.5, 9.25])
    back = Updates.of_tensors(rows.tensors(), torch.device("cpu"))
    for name in ("clients", "born", "due", "norms"):
        assert np.array_equal(getattr(back, name), getattr(rows, name))
    assert set(back.rows) == {"update", "control"} and torch.equal(back.update, rows.update)
    assert Updates.none().tensors() == {}


def test_a_round_without_updates_takes_as_long_as_its_clients_had():
    timed = clock(local_seconds=2.5)
    nobody = end_of_round(timed, 1, 10.0, Updates.none(), Updates.none(), out_of_time=3)
    assert nobody.end == 12.5 and not len(nobody.arrived)
    assert end_of_round(timed, 1, 10.0, Updates.none(), Updates.none()).end == 10.0
    # A server does not wait for clients that send nothing where others send.
    assert end_of_round(timed, 1, 10.0, sent(1, [4], [11]), Updates.none(), out_of_time=3).end == 11
