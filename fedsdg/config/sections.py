"""The sections of a config that all its runs share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, PlainValidator

from fedsdg.config.values import Positive
from fedsdg.errors import ConfigError, shortened
from fedsdg.federation.conditions.attack import Attackers
from fedsdg.federation.conditions.compute import Compute
from fedsdg.federation.conditions.condition import Condition, attackers_in, clients_in
from fedsdg.federation.conditions.difference import FeatureShift, LabelConflict
from fedsdg.federation.conditions.dropout import Dropout
from fedsdg.federation.conditions.label_noise import LabelNoise
from fedsdg.federation.conditions.quantisation import Quantisation
from fedsdg.federation.losses import CrossEntropy, Loss
from fedsdg.federation.optimisers import Adam, Optimiser
from fedsdg.files import sha256_file, sha256_json
from fedsdg.models.adapter_config import AdapterSettings
from fedsdg.parts import Chosen, Count, Natural, NonNegative, Part, Several, Share

Million = Annotated[int, Field(ge=1, le=1_000_000)]
OVERRIDES = ("optimiser", "loss", "eta_g", "eta_p", "eta_m", "private_optimiser", "refresh")
"""Keys of ``training`` that an entry of ``methods`` may set for itself."""
CHECKPOINT_FILES = ("adapter_config.json", "adapter_model.safetensors")
"""The files of a PEFT checkpoint."""


class Federation(Part):
    """Clients, cohorts and rounds."""

    clients: Million = 20
    "number of clients K; with a skew `column~NAME` at most one for each value of that column"
    clients_per_round: Count = 5
    "clients drawn in each round"
    rounds: Million = 20
    "communication rounds"
    evaluate_every: Count = 2
    "rounds between evaluations; the last round is always evaluated"
    evaluate_from: Natural = 0
    "the first round that may be evaluated: a search looks at the last quarter alone"
    evaluate_at: Several[Count] | None = None
    """the rounds that are evaluated, rising, in place of `evaluate_every`; the last round always
    is. Null: every `evaluate_every`"""
    evaluate: Literal["everything", "validation"] = "everything"
    """`everything`, or accuracy on validation samples alone: then no test accuracy is computed, as
    in the trials of a search"""
    global_images: Count | None = None
    """null: global accuracy is measured on the whole global test set; or on so many of its images,
    stratified by class and the same for all seeds and methods; with `partition.test: by-seed` drawn
    at random once for each seed"""
    own_images: Count | None = None
    """null: clients are evaluated on all of their validation and test samples; or on at most so
    many of either, drawn at random once for each seed and the same for all methods"""
    shapley: Literal[False, True, "estimated"] = False
    """true: the contribution of each client's update of the last round, by all coalitions of at
    most 10 clients, and beside it an estimate from 50 random orders; `estimated`: the estimate
    alone, for any number of clients. Clients whose update did not arrive have no value"""
    trajectory: Literal["shared", "own"] | None = None
    """`shared` or `own`: follow all clients' models through parameter space, from the server's
    model or, in the first round, each from an initialisation of its own; null: do not"""
    held_out: Share = 0.0
    """share of the clients that never train, rounded to whole clients (halves up), and are
    evaluated by themselves as clients that come new, in the last quarter of the rounds"""

    def check_fields(self) -> None:
        """Check the rounds that are evaluated, and that cohorts can be drawn."""
        rounds = list(self.evaluate_at or ())
        if rounds != sorted(set(rounds)) or (rounds and rounds[-1] > self.rounds):
            raise ValueError(
                f"evaluate_at is {rounds}, but must name rounds up to rounds = {self.rounds}, "
                "rising; change it, or set it to null to evaluate every evaluate_every"
            )
        if self.shapley is True:
            from fedsdg.federation.observers.shapley import MOST_PLAYERS  # Imports torch.

            if self.clients_per_round > MOST_PLAYERS:
                raise ValueError(
                    f"shapley is true, but exact values are enumerated for at most {MOST_PLAYERS} "
                    f"clients, and a round has {self.clients_per_round}; lower clients_per_round, "
                    "or write shapley: estimated"
                )
        available = self.clients - self.kept_out
        if self.clients_per_round > available:
            raise ValueError(
                f"clients_per_round is {self.clients_per_round}, more than the {available} clients "
                "that there are to draw from; lower it, raise clients, or lower held_out"
            )

    @property
    def kept_out(self) -> int:
        """Number of clients that never train: held_out * K, halves rounded up."""
        return clients_in(self.held_out, self.clients)


class Training(Part):
    """Local training: E epochs of mini-batches with three learning rates (Eq. 6-8)."""

    epochs: Count = 2
    "local epochs per round"
    batch_size: Count | None = 16
    "samples of a batch; the last, partial batch is kept. Null: a client's whole shard"
    clip_norm: Positive = 1.0
    "largest norm of a client's gradient over all its trainable parameters"
    optimiser: Annotated[Optimiser, Chosen(Optimiser)] = Adam()
    """the optimiser of each client, equal to that of `torch.optim`; with parameters
    `{type: sgd, momentum: 0.9}`"""
    loss: Annotated[Loss, Chosen(Loss)] = CrossEntropy()
    "what clients minimise; with parameters `{type: cross-entropy, label_smoothing: 0.1}`"
    eta_g: NonNegative = 3e-3
    "learning rate of the shared parameters, η_g"
    eta_p: NonNegative = 3e-3
    "learning rate of the private parameters, η_p"
    eta_m: NonNegative = 5e-3
    "learning rate of the gates, η_m"
    threads: Count = 1
    "threads of one run, whatever `--cores` says: sums depend on it"
    device: Literal["cpu", "cuda"] = "cpu"
    "`cpu` or `cuda`; results of the two differ in rounding"
    precision: Literal["float32", "bfloat16", "tf32"] = "float32"
    """`float32`; `bfloat16`: the frozen layers and the work on tokens; `tf32`: float32 whose
    products a GPU rounds to 11 bits"""
    kernel: Literal["auto", "compiled", "torch"] = "auto"
    """`compiled`: adapters and heads are trained and evaluated by a pass that is compiled for the
    processor, without autograd: plain transformers in float32 on a CPU with fused multiply-add, and
    widths that are multiples of 16. `torch`: by PyTorch. `auto`: compiled where that is possible; a
    run's address says which it was"""
    private_optimiser: Literal["restart", "keep"] = "restart"
    """what the optimiser remembers of parameters that never leave a client (Adam's moments of
    private parameters, gates and Ditto's own models): `restart` in every round, or `keep`"""
    refresh: Natural = 0
    """epochs in which a client trains its private parameters and gates alone, on the current shared
    model, before it is evaluated; discarded afterwards"""
    save: Literal["last", "selected"] | None = None
    """`last` or `selected`: a run keeps its models, as they are after the last round or after the
    one selected on validation data, for `fedsdg export`"""

    def check_fields(self) -> None:
        """Refuse a precision that the device does not have."""
        if self.precision == "tf32" and self.device != "cuda":
            raise ValueError(
                "precision is tf32, in which GPUs alone compute; set device to cuda, or precision "
                "to float32"
            )


