"""Federated training as it is usually written: one client after another, by the book.

What the official code of FedSDG and PFLlib do, on the same data, start, cohorts and batches as
ours: a deep copy of the model for every client, a DataLoader over a list of pairs, torch's Adam
and its clipping, a state dict to the server. The model is timm's VisionTransformer with its own
forward pass, its adapted layers replaced by modules. Generous where codes differ: no worker
processes, adapters of a few lines (peft's take longer), nothing frozen is updated or sent, nothing
is recorded or written.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from fedsdg.federation.cohorts import cohort_batches, draw_cohort
from fedsdg.federation.rounds import Federation
from fedsdg.models.adapter_config import AdapterConfig
from fedsdg.models.adapters import GATE, adapted_layers, gate_name
from fedsdg.models.backbones import build
from fedsdg.models.parameters import ParameterSpec, views
from fedsdg.models.torchvision_schemas import declare_torchvision_operators

State = dict[str, Tensor]
Adapting = Callable[[nn.Module, Sequence[str], AdapterConfig], None]


class Lora(nn.Module):
    """W x + b + s·B_g A_g x, and with a private branch + m·s·B_p A_p x, m = σ(a) (Eq. 4)."""

    def __init__(
        self, base: nn.Linear, rank: int, scale: float, logit: nn.Parameter | None = None
    ) -> None:
        super().__init__()
        inputs, outputs = base.in_features, base.out_features
        self.base, self.scale = base, scale
        self.lora_A = nn.Parameter(torch.empty(rank, inputs))
        self.lora_B = nn.Parameter(torch.empty(outputs, rank))
        self.lambda_k_logit = logit
        if logit is not None:
            self.lora_A_private = nn.Parameter(torch.empty(rank, inputs))
            self.lora_B_private = nn.Parameter(torch.empty(outputs, rank))

    def forward(self, x: Tensor) -> Tensor:
        y = self.base(x) + self.scale * F.linear(F.linear(x, self.lora_A), self.lora_B)
        if self.lambda_k_logit is None:
            return y
        private = F.linear(F.linear(x, self.lora_A_private), self.lora_B_private)
        return y + torch.sigmoid(self.lambda_k_logit) * (self.scale * private)


def adapt(model: nn.Module, layers: Sequence[str], config: AdapterConfig) -> None:
    """Put adapters on the layers of a timm model with a head; all else but the head is frozen."""
    model.requires_grad_(False)
    logits: dict[str, nn.Parameter] = {}
    for layer in layers:
        base: Any = model.get_submodule(layer)
        logit = None
        if config.branch == "dual":
            name = gate_name(layer, config)
            logit = logits.setdefault(name, nn.Parameter(torch.zeros(())))
            # The block knows it too, and first: so it bears the name of the block.
            setattr(model.get_submodule(name.rpartition(".")[0]), GATE, logit)
        model.set_submodule(layer, Lora(base, config.rank, config.scale, logit))
    model.get_submodule("head").requires_grad_(True)


def adapt_by_peft(model: nn.Module, layers: Sequence[str], config: AdapterConfig) -> None:
    """The same with peft's adapters, which know no private branch."""
    declare_torchvision_operators()
    from peft import LoraConfig, inject_adapter_in_model

    model.requires_grad_(False)
    inject_adapter_in_model(
        LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=list(layers)), model
    )
    model.get_submodule("head").requires_grad_(True)


