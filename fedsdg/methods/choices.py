"""What a config chooses by a name beside its methods: optimisers, losses, attacks.

Each is a row of a real part, which declares its parameters itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fedsdg.federation.conditions.attack import (
    BlindReplacement,
    Corruption,
    Gaussian,
    InnerProduct,
    LabelFlip,
    LittleIsEnough,
    Replacement,
    Scaling,
    SignFlip,
)
from fedsdg.federation.losses import CrossEntropy, Focal
from fedsdg.federation.optimisers import Adagrad, Adam, AdamW, Sgd
from fedsdg.methods.choice import Choice

OPTIMISERS: Mapping[str, Choice] = MappingProxyType(
    {
        "adam": Choice("Adam", Adam(), "Kingma & Ba 2015"),
        "adamw": Choice("AdamW", AdamW(), "Loshchilov & Hutter 2019"),
        "sgd": Choice("SGD", Sgd(), "Sutskever et al. 2013"),
        "adagrad": Choice("Adagrad", Adagrad(), "Duchi et al. 2011"),
    }
)

LOSSES: Mapping[str, Choice] = MappingProxyType(
    {
        "cross-entropy": Choice("Cross-entropy", CrossEntropy()),
        "focal": Choice("Focal loss", Focal(), "Lin et al. 2017"),
    }
)

_AGGREGATION = "chapter on aggregation"
ATTACKS: Mapping[str, Choice] = MappingProxyType(
    {
        "gaussian": Choice("Gaussian noise", Gaussian(), f"{_AGGREGATION}; Blanchard et al. 2017"),
        "sign-flip": Choice("Sign flip", SignFlip(), "Li et al. 2019 (RSA)"),
        "scaling": Choice("Scaling", Scaling(), "Bagdasaryan et al. 2020"),
        "alie": Choice("ALIE", LittleIsEnough(), "Baruch et al. 2019"),
        "inner-product": Choice("Inner product", InnerProduct(), "Xie et al. 2019"),
        "replacement": Choice(
            "Model replacement", Replacement(), f"{_AGGREGATION}; Bagdasaryan et al. 2020"
        ),
        "replacement-blind": Choice(
            "Model replacement, blind",
            BlindReplacement(),
            f"{_AGGREGATION}; Bagdasaryan et al. 2020",
        ),
        "corruption": Choice("Corrupted transmission", Corruption(), _AGGREGATION),
        "label-flip": Choice("Label flip", LabelFlip(), "Biggio et al. 2012; Tolpegin et al. 2020"),
    }
)
