"""The card of an exported model, in Markdown: data, method, metrics, provenance, how to load it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fedsdg.experiment.chance import MEANING, ON_THE_GLOBAL_TEST, Chance
from fedsdg.experiment.exports.client_task import ClientTask
from fedsdg.files import markdown_escape
from fedsdg.models import Portable

_METRICS = {
    "test_accuracy": "on its own test samples",
    "val_accuracy": "on its own validation samples",
    "expected_accuracy": "on the global test set, as the client sees it",
}
_KINDS = {1: "grey", 3: "in colour"}
_OF_ALL = {
    "global_accuracy": "accuracy of the shared model on the global test set",
    "global_loss": "its cross-entropy there",
    "personal_accuracy": "mean accuracy of clients, each with the model it uses, on its own test "
    "samples",
    "personal_worst_decile": "the same, mean of the lowest tenth of the clients",
    "expected_accuracy": "mean accuracy of clients on the global test set as each sees it",
}


def card(
    name: str,
    base: str | None,
    round_: int,
    model: Portable,
    adapters: bool,
    *,
    task: ClientTask | None,
    result: Mapping[str, Any],
    facts: Mapping[str, Any],
    provenance: Mapping[str, Any],
    clients: Mapping[int, Mapping[str, Any]],
    chance: Chance | None,
) -> str:
    """Return the card of a model of a run.

    Args:
        name: Of the model.
        base: The model to which a client's is an addition.
        round_: After which round the model was taken.
        model: The model.
        adapters: Whether it consists of adapters of a frozen backbone; otherwise it is a network.
        task: Of the client whose model it is.
        result: What the run's `result.json` holds.
        facts: What stands beside the saved models.
        provenance: What `provenance.json` holds.
        clients: The records of the run's clients in that round, by number.
        chance: On the global test set; None: not known.
    """
    config = result["config"]
    client = int(name.partition("~")[2]) if name.startswith("client~") else None
    title = f"{result.get('label', config['method'])} on {config['dataset']}: {_words(name)}"
    lines = [
        *_front(facts, adapters),
        f"# {markdown_escape(title)}",
        "",
        _kind(model, facts, adapters, client),
        "",
        "## Data",
        "",
        *_data(config, facts["classes"], client, clients, task),
        "",
        "## Method",
        "",
        *_method(config, result, round_, facts),
        "",
        "## Metrics",
        "",
        *_metrics(result, facts, round_, client, clients, task, chance),
        "",
        "## How to use it",
        "",
        *_use(name, base, model, facts, adapters),
        "",
        "## Provenance",
        "",
        *_provenance(result, provenance),
    ]
    return "\n".join(lines) + "\n"


def _words(name: str) -> str:
    kind, _, number = name.partition("~")
    return {
        "global": "the model that all clients share",
        "server": f"the server's model {number}",
        "client": f"the model of client {number}",
    }[kind]


def _front(facts: Mapping[str, Any], adapters: bool) -> list[str]:
    """What the hub of models reads."""
    library = "peft" if adapters else "pytorch"
    lines = ["---", f"library_name: {library}", "pipeline_tag: image-classification", "tags:"]
    lines += ["- federated-learning", *(["- lora"] if adapters else [])]
    return [*lines, "---", ""]


def _kind(model: Portable, facts: Mapping[str, Any], adapters: bool, client: int | None) -> str:
    head = f"a head for {model.num_classes} classes" if model.num_classes else "no head"
    if not adapters:
        return f"All weights of a small convolutional network with {head}."
    backbone = facts["backbone"]
    return (
        f"LoRA adapters of rank {model.rank} and {head}, for the frozen backbone "
        f"{backbone['name']} (SHA-256 `{backbone['sha256']}`)."
    )


def _data(
    config: Mapping[str, Any],
    classes: Sequence[str],
    client: int | None,
    clients: Mapping[int, Mapping[str, Any]],
    task: ClientTask | None,
) -> list[str]:
    federation = config["federation"]
    lines = [
        f"- data set: {markdown_escape(config['dataset'])}, divided among "
        f"{federation['clients']} clients (`{config['skew']}`, seed {config['seed']})",
    ]
    if classes:
        named = markdown_escape(", ".join(classes))
        lines.append(f"- classes, in the order of the scores: {named}")
    row = clients.get(-1 if client is None else client)
    if row is not None:
        lines.append(
            f"- of client {client}: {row['n_train']} training, {row['n_val']} validation and "
            f"{row['n_test']} test samples"
        )
    if task is not None:
        lines += [f"- client {client} {words}" for words in task.words()]
    if config.get("conditions"):
        lines.append(f"- conditions: `{json.dumps(config['conditions'], sort_keys=True)}`")
    return lines


def _method(
    config: Mapping[str, Any], result: Mapping[str, Any], round_: int, facts: Mapping[str, Any]
) -> list[str]:
    federation, training = config["federation"], config["training"]
    parameters = json.dumps(config["parameters"], sort_keys=True)
    work = ", ".join(f"{key} {training[key]}" for key in sorted(training) if key != "save")
    chosen = {
        "last": "the last one",
        "selected": "that of the highest mean validation accuracy of the clients",
    }[facts["save"]]
    return [
        f"- method: {config['method']} `{parameters}`",
        f"- {federation['clients_per_round']} of {federation['clients']} clients in each of "
        f"{federation['rounds']} rounds; this is the model after round {round_}, {chosen}",
        f"- local training: {work}",
    ]


def _metrics(
    result: Mapping[str, Any],
    facts: Mapping[str, Any],
    round_: int,
    client: int | None,
    clients: Mapping[int, Mapping[str, Any]],
    task: ClientTask | None,
    chance: Chance | None,
) -> list[str]:
    row = clients.get(-1 if client is None else client, {})
    own = task.chance(chance) if task and chance else chance
    recorded = [(key, f"this client's accuracy {text}", row, own) for key, text in _METRICS.items()]
    recorded += [(key, text, result[facts["save"]], chance) for key, text in _OF_ALL.items()]
    lines = ["| | |", "|---|---|"]
    end = f"All after round {round_}, as recorded by the run."
    for key, text, values, luck in recorded:
        if values.get(key) is None:
            continue
        remark = luck.remark(values[key]) if luck and key in ON_THE_GLOBAL_TEST else ""
        lines.append(f"| {text} | {values[key]:.4f}{f', {remark}' if remark else ''} |")
    if any("at chance" in line for line in lines):
        end += f" {MEANING}"
    return [*lines, "", end]


def _use(
    name: str, base: str | None, model: Portable, facts: Mapping[str, Any], adapters: bool
) -> list[str]:
    images, stored = facts["images"], facts["stored"]
    said = []
    if "fit" in stored:
        size = f"{stored['size']} x {stored['size']}"
        said = [
            f"The images of the run were upright and {_KINDS[stored['channels']]}, and first "
            f"brought to {size} pixels (`{stored['fit']}`, with Pillow's bilinear "
            "filter).",
            "",
        ]
    said += [
        f"Images are {images['channels']} x {images['size']} x {images['size']}: pixel values in "
        f"[0, 1], resized bilinearly, then (x - mean) / std with mean {images['mean']} and std "
        f"{images['std']}.",
        "",
    ]
    if not adapters:
        said.append("`model.safetensors` holds the weights by name; `fedsdg evaluate` reads them.")
        return said
    classes = model.num_classes
    said += [
        "In the folder above this one:",
        "",
        "```python",
        "import peft, timm",
        "",
        f'base = timm.create_model("local-dir:backbone", pretrained=True, num_classes={classes})',
        f'model = peft.PeftModel.from_pretrained(base, "{name}").eval()',
        "# or, without peft:",
        f'model = timm.create_model("local-dir:{name}/merged", pretrained=True).eval()',
        "```",
    ]
    if base is not None:
        said += [
            "",
            f"`own` holds what this client adds to `{base}`, as a second adapter:",
            "",
            "```python",
            f'model = peft.PeftModel.from_pretrained(base, "{base}", adapter_name="shared")',
            f'model.load_adapter("{name}/own", adapter_name="own")',
            'model.base_model.set_adapter(["shared", "own"])',
            "```",
        ]
    if facts.get("precision", "float32") != "float32":
        said += [
            "",
            f"The run computed in {facts['precision']}; in float32 scores differ from its own by "
            "about as much as that rounds.",
        ]
    return said


def _provenance(result: Mapping[str, Any], provenance: Mapping[str, Any]) -> list[str]:
    dirty = " (with changes)" if provenance.get("dirty") else ""
    versions = provenance.get("versions") or {}
    lines = [
        f"- commit of FedSDG Bench: {provenance.get('commit')}{dirty}",
        f"- finished: {provenance.get('finished')}, device {provenance.get('device')}",
        f"- versions: {', '.join(f'{key} {value}' for key, value in sorted(versions.items()))}",
    ]
    for key in ("config_hash", "partition_hash", "backbone_hash", "source_hash"):
        if result.get(key):
            lines.append(f"- {key}: `{result[key]}`")
    return lines
