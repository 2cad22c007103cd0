"""Every skew has one spelling, which says exactly what it means."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsdg.data.skew import Skew, parse_skew


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("dirichlet~0.1", "dirichlet", 0.1),
        ("dirichlet~1.0", "dirichlet", 1.0),
        ("dirichlet~0.0001", "dirichlet", 1e-4),
        ("dirichlet~100.0", "dirichlet", 100.0),
        ("classes~2", "classes", 2),
        ("quantity~0.5", "quantity", 0.5),
        ("mixed~0.5~0.1", "mixed", 0.1),
        ("domains", "domains", None),
        ("iid", "iid", None),
    ],
)
def test_meaning(text, kind, value):
    skew = parse_skew(text)
    assert (skew.kind, skew.value, skew.text) == (kind, value, text)


@given(st.floats(min_value=1e-12, max_value=1e12))
def test_every_concentration_has_a_text_that_reads_back_exactly(alpha):
    text = f"dirichlet~{np.format_float_positional(alpha, trim='0')}"
    assert parse_skew(text).value == alpha
    assert parse_skew(text).text == text


@given(st.text(max_size=12))
def test_any_other_number_is_refused_or_canonical(number):
    try:
        skew = parse_skew(f"dirichlet~{number}")
    except ValueError:
        return
    assert skew.value is not None
    assert skew.text == f"dirichlet~{np.format_float_positional(skew.value, trim='0')}"


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        ("dirichlet~0.10", "dirichlet~0.1"),
        ("dirichlet~1", "dirichlet~1.0"),
        ("dirichlet~.5", "dirichlet~0.5"),
        ("dirichlet~1e-4", "dirichlet~0.0001"),
        ("dirichlet~ 0.1", "dirichlet~0.1"),
        ("quantity~1", "quantity~1.0"),
        ("mixed~.5~0.1", "mixed~0.5~0.1"),
        ("mixed~0.50~0.1", "mixed~0.5~0.1"),
        ("mixed~0.5~1", "mixed~0.5~1.0"),
        ("classes~02", "classes~2"),
        ("classes~+2", "classes~2"),
    ],
)
def test_second_spelling_is_refused_and_the_first_is_named(text, spelling):
    with pytest.raises(ValueError, match="must be spelled") as caught:
        parse_skew(text)
    assert spelling in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dirichlet~0", "above 0"),
        ("dirichlet~0.0", "above 0"),
        ("dirichlet~-0.5", "above 0"),
        ("dirichlet~nan", "finite"),
        ("dirichlet~inf", "finite"),
        ("dirichlet~many", "'many' is not a number"),
        ("dirichlet~", "is not a number"),
        ("dirichlet", "unknown skew"),
        ("quantity~0.0", "above 0"),
        ("quantity", "unknown skew"),
        ("mixed~0.0~0.1", "above 0 and below 1; for the ends write"),
        ("mixed~1.0~0.1", "above 0 and below 1"),
        ("mixed~nan~0.1", "above 0 and below 1"),
        ("mixed~0.5~0.0", "concentration must be finite and above 0"),
        ("mixed~0.5~many", "'many' is not a number"),
        ("mixed~0.5", "unknown skew"),
        ("domains~2", "unknown skew"),
        ("classes~0", "at least 1 class"),
        ("classes~1.5", "not a whole number"),
        ("iid~1", "unknown skew"),
        ("zipf~1.0", "unknown skew"),
        ("", "unknown skew"),
    ],
)
def test_nonsense_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_skew(text)


def test_yaml_number_is_refused():
    with pytest.raises(ValueError, match="must be a string"):
        parse_skew(0.1)  # type: ignore[arg-type]


def test_parts_must_belong_together():
    with pytest.raises(ValueError, match=r"must be spelled 'dirichlet~0\.2'"):
        Skew("dirichlet", 0.2, "dirichlet~0.1")
    with pytest.raises(ValueError, match="takes no value"):
        Skew("iid", 1, "iid")
    with pytest.raises(ValueError, match="takes no value"):
        Skew("domains", 4, "domains")
    with pytest.raises(ValueError, match="needs a value"):
        Skew("classes", None, "classes~2")
    with pytest.raises(ValueError, match="unknown skew kind"):
        Skew("zipf", 1.0, "zipf~1.0")  # type: ignore[arg-type]
