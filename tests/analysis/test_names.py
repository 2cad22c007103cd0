"""Names and orders that people read."""

from fedsdg.analysis import names
from fedsdg.files.places import split_setting


def test_methods_have_titles_and_variants_stand_after_their_method() -> None:
    titles = {
        "fedsdg": "FedSDG",
        "fedsdg-softmax": "FedSDG (softmax)",
        "fedavg": "FedAvg (samples)",
        "fedavg-uniform-sgd": "FedAvg (uniform, sgd)",
        "krum": "Krum",
        "unheard-of": "unheard-of",
    }
    assert sorted(set(titles), key=names.method_order) == list(titles)
    assert {label: names.method_title(label) for label in titles} == titles


def test_skews_are_ordered_by_value_not_by_text_and_by_their_scenarios() -> None:
    ordered = ["dirichlet~0.3", "dirichlet~2", "dirichlet~2@late-2", "dirichlet~10", "mixed~0.5~2"]
    ordered += ["mixed~0.5~10", "classes~2", "classes~10", "quantity~2", "quantity~10"]
    ordered += ["domains", "iid", "iid@late-9.5", "iid@late-10"]
    assert sorted(set(ordered), key=names.skew_order) == ordered
    for skew, title in (
        ("dirichlet~0.3", "Dirichlet α = 0.3"),
        ("mixed~0.5~0.1", "0.5 IID, others Dirichlet α = 0.1"),
        ("dirichlet~0.3@flip-0.2", "Dirichlet α = 0.3, flip-0.2"),
    ):
        assert names.skew_title(skew) == title
    assert names.skew_title("classes~2@late", short=True) == "2 classes, late"
    assert names.dirichlet_alpha("dirichlet~0.3") == 0.3
    assert names.dirichlet_alpha("dirichlet~0.3@flip-0.2") is None
    assert split_setting("dirichlet~0.3@flip-0.2") == ("dirichlet~0.3", "flip-0.2")
    assert split_setting("iid") == ("iid", "")
