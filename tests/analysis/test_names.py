"""Names and orders that people read."""

import pytest

from fedsdg.analysis import names
from fedsdg.files.places import split_setting
from fedsdg.files.records import METRICS, METRICS_OF_GROUPS


def test_variants_stand_after_their_method() -> None:
    labels = ["zeta", "krum", "fedavg-uniform", "fedsdg-softmax", "fedavg", "fedsdg"]
    ordered = sorted(labels, key=names.method_order)
    assert ordered == ["fedsdg", "fedsdg-softmax", "fedavg", "fedavg-uniform", "krum", "zeta"]


@pytest.mark.parametrize(
    ("label", "title"),
    [
        ("krum", "Krum"),
        ("fedsdg-softmax", "FedSDG (softmax)"),
        ("fedavg-uniform-sgd", "FedAvg (uniform, sgd)"),
        ("unheard-of", "unheard-of"),
    ],
)
def test_titles(label: str, title: str) -> None:
    assert names.method_title(label) == title


def test_skews_are_ordered_by_value_not_by_text() -> None:
    skews = ["iid", "classes~10", "dirichlet~10", "classes~2", "dirichlet~0.3", "dirichlet~2"]
    skews += ["domains", "quantity~10", "quantity~2", "mixed~0.5~10", "mixed~0.5~2"]
    assert sorted(skews, key=names.skew_order) == [
        "dirichlet~0.3",
        "dirichlet~2",
        "dirichlet~10",
        "mixed~0.5~2",
        "mixed~0.5~10",
        "classes~2",
        "classes~10",
        "quantity~2",
        "quantity~10",
        "domains",
        "iid",
    ]
    assert names.skew_title("dirichlet~0.3") == "Dirichlet α = 0.3"
    assert names.skew_title("mixed~0.5~0.1") == "0.5 IID, others Dirichlet α = 0.1"


def test_a_scenario_follows_its_skew() -> None:
    assert split_setting("dirichlet~0.3@flip-0.2") == ("dirichlet~0.3", "flip-0.2")
    assert split_setting("iid") == ("iid", "")
    assert names.skew_title("dirichlet~0.3@flip-0.2") == "Dirichlet α = 0.3, flip-0.2"
    assert names.skew_title("classes~2@late", short=True) == "2 classes, late"
    assert names.dirichlet_alpha("dirichlet~0.3") == 0.3
    assert names.dirichlet_alpha("dirichlet~0.3@flip-0.2") is None
    skews = ["iid@late-10", "dirichlet~1@late-2", "iid", "iid@late-9.5", "dirichlet~1"]
    assert sorted(skews, key=names.skew_order) == [
        "dirichlet~1",
        "dirichlet~1@late-2",
        "iid",
        "iid@late-9.5",
        "iid@late-10",
    ]


def test_the_metrics_of_tables_are_recorded() -> None:
    assert set(names.METRIC_KEYS) <= {*METRICS, *METRICS_OF_GROUPS}