class PlainLoop:
    """The clients and the server of a federation, from its start; `round` does one round.

    `bfloat16` runs the forward pass under autocast, as one would; `adapt` makes the adapters. The
    federation must have kernel torch: with the compiled pass its samples are activations.
    """

    def __init__(
        self, federation: Federation, *, bfloat16: bool = False, adapt: Adapting = adapt
    ) -> None:
        self.federation, self.bfloat16, self.adapt = federation, bfloat16, adapt
        layout = federation.layout
        self.server = self.model()
        self.shared: State = _rows(federation.theta, layout.communicated)
        self.start: State = _rows(federation.private, layout.private)
        self.private: dict[int, State] = {}
        self.pairs = list(
            zip(federation.samples.images.cpu(), federation.samples.labels.cpu(), strict=True)
        )

    def model(self) -> nn.Module:
        """A new model: backbone, adapters and head."""
        cohort = self.federation.model
        architecture, config = cohort.backbone.architecture, cohort.config
        model = build(architecture, num_classes=cohort.num_classes)
        model.load_state_dict(cohort.backbone.model.state_dict(), strict=False)
        self.adapt(model, list(adapted_layers(architecture, config)), config)
        return model.to(self.federation.theta)

    def round(self, number: int) -> None:
        """Train the cohort of round `number` and aggregate: by alignment, or by sample counts."""
        schedule = self.federation.schedule
        cohort = draw_cohort(
            self.federation.seed, number, len(self.federation.shards.train),
            schedule.clients_per_round,
        )  # fmt: skip
        received, samples = [], []
        for client in cohort.tolist():
            own = self.private.get(client, self.start)
            shared, self.private[client], seen = self.train(client, number, self.shared, own)
            received.append(shared)
            samples.append(seen)
        if self.start:
            self.shared = aligned(self.shared, received)
        else:
            self.shared = averaged(received, [seen / sum(samples) for seen in samples])

    def train(
        self, client: int, number: int, shared: State, private: State
    ) -> tuple[State, State, int]:
        """One client's local training: (what it sends, what it keeps, samples of an epoch)."""
        federation, work = self.federation, self.federation.work
        model = copy.deepcopy(self.server)
        parameters = named(model)
        with torch.no_grad():
            for name, value in (shared | private).items():
                parameters[name].copy_(value)
        shard = federation.shards.train[client]
        (batches,) = cohort_batches(
            federation.shards.train, [client], purpose="batches", seed=federation.seed,
            round_=number, batch_size=federation.schedule.batch_size,
            epochs=federation.schedule.epochs,
        )  # fmt: skip
        loader = DataLoader(self.pairs, batch_sampler=[own.tolist() for own in batches])
        rates = {spec.name: work.eta_p for spec in federation.layout.private}
        rates |= {name: work.eta_m for name in rates if name.endswith(GATE)}
        groups: dict[float, list[nn.Parameter]] = defaultdict(list)
        for name, value in parameters.items():
            groups[rates.get(name, work.eta_g)].append(value)
        optimiser = torch.optim.Adam([{"params": ps, "lr": lr} for lr, ps in groups.items()])
        gates = [p for n, p in parameters.items() if n.endswith(GATE)]
        branch = [p for n, p in parameters.items() if n.endswith("_private")]
        lambda1, lambda2 = (work.terms[0].lambda1, work.terms[1].lambda2) if gates else (0.0, 0.0)
        device, losses = federation.theta.device, []
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            optimiser.zero_grad()
            with torch.autocast(device.type, torch.bfloat16, enabled=self.bfloat16):
                loss = F.cross_entropy(model(images), labels)
            if gates:
                loss = loss + lambda1 * sum(torch.sigmoid(gate).abs() for gate in gates)
                loss = loss + lambda2 * sum(factor.square().sum() for factor in branch)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters.values(), work.clip_norm)
            optimiser.step()
            losses.append(loss.item())
        state = {name: value.detach() for name, value in parameters.items()}
        return {n: state[n] for n in shared}, {n: state[n] for n in private}, len(shard)


def named(model: nn.Module) -> dict[str, nn.Parameter]:
    """What is trained, by the names of our layout; peft calls an adapter `default`."""
    return {
        name.replace(".default.weight", ""): value
        for name, value in model.named_parameters()
        if value.requires_grad
    }


def averaged(clients: Sequence[State], weights: Sequence[float]) -> State:
    """A weighted mean as it is usually written: a sum for every tensor."""
    return {
        name: torch.stack([w * c[name] for w, c in zip(weights, clients, strict=True)]).sum(dim=0)
        for name in clients[0]
    }


def aligned(theta: State, clients: Sequence[State]) -> State:
    """FedSDG's server (Eq. 10): weights are the cosines with the mean update, where positive."""
    origin = torch.cat([value.flatten() for value in theta.values()])
    deltas = [torch.cat([c[name].flatten() for name in theta]) - origin for c in clients]
    mean = torch.stack(deltas).mean(dim=0)
    norm = torch.linalg.norm(mean)
    scores = [
        max(0.0, (torch.dot(x, mean) / (torch.linalg.norm(x) * norm + 1e-8)).item()) for x in deltas
    ]
    return averaged(clients, [score / sum(scores) for score in scores])


def _rows(vector: Tensor, specs: Sequence[ParameterSpec]) -> State:
    return {name: rows[0].clone() for name, rows in views(vector[None], specs).items()}
