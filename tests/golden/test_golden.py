"""Golden numbers: every method for four rounds in tiny federations.

A failure names what has moved. Where it was meant to move, write the numbers anew, and say why in
the commit: ``python -m tests.golden.test_golden``.

A number is a weighted mean of a column of the record, over rounds and clients, or of the entries of
the models. All weights differ, and those of negative values are larger, so that exchanged clients
and signs show. Numbers are compared to 1e-5, for another processor rounds otherwise.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from PIL import Image

from fedsdg.rng import stream
from tests.golden.driver import (
    METHODS,
    Cell,
    Outcome,
    load_backbone,
    pretrained,
    random_backbone,
    save_backbone,
)

NUMBERS = Path(__file__).with_name("numbers.csv")
TOLERANCE = 1e-5
#: Below it a value is 0 but for rounding, such as the spread of equal models.
ROUNDING = 1e-6
CLASSES, IMAGES, PIXELS = 4, 320, 10

GIVEN = yaml.safe_load(Path(__file__).with_name("federations.yaml").read_text(encoding="utf-8"))
SHAPE = {
    k: v for k, v in GIVEN["base"]["backbones"]["random"].items() if k not in ("source", "file")
}


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings laid over one another, section by section."""
    found: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            inside = isinstance(value, Mapping) and isinstance(found.get(key), Mapping)
            found[key] = {**found[key], **value} if inside else value
    return found


def cases(federation: str) -> dict[str, dict[str, Any]]:
    """What each case lays over its federation, by name."""
    if federation == "variants":
        given = GIVEN["variants"].items()
        return {name: {"methods": [laid]} if "type" in laid else laid for name, laid in given}
    methods = GIVEN["full"] if federation == "full" else METHODS
    entries = {name: {"type": name, **GIVEN["shorter"].get(name, {})} for name in methods}
    return {name: {"methods": [entry]} for name, entry in entries.items()}


def write_images(folder: Path, *, split: bool) -> None:
    """Images, with a test split or without; a class is a stripe of a colour, under noise."""
    draw = np.random.default_rng(0)
    for number in range(IMAGES):
        label = number % CLASSES
        pixels = draw.integers(0, 150, (PIXELS, PIXELS, 3)).astype(np.uint8)
        pixels[:, 2 * label : 2 * label + 2, label % 3] += 105
        part = ("test" if number % 5 == 3 else "train") if split else ""
        place = folder / part / f"class{label}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{number:03}.png")


# --- Numbers --------------------------------------------------------------------------------------


def weighted(values: Iterable[Any]) -> float:
    """Σ w_i |v_i| / Σ w_i with w_i in [1, 3], doubled where v_i < 0.

    What is no finite number counts 1, and what is 0 but for rounding counts 0.
    """
    flat = np.array([1.0 if value is None else float(value) for value in values])
    flat[~np.isfinite(flat)] = 1.0
    flat[np.abs(flat) < ROUNDING] = 0.0
    weights = 2 + np.sin(1 + np.arange(len(flat)))
    return float((weights * np.abs(flat) * np.where(flat < 0, 2, 1)).sum() / weights.sum())


def numbers_of(outcome: Outcome) -> dict[str, float]:
    """All numbers of a run, by table and column."""
    found = {}
    for table, rows in (("rounds", outcome.rounds), ("clients", outcome.clients)):
        for name in sorted({name for row in rows for name in row}):
            cells = [row.get(name) for row in rows]
            lists = [cell if isinstance(cell, list) else [cell] for cell in cells]
            found[f"{table}.{name}"] = weighted(value for cell in lists for value in cell)
    for name, models in (("server", outcome.models), ("private", outcome.private)):
        if models.numel():
            found[f"models.{name}"] = weighted(models.flatten().tolist())
    return found


