"""For as long as tables state parameters that parts declare: both say the same."""

import pytest
from fedsdg.methods.local_parts import LOSSES, OPTIMISERS
from fedsdg.methods.table import METHODS

from fedsdg.experiment.conditions import ATTACKS
from fedsdg.parts import declared

ROWS = {
    f"{word} {name}": (row.part, row.parameters)
    for word, table in (("optimiser", OPTIMISERS), ("loss", LOSSES), ("attack", ATTACKS))
    for name, row in table.items()
}
#: Parts that are not all of a method, of whose parameters theirs are some.
WITHIN = {
    "stopping": METHODS["fedprox-inexact"],
    "pooling": METHODS["data-sharing"],
}
ROWS |= {
    name: (
        getattr(method, name),
        {key: method.parameters[key] for key in getattr(method, name).arguments},
    )
    for name, method in WITHIN.items()
}


@pytest.mark.parametrize("row", ROWS)
def test_a_part_declares_what_its_row_states(row):
    part, parameters = ROWS[row]
    known = declared(part.resolve())
    assert set(known) == set(parameters)
    for key, field in known.items():
        stated = parameters[key]
        flag = stated.choices == (False, True)
        assert (field.kind is bool) == flag
        assert field.default == stated.default and type(field.default) is type(stated.default)
        assert (field.range.least, field.range.most) == (stated.minimum, stated.maximum)
        assert field.choices == (None if flag else stated.choices or None)
        assert (field.kind is int) == stated.integer
        assert (field.optional, field.several) == (stated.optional, stated.several)
        assert (field.ends, field.meaning) == (stated.span, stated.meaning)
    assert part.resolve()() == part.build({key: one.default for key, one in parameters.items()})
