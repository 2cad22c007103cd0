"""The sections of a config that all runs share, declared as parts. Never imports torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fedsdg.experiment.starts import StartFolder
from fedsdg.federation.conditions.condition import clients_in
from fedsdg.methods.chosen import Chosen
from fedsdg.models import AdapterSettings
from fedsdg.parts import Absent, Range, part


@part
class FederationConfig:
    """Clients, cohorts and rounds."""

    clients: Annotated[int, Range(1)] = 20
    """number of clients K; `all`, with a skew `column~NAME`: as many as that column has values with
    at least `min_samples` training samples"""
    clients_per_round: Annotated[int, Range(1)] = 5
    "clients drawn in each round"
    rounds: Annotated[int, Range(1, 1_000_000)] = 20
    "communication rounds"
    evaluate_every: Annotated[int, Range(1)] = 2
    "rounds between evaluations; the last round is always evaluated"
    evaluate_from: Annotated[int, Range(0)] = 0
    "the first round that may be evaluated: a search looks at the last quarter alone"
    evaluate_at: Annotated[tuple[int, ...] | None, Range(1)] = None
    """the rounds that are evaluated, rising, in place of `evaluate_every`; the last round always
    is. Null: every `evaluate_every`"""
    global_images: Annotated[int | None, Range(1)] = None
    """null: global accuracy is measured on the whole global test set; or on so many of its images,
    stratified by class and the same for all seeds and methods; with `partition.test: by-seed` drawn
    at random once for each seed"""
    own_images: Annotated[int | None, Range(1)] = None
    """null: clients are judged on all of their validation and test samples; or on at most so many
    of either, drawn at random once for each seed and the same for all methods"""
    shapley: Literal[False, True, "estimated"] = False
    """true: what each client's update of the last round was worth, by all coalitions of at most 10
    clients, and beside it an estimate from 50 random orders; `estimated`: the estimate alone, for
    any number of clients. Clients whose update did not arrive in that round have no value"""
    trajectory: Literal["shared", "own"] | None = None
    """`shared` or `own`: follow all clients' models through parameter space, from the server's
    model or, in the first round, each from an initialisation of its own; null: do not"""
    held_out: Annotated[float, Range(0, 1)] = 0.0
    """share of the clients that never train, rounded to whole clients (halves up), and are judged
    by themselves as clients that come new, in the last quarter of the rounds"""

    def __post_init__(self) -> None:
        at = self.evaluate_at or ()
        if list(at) != sorted(set(at)) or (at and at[-1] > self.rounds):
            raise ValueError(
                f"evaluate_at is {list(at)}, but must name rounds up to rounds = {self.rounds}, "
                "rising; change it, or set it to null to evaluate every evaluate_every"
            )

    @property
    def kept_out(self) -> int:
        """How many clients never train: held_out · K, halves rounded up."""
        return clients_in(self.held_out, self.clients)


@part
class TrainingConfig:
    """Local training: E epochs of mini-batches with three learning rates (Eq. 6-8)."""

    epochs: Annotated[int, Range(1)] = 2
    "local epochs per round"
    batch_size: Annotated[int | None, Range(1)] = 16
    "samples of a batch; the last, partial batch is kept. Null: a client's whole shard"
    clip_norm: Annotated[float, Range(1e-12)] = 1.0
    "largest norm of a client's gradient over all its trainable parameters"
    optimiser: Annotated[Any, Chosen("optimiser", str)] = "adam"
    """the optimiser of each client, equal to that of `torch.optim`; with parameters
    `{type: sgd, momentum: 0.9}`"""
    loss: Annotated[Any, Chosen("loss", str)] = "cross-entropy"
    """what clients make small; with parameters `{type: cross-entropy, label_smoothing: 0.1}`"""
    eta_g: Annotated[float, Range(0)] = 3e-3
    "learning rate of the shared parameters, η_g"
    eta_p: Annotated[float, Range(0)] = 3e-3
    "learning rate of the private parameters, η_p"
    eta_m: Annotated[float, Range(0)] = 5e-3
    "learning rate of the gates, η_m"
    threads: Annotated[int, Range(1)] = 1
    "threads of one run, whatever `--cores` says: sums depend on it"
    device: Literal["cpu", "cuda"] = "cpu"
    "`cpu` or `cuda`; results of the two differ in rounding"
    precision: Literal["float32", "bfloat16", "tf32"] = "float32"
    """`float32`; `bfloat16`: the frozen layers and the work on tokens; `tf32`: float32 whose
    products a GPU rounds to 11 bits"""
    kernel: Annotated[Literal["auto", "compiled", "torch"], Absent("torch")] = "auto"
    """`compiled`: adapters and heads are trained and judged by a pass that is compiled for the
    processor, without autograd: plain transformers in float32 on a CPU with fused multiply-add, and
    widths that are multiples of 16. `torch`: by PyTorch. `auto`: compiled where that is possible; a
    run's address says which it was"""
    private_optimiser: Literal["restart", "keep"] = "restart"
    """what the optimiser remembers of parameters that never leave a client (Adam's moments of
    private parameters, gates and Ditto's own models): `restart` in every round, or `keep`: it lives
    on with the client"""
    refresh: Annotated[int, Range(0)] = 0
    """epochs in which a client trains its private parameters and gates alone, on the current shared
    model, before it is judged; discarded afterwards"""
    save: Literal["last", "selected"] | None = None
    """`last` or `selected`: a run keeps its models, as they are after the last round or after the
    one selected on validation data, for `fedsdg export`"""


@part
class AdaptersConfig(AdapterSettings):
    """LoRA adapters: rank r, scale α/r, and the layers that carry them."""

    start: Annotated[Any, StartFolder("start", str, optional=True)] = None
    """a folder with a PEFT checkpoint from which adapters and head start, such as `fedsdg export`
    writes; null: from random values"""
