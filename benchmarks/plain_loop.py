"""Federated training as it is usually written: one client after another.

As the official code of FedSDG and PFLlib do it, on the same data, start, cohorts and batches as
ours: a deep copy of the model for every client, a DataLoader over a list of pairs, torch's Adam and
clipping, a state dict to the server. The model is timm's VisionTransformer with its own forward
pass, in which adapted layers are replaced by modules. In its favour it has no worker processes,
small adapters, updates and sends nothing frozen, and records nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from fedsdg.federation.batches import all_batches
from fedsdg.federation.clients import draw_batches, draw_cohort
from fedsdg.federation.setup import Setup
from fedsdg.models import (
    GATE,
    AdapterConfig,
    ParameterSpec,
    adapted_layers,
    build_backbone,
    gate_name,
    views,
)

State = dict[str, Tensor]
Group = list[nn.Parameter]


class Lora(nn.Module):
    """W x + b + s·B_g A_g x, and with a private branch + m·s·B_p A_p x, m = σ(a) (Eq. 4)."""

    def __init__(
        self, base: nn.Linear, rank: int, scale: float, logit: nn.Parameter | None = None
    ) -> None:
        """Adapt a layer; its private branch, if it has a logit, has factors of its own."""
        super().__init__()
        inputs, outputs = base.in_features, base.out_features
        self.base = base
        self.scale = scale
        self.lora_A = nn.Parameter(torch.empty(rank, inputs))
        self.lora_B = nn.Parameter(torch.empty(outputs, rank))
        self.lambda_k_logit = logit
        if logit is not None:
            self.lora_A_private = nn.Parameter(torch.empty(rank, inputs))
            self.lora_B_private = nn.Parameter(torch.empty(outputs, rank))

    def forward(self, x: Tensor) -> Tensor:
        """Return the adapted layer's output."""
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
            # Registered with the block first, so that it is named after the block.
            setattr(model.get_submodule(name.rpartition(".")[0]), GATE, logit)
        model.set_submodule(layer, Lora(base, config.rank, config.scale, logit))
    model.get_submodule("head").requires_grad_(True)


class PlainLoop:
    """Clients and server of a federation; `round` does one round.

    The federation must have kernel torch, for with the compiled pass its samples are activations.
    """

    def __init__(self, setup: Setup, *, bfloat16: bool = False) -> None:
        """Start where a federation starts; `bfloat16` runs the forward pass under autocast."""
        self.setup, self.bfloat16 = setup, bfloat16
        self.server = self.model()
        self.shared: State = _rows(setup.first[0], setup.layout.communicated)
        self.start: State = _rows(setup.private, setup.layout.private)
        self.private: dict[int, State] = {}
        images, labels = setup.samples.images.cpu(), setup.samples.labels.cpu()
        self.pairs: Any = list(zip(images, labels, strict=True))

    def model(self) -> nn.Module:
        """Return a new model: backbone, adapters and head."""
        cohort: Any = self.setup.model
        architecture, config = cohort.backbone.architecture, cohort.config
        model = build_backbone(architecture, num_classes=cohort.num_classes)
        model.load_state_dict(cohort.backbone.model.state_dict(), strict=False)
        adapt(model, list(adapted_layers(architecture, config)), config)
        return model.to(self.setup.first)

    def round(self, number: int) -> None:
        """Train the cohort of a round and aggregate: by alignment, or by sample counts."""
        received, samples = [], []
        for client in draw_cohort(self.setup, number).tolist():
            kept = self.private.get(client, self.start)
            shared, self.private[client], count = self.train(client, number, self.shared, kept)
            received.append(shared)
            samples.append(count)
        if self.start:
            self.shared = aligned(self.shared, received)
        else:
            self.shared = averaged(received, [count / sum(samples) for count in samples])

    def train(
        self, client: int, number: int, shared: State, private: State
    ) -> tuple[State, State, int]:
        """Train one client and return what it sends, what it keeps, and its number of samples."""
        work = self.setup.work
        model = copy.deepcopy(self.server)
        parameters = trainable(model)
        with torch.no_grad():
            for name, value in (shared | private).items():
                parameters[name].copy_(value)
        loader = DataLoader(self.pairs, batch_sampler=self._batches(client, number))
        optimiser = self._optimiser(parameters)
        gates, branch, _ = groups(parameters)
        penalties: Any = work.terms
        device = self.setup.first.device
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            optimiser.zero_grad()
            with torch.autocast(device.type, torch.bfloat16, enabled=self.bfloat16):
                loss = F.cross_entropy(model(images), labels)
            if gates:
                sparsity = sum(torch.sigmoid(gate).abs() for gate in gates)
                size = sum(factor.square().sum() for factor in branch)
                loss = loss + penalties[0].lambda1 * sparsity + penalties[1].lambda2 * size
            loss.backward()
            nn.utils.clip_grad_norm_(parameters.values(), work.clip_norm)
            optimiser.step()
            loss.item()  # As for a log.
        state = {name: value.detach() for name, value in parameters.items()}
        samples = len(self.setup.data.train[client])
        return {n: state[n] for n in shared}, {n: state[n] for n in private}, samples

    def _batches(self, client: int, number: int) -> list[list[int]]:
        """Return the batches of a client in a round, which are the engine's."""
        epochs = self.setup.schedule.epochs
        drawn = draw_batches(self.setup, "batches", number, client, epochs)
        return [batch.tolist() for batch in all_batches(drawn)]

    def _optimiser(self, parameters: dict[str, nn.Parameter]) -> torch.optim.Optimizer:
        """Return Adam with the rates of shared parameters, private ones, and gates."""
        work = self.setup.work
        gates, branch, shared = groups(parameters)
        return torch.optim.Adam(
            [
                {"params": shared, "lr": work.eta_g},
                {"params": branch, "lr": work.eta_p},
                {"params": gates, "lr": work.eta_m},
            ]
        )


def groups(parameters: Mapping[str, nn.Parameter]) -> tuple[Group, Group, Group]:
    """Return the gates, the private factors, and the shared parameters."""
    gates = [p for n, p in parameters.items() if n.endswith(GATE)]
    branch = [p for n, p in parameters.items() if n.endswith("_private")]
    private = {id(p) for p in (*gates, *branch)}
    return gates, branch, [p for p in parameters.values() if id(p) not in private]


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are trained, by the names of our layout."""
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def averaged(clients: Sequence[State], weights: Sequence[float]) -> State:
    """Return a weighted mean as it is usually written: a sum for every tensor."""
    return {
        name: torch.stack([w * c[name] for w, c in zip(weights, clients, strict=True)]).sum(dim=0)
        for name in clients[0]
    }


def aligned(theta: State, clients: Sequence[State]) -> State:
    """Aggregate as FedSDG's server (Eq. 10): by cosines with the mean update, where positive."""
    origin = torch.cat([value.flatten() for value in theta.values()])
    deltas = [torch.cat([c[name].flatten() for name in theta]) - origin for c in clients]
    mean = torch.stack(deltas).mean(dim=0)
    norm = torch.linalg.norm(mean)
    scores = []
    for delta in deltas:
        cosine = torch.dot(delta, mean) / (torch.linalg.norm(delta) * norm + 1e-8)
        scores.append(max(0.0, cosine.item()))
    return averaged(clients, [score / sum(scores) for score in scores])


def _rows(vector: Tensor, specs: Sequence[ParameterSpec]) -> State:
    return {name: rows[0].clone() for name, rows in views(vector[None], specs).items()}
