"""The door for checkpoints: folders whose files were damaged, exchanged or forged."""

import json
import math
import shutil
from contextlib import closing
from pathlib import Path

import torch
import yaml

from fedsdg.experiment.building import build
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.material import make_partition, prepare_material
from fedsdg.experiment.method_entries import method_entry
from fedsdg.federation.checkpoints import Checkpoints
from fedsdg.files import sha256_json
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import build as build_backbone
from fedsdg.models.backbones import freeze
from tests.suited import suited

from .outcomes import damaged, documented, pick

MADE_FOR = {"run": {"seed": 0, "method": "scaffold"}, "sources": "abc"}
TABLES = ("rounds", "clients", "trace", "timings")
JUNK = [None, True, -1, 0, 2**70, 0.5, math.nan, "text", "", "../x", "a\0b", [], {}, [1], "x" * 300]


class Kept:
    """A federation after each of two rounds, as it stood and as its checkpoints hold it."""

    def __init__(self, folder):
        raw = yaml.safe_load((Path(__file__).parents[2] / "config/config.yaml").read_text())
        raw["federation"] |= {"clients": 5, "clients_per_round": 3, "rounds": 3, "trace_every": 4}
        raw["training"] |= {"epochs": 1, "kernel": "torch"}
        raw["adapters"] |= {"rank": 1, "alpha": 2}
        raw["methods"] = ["scaffold"]
        config = parse_config(raw)
        shape = Architecture(8, 4, 1, 8, 1, 2, (0.5,), (0.5,))
        torch.manual_seed(0)
        material = prepare_material("digits", freeze(build_backbone(shape), shape, "t", {}), "cpu")
        partition = make_partition("digits", "dirichlet~1.0", 0, 5, config.partition)
        run = suited(config, "scaffold").run("digits", "iid", method_entry("scaffold"), 0)
        self.federation = build(run, material, partition)
        self.states = {0: self.state()}
        with closing(Checkpoints(folder / "right", MADE_FOR)) as checkpoints:
            for number in (1, 2):
                self.federation.step(number)
                checkpoints.save(self.federation, {"after": number})
                self.states[number] = self.state()
        files = [file for file in sorted((folder / "right").iterdir()) if file.name != "lock"]
        self.files = {file.name: file.read_bytes() for file in files}
        manifests = {n: json.loads(self.files[f"round~{n}.json"]) for n in (1, 2)}
        #: What each checkpoint consists of.
        self.parts = {
            n: {f"round~{n}.json", *(part["file"] for part in manifest["parts"].values())}
            for n, manifest in manifests.items()
        }
        self.reset()

    def state(self):
        """All that the federation is, as copies."""
        one = self.federation
        private, kept = one.bank.gather(torch.arange(one.num_clients))
        tensors = {"theta": one.theta, "private": private, "trained": one.bank.trained}
        tensors |= {f"kept {name}": value for name, value in kept.items()}
        tensors |= {f"state {name}": value for name, value in one.state.items()}
        records = {name: json.dumps(getattr(one.records, name)) for name in TABLES}
        return {name: value.clone() for name, value in tensors.items()}, records

    def reset(self):
        """Bring the federation back to before the first round."""
        one, (tensors, _) = self.federation, self.states[0]
        one.theta = tensors["theta"].clone()
        state = [name for name in tensors if name.startswith("state ")]
        one.state = {name.removeprefix("state "): tensors[name].clone() for name in state}
        one.bank.trained[:] = False
        one.bank._written.clear()
        for name in TABLES:
            getattr(one.records, name).clear()

    def is_at(self, number):
        tensors, records = self.state()
        expected, rows = self.states[number]
        return records == rows and all(torch.equal(tensors[n], v) for n, v in expected.items())


NESTED = [b"[" * 100_000, b'{"a":' * 100_000, b"3", b"[]", b"null", b'{"format": 2}']


