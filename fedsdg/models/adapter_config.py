"""Settings of the adapters. Nothing here imports torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedsdg.parts import Count, Part, Share


class AdapterSettings(Part):
    """LoRA adapters: rank r, scale α/r, and the layers that carry them."""

    rank: Count = 8
    "rank r of the LoRA factors"
    alpha: Annotated[float, Field(ge=1e-09)] = 16.0
    "LoRA's α; the scale is α/r"
    targets: Literal["outputs", "qkv-fc1"] = "outputs"
    """`outputs`: attention output projection and second feed-forward layer; `qkv-fc1`: the
    others"""

    @property
    def scale(self) -> float:
        """The scale s = α / r."""
        return self.alpha / self.rank


class AdapterConfig(AdapterSettings):
    """Adapters, and which of their parts are communicated, private or frozen.

    An experiment sets the fields of `AdapterSettings`, a personalisation the others. The first
    choice of each option is the default.

    Raises:
        ValueError: options contradict one another.
    """

    branch: Literal["none", "dual"] = "none"
    "`none`: shared factors only; `dual`: a gated private branch beside them"
    composition: Literal["residual", "factors", "mixture"] = "residual"
    """`residual`: ΔW = s·B_g A_g + m·s·B_p A_p; `factors`: ΔW = s·(B_g + m·B_p)(A_g + m·A_p);
    `mixture`: ΔW = (1 − m)·s·B_g A_g + m·s·B_p A_p (FedDPA)"""
    gate: Literal["block", "layer", "client"] = "block"
    "one logit per block, adapted layer or client"
    gate_init: float = 0.0
    "first value of every logit a (0: m = 0.5)"
    gate_fixed: Share | None = None
    "m itself instead of a learned logit; then there is no logit"
    private_subspace: Literal["own", "shared-a"] = "own"
    "`own` A_p, or `shared-a`: the private branch uses A_g and has only B_p"
    private_init: Literal["near-zero", "lora", "official"] = "near-zero"
    """`near-zero`: A_p ~ N(0, 1e-4²); `lora`: as the shared A; B_p = 0 in both; `official`: A_p as
    the shared A, B_p ~ N(0, 0.01²), so that gates learn from the first step (the authors' public
    code)"""
    private_a_trainable: bool = True
    "false keeps A_p at its start (the `b-only` penalty), which therefore must be `lora`"
    private_block: Literal["first", "middle", "last"] | None = None
    """the only block with the private branch and its gates (`middle`: block ⌊L/2⌋ of
    0 … L − 1); null: every block has them"""
    head: Literal["shared", "private", "gated", "residual", "frozen"] = "shared"
    """`private`: every client keeps a head of its own (FedRep), and there is no global model;
    `gated`: (1 − m) W_g + m W_p with a private head W_p and one gate for each client; `residual`:
    W_g + W_p (Fed-RoD); `frozen`: the head stays at the one draw that all clients have in common,
    and is neither trained nor sent (FedBABU)"""
    factor_a: Literal["shared", "frozen"] = "shared"
    """`frozen`: every A stays at the one draw that all clients have in common, and is neither
    trained nor sent (FFA-LoRA)"""
    factor_b: Literal["shared", "private"] = "shared"
    """`private`: every client keeps a B of its own in place of a common one, and there is no global
    model (FedSA-LoRA)"""
    alternate: bool = False
    """B trains and is sent in the first round, A in the second, and so on in turns (RoLoRA); B
    first, for with B = 0 an A has no gradient"""
    own: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """patterns of the names of communicated parameters that every client keeps for itself, such as
    `*.bias`; then there is no global model"""
    local: bool = False
    "every parameter is private and d = 0 (`local-only`)"

    def check_fields(self) -> None:
        """Refuse options that contradict one another."""
        for option in ("branch", "head", "factor_a", "factor_b"):
            usual = type(self).model_fields[option].default
            if self.local and getattr(self, option) != usual:
                raise ValueError(
                    f"adapters: local keeps everything private, so {option} must be {usual!r}"
                )
        if self.branch == "dual" and self.head in ("gated", "residual"):
            raise ValueError(
                f"adapters: a {self.head} head has no place beside a private branch; set branch to "
                "'none', or head to 'shared' or 'private'"
            )
        if self.factor_a == "frozen" and self.factor_b == "private":
            raise ValueError(
                "adapters: with a frozen A and a private B no adapter is learned in common; "
                "set one of factor_a and factor_b to 'shared'"
            )
        if self.alternate and (self.local or {self.factor_a, self.factor_b} != {"shared"}):
            raise ValueError(
                "adapters: factors take turns only where both are shared; set factor_a and "
                "factor_b to 'shared', and local to False"
            )
        if self.private_block is not None and self.composition == "mixture":
            raise ValueError(
                "adapters: a mixture weighs the common branch of every block, so private_block "
                "must be null"
            )
        starts_at_zero = self.private_init == "near-zero" and self.private_subspace == "own"
        if self.branch == "dual" and not self.private_a_trainable and starts_at_zero:
            raise ValueError(
                "adapters: a private A that is not trained must not start near zero; "
                "set private_init to 'lora'"
            )
