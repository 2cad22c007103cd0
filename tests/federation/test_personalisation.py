"""Every personalisation changes what it says and nothing else; its fields are its parameters."""

import pytest

from fedsdg.federation.objectives.gate_penalty import GatePenalty
from fedsdg.federation.objectives.private_penalty import PrivatePenalty
from fedsdg.federation.own_models import ditto
from fedsdg.federation.own_models.interpolation import Interpolation
from fedsdg.federation.own_models.own_model import OwnModel
from fedsdg.federation.personalisation.alternating import Alternating
from fedsdg.federation.personalisation.apfl import Apfl
from fedsdg.federation.personalisation.ditto import Ditto
from fedsdg.federation.personalisation.dual_adapter import DualAdapter
from fedsdg.federation.personalisation.dual_path import DualPath
from fedsdg.federation.personalisation.fine_tune import FineTune
from fedsdg.federation.personalisation.frozen_a import FrozenA
from fedsdg.federation.personalisation.interpolate import Interpolate
from fedsdg.federation.personalisation.local_only import LocalOnly
from fedsdg.federation.personalisation.own_head import OwnHead
from fedsdg.federation.personalisation.private_b import PrivateB
from fedsdg.federation.personalisation.private_head import PrivateHead
from fedsdg.federation.personalisation.shared import Shared
from fedsdg.models.adapter_config import AdapterConfig
from fedsdg.parts import declared

NEUTRAL = {
    "adapters": {},
    "terms": (),
    "epochs": 0,
    "head_alone": False,
    "private_first": 0,
    "interleaved": False,
    "shared_alone": False,
    "mixed_weight": None,
    "anchors": 0,
    "own": OwnModel(),
}
BRANCH = {
    "branch": "dual",
    "gate": "block",
    "gate_init": 0.0,
    "gate_fixed": None,
    "composition": "residual",
    "private_subspace": "own",
    "private_init": "near-zero",
    "private_a_trainable": True,
    "private_block": None,
    "head": "shared",
}
MIXED = {
    "branch": "dual",
    "gate_fixed": 0.25,
    "composition": "mixture",
    "private_init": "lora",
}
CASES = [
    (Shared(), {}),
    (DualPath(), {"adapters": BRANCH, "terms": (GatePenalty(1e-4), PrivatePenalty(1e-4))}),
    (
        DualPath(lambda1=0.3, lambda2=0.2, private_norm="residual", head="private", gate="client"),
        {
            "adapters": BRANCH | {"private_init": "lora", "head": "private", "gate": "client"},
            "terms": (GatePenalty(0.3), PrivatePenalty(0.2, "residual")),
        },
    ),
    (
        DualPath(private_norm="b-only", gate_fixed=0.5, composition="factors"),
        {
            "adapters": BRANCH
            | {
                "private_init": "lora",
                "private_a_trainable": False,
                "gate_fixed": 0.5,
                "composition": "factors",
            },
            "terms": (GatePenalty(1e-4), PrivatePenalty(1e-4, "b-only")),
        },
    ),
    (
        DualPath(gate="layer", gate_init=-2.0, private_init="official", private_subspace="own"),
        {
            "adapters": BRANCH | {"gate": "layer", "gate_init": -2.0, "private_init": "official"},
            "terms": (GatePenalty(1e-4), PrivatePenalty(1e-4)),
        },
    ),
    (
        DualPath(private_block="middle"),
        {
            "adapters": BRANCH | {"private_block": "middle"},
            "terms": (GatePenalty(1e-4), PrivatePenalty(1e-4)),
        },
    ),
    (
        DualPath(private_subspace="shared-a"),
        {
            "adapters": BRANCH | {"private_subspace": "shared-a"},
            "terms": (GatePenalty(1e-4), PrivatePenalty(1e-4)),
        },
    ),
    (LocalOnly(), {"adapters": {"local": True}}),
    (FineTune(3), {"epochs": 3}),
    (
        FineTune(tunes="head", head="frozen"),
        {"adapters": {"head": "frozen"}, "epochs": 2, "head_alone": True},
    ),
    (OwnHead(3), {"adapters": {"head": "private"}, "private_first": 3}),
    (PrivateHead(), {"adapters": {"head": "private"}}),
    (FrozenA(), {"adapters": {"factor_a": "frozen"}}),
    (PrivateB(), {"adapters": {"factor_b": "private", "head": "shared"}}),
    (PrivateB("private"), {"adapters": {"factor_b": "private", "head": "private"}}),
    (Alternating(), {"adapters": {"alternate": True}}),
    (Apfl(0.25), {"interleaved": True, "shared_alone": True, "mixed_weight": 0.25}),
    (
        DualAdapter(weight=0.25, personal_epochs=3),
        {"adapters": MIXED, "private_first": 3, "shared_alone": True},
    ),
    (
        DualAdapter(weight=0.25, mixture="per-sample"),
        {"adapters": MIXED, "private_first": 2, "shared_alone": True, "anchors": 5},
    ),
    (Ditto(0.5), {"own": ditto.Ditto(0.5)}),
    (Interpolate(0.25), {"own": Interpolation(0.25)}),
    (Interpolate(None), {"own": Interpolation(None)}),
]


@pytest.mark.parametrize(("one", "changed"), CASES, ids=lambda case: str(case)[:60])
def test_a_personalisation_changes_what_it_says_and_nothing_else(one, changed):
    assert {name: getattr(one, name) for name in NEUTRAL} == NEUTRAL | changed


@pytest.mark.parametrize("one", [one for one, _ in CASES], ids=lambda one: str(one)[:60])
def test_what_it_says_of_adapters_is_one_of_theirs(one):
    assert AdapterConfig(**one.adapters).local == isinstance(one, LocalOnly)


@pytest.mark.parametrize("kind", sorted({type(one) for one, _ in CASES}, key=lambda k: k.__name__))
def test_every_field_has_a_default_and_none_hides_what_all_have(kind):
    fields = declared(kind)
    assert not any(one.required for one in fields.values())
    assert not set(fields) & set(NEUTRAL)
    assert kind() == kind()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: DualPath(lambda1=-1), "lambda1 is -1, but must be at least 0"),
        (lambda: DualPath(lambda2=-1), "lambda2 is -1, but must be at least 0"),
        (lambda: DualPath(gate="blocks"), "gate is 'blocks', but must be one of block, layer"),
        (lambda: DualPath(gate_fixed=2), "gate_fixed is 2, but must be at most 1"),
        (lambda: DualPath(private_init="zero"), "private_init is 'zero', but must be one of near"),
        (lambda: FineTune(-1), "personal_epochs is -1, but must be at least 0"),
        (lambda: FineTune(1.5), "personal_epochs is 1.5, but must be a whole number"),
        (lambda: OwnHead(0), "head_epochs is 0, but must be at least 1"),
        (lambda: PrivateB("own"), "head is 'own', but must be one of shared, private"),
        (lambda: Apfl(1.5), "weight is 1.5, but must be at most 1"),
        (lambda: DualAdapter(mixture="none"), "mixture is 'none', but must be one of fixed, per"),
        (lambda: DualAdapter(personal_epochs=0), "personal_epochs is 0, but must be at least 1"),
        (lambda: Ditto(-1), "strength is -1, but must be at least 0"),
        (lambda: Interpolate(-1), "weight is -1, but must be at least 0"),
    ],
)
def test_a_value_out_of_range_is_refused(make, said):
    with pytest.raises(ValueError, match=f"^{said}"):
        make()