def changed(rng, files):
    """Bytes of one file that are others, or none; its name."""
    name = pick(rng, list(files))
    how = pick(rng, ["gone", "other", "nested", *["damaged"] * 4])
    others = {"gone": None, "other": files[pick(rng, list(files))], "nested": pick(rng, NESTED)}
    files[name] = damaged(rng, files[name]) if how == "damaged" else others[how]
    return name


def forged(rng, files):
    """A manifest that says something else, and mostly fits its own hash; its name."""
    name = pick(rng, [name for name in files if name.endswith(".json")])
    manifest = json.loads(files[name])
    how = int(rng.integers(6))
    part = pick(rng, list(manifest["parts"]))
    if how == 0:
        manifest[pick(rng, list(manifest))] = pick(rng, JUNK)
    elif how == 1:
        del manifest[pick(rng, list(manifest))]
    elif how == 2:
        manifest["parts"][part][pick(rng, ["file", "bytes", "sha256"])] = pick(rng, JUNK)
    elif how == 3:
        manifest["parts"].pop(part)
    elif how == 4:
        manifest["parts"]["more"] = manifest["parts"][part]
    else:
        manifest["parts"][part] = pick(rng, list(manifest["parts"].values()))  # Whole, of another.
    if rng.random() < 0.9:
        manifest.pop("sha256", None)
        try:
            manifest["sha256"] = sha256_json(manifest)
        except ValueError:
            manifest["sha256"] = "none"
    files[name] = json.dumps(manifest).encode()
    return name


def check(rng, folder, kept):
    """One restoring; what is wrong with its outcome, or None."""
    files, names = dict(kept.files), set()
    edits = [pick(rng, [changed, changed, forged]) for _ in range(pick(rng, [0, 1, 1, 1, 2, 3]))]
    for edit in edits:
        if None in files.values():
            break  # A file is missing already.
        try:
            names.add(edit(rng, files))
        except (ValueError, KeyError, TypeError, RecursionError):
            break  # A manifest that was damaged before cannot be forged.
    others = [{"run": {"seed": 1}}, {"run": {}}]  # No manifest is forged to say so.
    made_for = pick(rng, [MADE_FOR, MADE_FOR, MADE_FOR, MADE_FOR, *others])
    folder.mkdir()
    for name, raw in files.items():
        if raw is not None:
            (folder / name).write_bytes(raw)
    if rng.random() < 0.05:  # A folder where a file should be.
        name = pick(rng, list(files))
        (folder / name).unlink(missing_ok=True)
        (folder / name).mkdir()
        names.add(name)
    said = []
    try:
        with closing(Checkpoints(folder, made_for)) as checkpoints:
            facts = checkpoints.restore(kept.federation, said.append)
    except Exception as error:
        fault = documented(error)
        if fault is None and not kept.is_at(0):
            fault = "refused, but something was restored"
        if fault is None and not names and made_for == MADE_FOR:
            fault = f"refused: {error}"
    else:
        fault = _wrong(kept, names, made_for, facts, said)
    finally:
        shutil.rmtree(folder)
        kept.reset()
    return fault and f"{fault} [{sorted(map(str, names))}, {[e.__name__ for e in edits]}]"


def _wrong(kept, changed, made_for, facts, said):
    if made_for != MADE_FOR:
        return None if facts is None and kept.is_at(0) else "taken for another run"
    if not any(kept.is_at(number) for number in (0, 1, 2)):
        return "a state that never was"
    if facts is None:
        manifests = {name for name in kept.files if name.endswith(".json")}
        return None if manifests <= changed or kept.is_at(0) else "nothing was found"
    whole = max((n for n in (1, 2) if not changed & kept.parts[n]), default=0)
    if not any(kept.is_at(number) for number in range(whole, 3)):
        return f"not round {whole}, whose checkpoint is whole"
    if any("\n" in sentence for sentence in said):
        return f"no sentence: {said}"
    if not changed and not kept.is_at(2):
        return "not the newest"
    return None