@dataclass(frozen=True)
class Start:
    """A PEFT checkpoint: its folder, and the hash of its files, which alone counts in a run."""

    folder: str
    sha256: str


def find_start(folder: Any) -> Start | None:
    """Return the checkpoint in a folder, or raise ConfigError if a file of it is missing."""
    if folder is None or isinstance(folder, Start):
        return folder
    if not isinstance(folder, str) or not folder:
        wanted = "a folder with a peft checkpoint"
        raise ConfigError(f"is {shortened(folder)}, but must be {wanted}")
    for name in CHECKPOINT_FILES:
        if not (Path(folder) / name).is_file():
            raise ConfigError(
                f"names {folder}, which holds no peft checkpoint: {name} is missing; name a folder "
                "that 'fedsdg export' or peft wrote"
            )
    hashes = {name: sha256_file(Path(folder) / name) for name in CHECKPOINT_FILES}
    return Start(folder, sha256_json(hashes))


def _hash(start: Start | None) -> str | None:
    return start.sha256 if start else None


class Adapters(AdapterSettings):
    """LoRA adapters: rank r, scale α/r, and the layers that carry them."""

    start: Annotated[Start | None, PlainValidator(find_start), PlainSerializer(_hash)] = None
    """a folder with a PEFT checkpoint from which adapters and head start, such as `fedsdg export`
    writes; null: from random values"""

    def overrides(self) -> dict[str, Any]:
        """Return what differs from the defaults; of a start the hash alone."""
        overrides = super().overrides()
        return overrides if self.start is None else {**overrides, "start": _hash(self.start)}


class Conditions(Part):
    """Attacks, dropout, noise and other conditions; each is absent or null if there is none."""

    attack: Attackers | None = None
    """a share of the clients attacks; they are the same in every round, and those of a smaller
    share are among those of a larger one"""
    dropout: Dropout | None = None
    "clients leave before they send anything"
    label_noise: LabelNoise | None = None
    "wrong labels on clients' training and validation samples, never on tests"
    label_conflict: LabelConflict | None = None
    """a share of the clients permute the names of some classes, in all their labels: training,
    validation and test"""
    feature_shift: FeatureShift | None = None
    "a share of the clients see other images: inverted, turned, or with noise"
    compute: Compute | None = None
    "clients of different speed, on a simulated clock"
    quantisation: Quantisation | None = None
    """a share of the clients are weak: of each number of an update they send a few bits, rounded
    up or down by chance so that its expectation is right; the bytes of a run are those that are
    sent"""
    benchmark_images: Count | None = None
    """so many samples are for a server that has data of its own (FOCUS): taken from the clients'
    training samples, or, with `partition.test: by-seed`, out of the global test set"""
    others: Annotated[tuple[Annotated[Condition, Chosen(Condition)], ...], Field(strict=False)] = ()
    "conditions of plugins, in the order in which they act: `[{type: night, share: 0.3}]`"

    def check_fields(self) -> None:
        """Refuse conditions that exclude each other."""
        if self.label_conflict is not None and self.feature_shift is not None:
            raise ValueError(
                "label_conflict and feature_shift each divide the clients into those that agree "
                "and those that differ; choose one of them, or make two scenarios of them"
            )
        weak = self.quantisation
        if weak is not None and weak.who == "slowest" and self.compute is None:
            raise ValueError(
                "quantisation.who is slowest, but without compute all clients are equally fast; "
                "add it, or write who: chance"
            )

    @property
    def differ_in_speed(self) -> bool:
        """Whether some clients are slower than others."""
        return self.compute is not None and self.compute.slowest < self.compute.fastest

    def require_possible(self, num_clients: int, clients_per_round: int) -> None:
        """Raise ValueError for what so many clients cannot do.

        Args:
            num_clients: K.
            clients_per_round: Size of a cohort.
        """
        if self.attack is not None:
            attackers_in(self.attack.share, num_clients)
        for difference in (self.label_conflict, self.feature_shift):
            if difference is not None:
                difference.count(num_clients)
        arrivals = self.compute.arrivals if self.compute is not None else None
        if arrivals is not None and arrivals > clients_per_round:
            raise ValueError(
                f"conditions.compute.arrivals is {arrivals}, but a round has only "
                f"{clients_per_round} clients; lower it or raise federation.clients_per_round"
            )
