"""Values of a config that do not go together, though each would be right by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from fedsdg.experiment.kernel import not_compiled
from fedsdg.files import hint
from fedsdg.methods.chosen import WEIGHT_DECAY

if TYPE_CHECKING:
    from fedsdg.experiment.config import Config


def _check_full(config: Config) -> None:
    """What needs a backbone cannot be had where there is none."""
    if config.training.precision != "float32":
        raise ValueError(
            f"training.precision is {config.training.precision}, but trainable: full computes in "
            "float32 alone; remove it"
        )
    if config.adapters.start is not None:
        raise ValueError(
            "adapters.start: with trainable: full there are no adapters that could start from a "
            "checkpoint; remove it, or set trainable to adapters"
        )
    for method in config.methods:
        if method.row.needs_adapters:
            raise ValueError(
                f"methods: {method.label} works on adapters, but with trainable: "
                "full there are no adapters; remove the method, or set trainable to adapters"
            )


def _check_players(players: int) -> None:
    """Raise ``ValueError`` where exact Shapley values are out of reach."""
    from fedsdg.federation.observers.shapley import MOST_PLAYERS  # imports torch

    if players > MOST_PLAYERS:
        raise ValueError(
            f"federation.shapley is true, but exact Shapley values are enumerated for at most "
            f"{MOST_PLAYERS} clients, and a round has {players}; lower "
            "federation.clients_per_round, or write shapley: estimated"
        )


def check_folders(where: str, names: Iterable[str]) -> None:
    """Refuse names that would be one folder where a file system ignores case, as on macOS.

    Raises:
        ValueError: Two names differ in case alone.
    """
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(name.casefold(), name)
        if other != name:
            raise ValueError(
                f"{where}: {other!r} and {name!r} differ in upper and lower case alone, and some "
                "file systems take them for one folder; give one of them another name"
            )


def check_consistency(config: Config) -> None:
    """Raise ``ValueError`` for the first values that do not go together, and say what to do."""
    check_folders("methods", [method.label for method in config.methods])
    for key in ("datasets", "skews", "scenarios", "backbones"):
        check_folders(key, getattr(config, key))
    if config.training.precision == "tf32" and config.training.device != "cuda":
        raise ValueError(
            "training.precision is tf32, in which GPUs alone compute; set training.device to cuda, "
            "or precision to float32"
        )
    if config.trainable == "full":
        _check_full(config)
    federation = config.federation
    if federation.clients_per_round > federation.clients:
        raise ValueError(
            f"federation.clients_per_round is {federation.clients_per_round}, more than the "
            f"{federation.clients} clients there are; lower it or raise federation.clients"
        )
    left = federation.clients - federation.kept_out
    if federation.clients_per_round > left:
        raise ValueError(
            f"federation.held_out is {federation.held_out}, which leaves {left} of "
            f"{federation.clients} clients to draw {federation.clients_per_round} from; lower it "
            "or federation.clients_per_round"
        )
    if config.adapters.start is not None and federation.trajectory == "own":
        raise ValueError(
            "federation.trajectory: own gives every client a start of its own, and adapters.start "
            "the same to all; remove one of them"
        )
    if config.backbone not in config.backbones:
        raise ValueError(
            f"backbone: {config.backbone!r} is not described under backbones"
            f"{hint(config.backbone, config.backbones)}"
        )
    if config.training.kernel == "compiled":
        backbone = config.backbones[config.backbone]
        reason = not_compiled(config.trainable, config.training, config.adapters, backbone)
        if reason:
            raise ValueError(
                f"training.kernel is compiled, but {reason}; change that, or set training.kernel "
                "to torch or auto"
            )
    if federation.shapley is True:
        _check_players(federation.clients_per_round)
    config.conditions.require_possible(federation.clients, federation.clients_per_round)
    for method in config.methods:
        wants = method.row.optimiser
        given = method.overrides.get("optimiser", wants)
        if wants is not None and given != wants:
            raise ValueError(
                f"methods: {method.label} prescribes {wants}; remove 'optimiser: {given}'"
            )
        decay = given.get(WEIGHT_DECAY) if isinstance(given, Mapping) else None
        if method.row.undecayed and decay:
            raise ValueError(
                f"methods: {method.label} forbids weight decay; remove '{WEIGHT_DECAY}: {decay}'"
            )
