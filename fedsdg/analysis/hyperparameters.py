"""With which hyper-parameters the runs of a table or figure were made: a line, or a table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fedsdg.analysis.names import NOT_RUN, method_title

#: Place in a run's config → what stands before and after its value.
_SHARED = {
    "federation.rounds": ("", " rounds"),
    "federation.clients_per_round": ("", " clients per round"),
    "federation.global_images": ("global accuracy on ", " images drawn from the test set"),
    "training.epochs": ("e = ", " local epochs"),
    "training.batch_size": ("batch size ", ""),
    "training.optimiser": ("optimiser ", ""),
    "training.loss": ("loss ", ""),
    "training.eta_g": ("η_g = ", ""),
    "training.eta_p": ("η_p = ", ""),
    "training.eta_m": ("η_m = ", ""),
    "adapters.rank": ("LoRA rank ", ""),
}

#: More methods than this are a sweep, whose axes name their differences better than a caption.
_MANY = 20

#: Parameters of one method → their symbols.
_OWN = {
    "lambda1": "λ₁",
    "lambda2": "λ₂",
    "mu": "μ",
    "f": "f",
    "m": "m",
    "server_rate": "server rate",
    "gamma": "γ",
    "gamma0": "γ₀",
    "floor": "floor",
    "personal_epochs": "personal epochs",
    "head_epochs": "head epochs",
    "most_epochs": "most epochs",
    "strength": "λ",
    "weight": "a",
}


#: Values that a caption leaves out if all runs, or all runs of a method, have them.
_USUAL = {"loss": "cross-entropy", "server_rate": 1.0, "gamma": "0.9/0.7/0.5"}


#: Last part of a key → its symbol, where it has one.
_SYMBOLS = {
    **{
        place.rpartition(".")[2]: prefix.removesuffix(" = ")
        for place, (prefix, _) in _SHARED.items()
        if " = " in prefix
    },
    **_OWN,
    **{"epsilon": "ε", "temperature": "τ", "beta": "β"},
}


def symbol(key: str) -> str:
    """A dotted key of a run's config in print: parameters.lambda1 → "λ₁"; unknown ones by name."""
    name = key.rpartition(".")[2]
    return _SYMBOLS.get(name, name.replace("_", " "))


def hyperparameters(runs: Sequence[Mapping[str, Any]]) -> str:
    """Describe rows of runs.parquet in sentences.

    As in "20 rounds; 5 clients per round; e = 2 local epochs. Seeds 0–4 (n = 5). Backbone ab12."
    Where methods differ in a shared hyper-parameter, the commonest value stands first and the
    others follow with their methods; of a sweep, with very many methods, they stay unnamed, as do
    their own parameters. What a config does not name is left out, and so are the seeds of which
    nothing was run.
    """
    configs = _configs(runs)
    parts = [text for place in _SHARED if (text := _shared(place, configs))]
    if len(configs) <= _MANY:
        parts += [text for method in configs if (text := _own(method, configs[method]))]
    sentences = ["; ".join(parts)] if parts else []
    seeds = sorted({run["seed"] for run in runs if run.get("status") != NOT_RUN})
    sentences.append(f"Seeds {ranges(seeds)} (n = {len(seeds)})" if seeds else "Nothing was run")
    backbones = sorted({run["backbone_hash"][:8] for run in runs if run["backbone_hash"]})
    if backbones:
        sentences.append(f"Backbone {', '.join(backbones)}")
    if any(one.get("trainable") == "full" for several in configs.values() for one in several):
        sentences.append("All parameters of a small CNN are trained")
    return ". ".join(sentences) + "."


def settings(runs: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """The hyper-parameters of rows of runs.parquet as a table.

    Args:
        runs: Rows of runs.parquet.

    Returns:
        What all runs have in common, symbol → value; and what differs, method → symbol → value,
        several values of one method as "0/4/8".
    """
    configs = _configs(runs)
    common: dict[str, str] = {}
    own: dict[str, dict[str, str]] = {method: {} for method in configs}
    for place in (*_SHARED, *(f"parameters.{name}" for name in _OWN)):
        group, name = place.split(".")
        usual = None if place in _SHARED else _USUAL.get(name)
        values = {m: _values(several, group, name, usual) for m, several in configs.items()}
        said = {m: "/".join(map(_number, several)) for m, several in values.items() if several}
        if len(said) == len(configs) and len(set(said.values())) == 1:
            common[symbol(place)] = next(iter(said.values()))
        else:
            for method, text in said.items():
                own[method][symbol(place)] = text
    return common, own


def _configs(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The configs of each method's runs."""
    configs: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        if run["config"]:
            configs.setdefault(run["method"], []).append(json.loads(run["config"]))
    return configs


def _shared(place: str, configs: Mapping[str, Sequence[Mapping[str, Any]]]) -> str | None:
    prefix, suffix = _SHARED[place]
    group, name = place.split(".")
    # A method may run under several scenarios, each with a value of its own.
    values = {method: _values(several, group, name) for method, several in configs.items()}
    counts = Counter(value for several in values.values() for value in several)
    if not counts or set(counts) == {_USUAL.get(name)}:
        return None
    if len(counts) > 1 and all(set(several) == set(counts) for several in values.values()):
        return f"{prefix}{'/'.join(map(_number, counts))}{suffix}"  # set by scenarios for all alike
    common = min(counts, key=lambda value: (-counts[value], str(value)))
    others: dict[Any, list[str]] = {}
    for method, several in values.items():
        for value in several:
            if value != common:
                others.setdefault(value, []).append(method_title(method))
    text = f"{prefix}{_number(common)}{suffix}"
    if others and len(configs) > _MANY:
        text += f" (also {', '.join(map(_number, others))})"
    elif others:
        listed = [f"{', '.join(names)}: {_number(value)}" for value, names in others.items()]
        text += f" ({'; '.join(listed)})"
    return text


def _values(
    configs: Sequence[Mapping[str, Any]], group: str, name: str, usual: Any = None
) -> list[Any]:
    """The values of a key in a method's configs, none of them twice; none if all are ``usual``."""
    every = dict.fromkeys(_plain(config.get(group, {}).get(name)) for config in configs)
    return [value for value in every if value is not None and list(every) != [usual]]


def _own(method: str, configs: Sequence[Mapping[str, Any]]) -> str | None:
    # Several values where scenarios set them, such as f for more attackers: "f = 0/4/8".
    values = {
        symbol: _values(configs, "parameters", name, _USUAL.get(name))
        for name, symbol in _OWN.items()
    }
    listed = [
        f"{name} = {'/'.join(map(_number, shown))}" for name, shown in values.items() if shown
    ]
    return f"{method_title(method)}: {', '.join(listed)}" if listed else None


def _plain(value: Any) -> Any:
    """A value that can be compared and counted: lists and mappings as words."""
    if isinstance(value, Mapping):
        if value.keys() == {"low", "high"}:
            return f"{_number(value['low'])} to {_number(value['high'])}"
        details = [
            key.replace("_", " ") + ("" if one is True else f" {_plain(one)}")
            for key, one in value.items()
            if key != "type" and one is not False and one is not None
        ]
        return " with ".join(filter(None, [value.get("type"), " and ".join(details)]))
    return "/".join(map(_number, value)) if isinstance(value, list) else value


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def ranges(seeds: Sequence[int]) -> str:
    """Numbers in order, runs of them joined: 0, 1, 2, 5 → "0–2, 5"."""
    runs: list[list[int]] = []
    for seed in seeds:
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}–{r[-1]}" for r in runs)