def measured(federation: str) -> Iterator[tuple[str, dict[str, float]]]:
    """Every case of a federation and its numbers; where it is refused, that alone."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_images(folder / "images", split=federation != "full")
        data = {"datasets": [{"name": "stripes", "folder": str(folder / "images")}]}
        whole = merged(GIVEN["base"], GIVEN["federations"][federation], data)
        cell = Cell(whole, None if federation == "full" else random_backbone(SHAPE))
        for name, laid in cases(federation).items():
            broken = folder / name if federation == "clock" else None
            try:
                numbers = numbers_of(cell.outcome(merged(whole, laid), broken))
            except ValueError:
                numbers = {"refused": 1.0}
            except Exception as error:  # The other cases are to be seen as well.
                numbers = {repr(error): 1.0}
            yield name, numbers


def moved(numbers: Mapping[str, float], known: Mapping[str, float]) -> str:
    """What differs most from the known numbers, and how many do; nothing where none does."""
    gaps = dict.fromkeys(numbers.keys() ^ known.keys(), np.inf)
    for name in numbers.keys() & known.keys():
        gap = abs(numbers[name] - known[name])
        if not gap <= TOLERANCE * abs(known[name]):
            gaps[name] = gap
    if not gaps:
        return ""
    worst = max(sorted(gaps), key=lambda name: gaps[name])
    was, now = known.get(worst, "not there"), numbers.get(worst, "not there")
    return f"{worst} was {was} and is {now}; {len(gaps)} columns in all"


def known_numbers(federation: str) -> dict[str, dict[str, float]]:
    table = pd.read_csv(NUMBERS, index_col=["federation", "case"]).loc[federation]
    return {str(name): row.dropna().to_dict() for name, row in table.iterrows()}


@pytest.mark.parametrize("federation", GIVEN["federations"])
def test_no_method_has_moved(federation):
    found, known = dict(measured(federation)), known_numbers(federation)
    differing = {name: moved(found.get(name, {}), known.get(name, {})) for name in found | known}
    sentences = [f"{name}: {what}" for name, what in differing.items() if what]
    assert not sentences, "\n".join([f"{len(sentences)} cases of {federation} moved:", *sentences])


# --- Backbones and draws --------------------------------------------------------------------------


def pretraining() -> dict[str, float]:
    draw = np.random.default_rng(0)
    images = torch.from_numpy(draw.random((60, 3, 8, 8), dtype=np.float32))
    labels = torch.from_numpy(np.arange(60) % 3)
    return {"values": weighted(pretrained(SHAPE, images, labels, steps=6).tolist())}


def test_pretraining_goes_on_where_it_was_broken_off():
    assert not moved(pretraining(), known_numbers("pretraining")["six steps"])


def draws() -> dict[str, float]:
    """Of a stream that has a number, and of one that has none."""
    streams = [stream("batches", 0, 1, 2), stream("a name of somebody else's", 0, 1, 2)]
    return {"values": weighted(np.concatenate([one.random(9) for one in streams]))}


def test_random_streams_draw_what_they_drew():
    assert not moved(draws(), known_numbers("rng")["draws"])


def test_weights_of_another_backbone_are_refused(tmp_path):
    backbone = random_backbone(SHAPE)
    save_backbone(backbone.model, backbone.architecture, tmp_path / "one.safetensors", {})
    assert load_backbone(tmp_path / "one.safetensors").sha256 == backbone.sha256
    weights = next(backbone.model.parameters())
    weights.data += 1
    save_backbone(backbone.model, backbone.architecture, tmp_path / "other.safetensors", {})
    (tmp_path / "other.safetensors").replace(tmp_path / "one.safetensors")
    with pytest.raises(ValueError, match="SHA-256"):
        load_backbone(tmp_path / "one.safetensors")


def main() -> None:
    """Write all numbers anew."""
    rows = {
        (federation, name): numbers
        for federation in GIVEN["federations"]
        for name, numbers in measured(federation)
    }
    rows["pretraining", "six steps"] = pretraining()
    rows["rng", "draws"] = draws()
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.index.names = ["federation", "case"]
    table.sort_index(axis="columns").to_csv(NUMBERS, float_format="%.7g", lineterminator="\n")


if __name__ == "__main__":
    main()
