"""Training alone: nothing is shared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsdg.federation.personalisation.personalisation import Personalisation
from fedsdg.parts import part


@part
class LocalOnly(Personalisation):
    """Every parameter is private: nothing is sent and there is no global model."""

    @property
    def adapters(self) -> Mapping[str, Any]:
        return {"local": True}
