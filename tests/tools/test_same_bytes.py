"""The comparison behind `make gate`: every difference has a sentence, and nothing else has."""

import json
import shutil
import subprocess
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
import yaml

from fedsdg.experiment.config_files import load_config
from fedsdg.methods.choices import ATTACKS
from tests.copies import keep_compiled
from tests.tools import same_bytes
from tests.tools.planted import planted
from tests.tools.same_bytes import Broken, Grid, allowed, compute, differences, main

NOTHING = {"renamed": {}, "exceptions": []}
IS = {"experiment": "arena", "dataset": "digits", "skew": "iid", "label": "krum", "seed": 0}
NAME = "arena/digits/iid/krum/seed~0"


def write_run(place, run="arena/seed~0", **changed):
    folder = place / run
    folder.mkdir(parents=True)
    rounds = {"round": [1, 2], "train_loss": [2.3, np.nan], "bytes_up": [10, 20]}
    pd.DataFrame({**rounds, **changed.pop("rounds", {})}).to_parquet(folder / "rounds.parquet")
    clients = {"round": [1, 1], "weight": [0.5, 0.0], "cohort": ["a", "b"]}
    pd.DataFrame({**clients, **changed.pop("clients", {})}).to_parquet(folder / "clients.parquet")
    state = {"models": "m", "rule": "r", "bank": "b", **changed.pop("state", {})}
    (folder / "provenance.json").write_text(json.dumps({"commit": str(place), "state": state}))
    result = {
        "last": {"round": 2},
        "selected": {"round": 1},
        "bytes_up": 30,
        "bytes_down": 30,
        **IS,
    }
    (folder / "result.json").write_text(
        json.dumps({**result, "config_hash": str(place), **changed})
    )


def allowing(**exception):
    """What allows one exception for all runs."""
    one = {"runs": "arena/*", "commit": "abc", "reason": "so", **exception}
    return {**NOTHING, "exceptions": [one]}


BOUNDED = allowing(difference=1e-7)
MENDED = allowing(columns=["bytes_up"])
CLOSE = allowing(columns=["weight"], difference=1e-13)
EVERYTHING = allowing(columns="all")
OTHER_STATE = {"state": {"models": "n"}}
MORE = {"clients": {"more": [1, 2], "weight": [0.5, 0.1]}}
WEIGHT = "clients: weight in row 1 was 0.0"


@pytest.mark.parametrize(
    ("changed", "allow", "sentences"),
    [
        # Though commits and hashes of configs differ.
        ({}, NOTHING, []),
        ({"rounds": {"train_loss": [np.nextafter(2.3, 3), np.nan]}}, NOTHING, ["loss in row 0"]),
        ({"rounds": {"train_loss": [2.3, 0.0]}}, NOTHING, ["train_loss in row 1 was nan"]),
        ({"clients": {"weight": [0.5, -0.0]}}, NOTHING, ["weight in row 1"]),
        ({"clients": {"cohort": ["a", "c"]}}, NOTHING, ["cohort in row 1 was b and is c"]),
        ({"last": {"round": 1}}, NOTHING, ["result.json: last was"]),
        ({"bytes_up": 31}, NOTHING, ["result.json: bytes_up was 30 and is 31"]),
        ({"state": {"bank": "c"}}, NOTHING, ["the hash of its bank differs"]),
        # A new column hides no difference of the others.
        (MORE, NOTHING, ["clients: the column more is there after alone", WEIGHT]),
        (MORE, {**NOTHING, "added": {"clients": ["more"]}}, [WEIGHT]),
        # Columns with a bound, in every round; everything else as ever.
        ({"clients": {"weight": [0.5, 1e-14]}}, CLOSE, []),
        ({"clients": {"weight": [0.5, 1e-12]}}, CLOSE, [WEIGHT]),
        ({"clients": {"weight": [0.5, np.nan]}}, CLOSE, [WEIGHT]),
        ({"state": {"bank": "c"}}, CLOSE, ["the hash of its bank differs"]),
        # An exception bounds the first round alone.
        ({"rounds": {"train_loss": [2.3 + 5e-8, 1.0]}, **OTHER_STATE}, BOUNDED, []),
        (
            {"rounds": {"train_loss": [2.3 + 2e-7, 1.0]}},
            BOUNDED,
            ["train_loss of the first round differs by 2e-07, allowed 1e-07"],
        ),
        # A mended fault excuses its columns, or all that follows.
        ({"rounds": {"bytes_up": [11, 21]}}, MENDED, []),
        ({"rounds": {"train_loss": [2.4, np.nan]}}, MENDED, ["train_loss in row 0"]),
        (OTHER_STATE, MENDED, ["the hash of its models differs"]),
        ({"rounds": {"train_loss": [2.4, 1.0]}, **OTHER_STATE}, EVERYTHING, []),
    ],
)
def test_every_difference_is_named_unless_it_is_allowed(tmp_path, changed, allow, sentences):
    write_run(tmp_path / "before")
    write_run(tmp_path / "after", **changed)
    (found,) = differences(tmp_path / "before", tmp_path / "after", allow).items()
    assert found[0] == NAME and len(found[1]) == len(sentences)
    assert all(part in one for part, one in zip(sentences, found[1], strict=True))


def test_runs_are_known_by_what_they_are_and_missing_ones_are_named(tmp_path):
    write_run(tmp_path / "before", "a/folder")
    write_run(tmp_path / "before", "b", seed=1)
    write_run(tmp_path / "after", "another", label="krum-2")
    write_run(tmp_path / "after", "c", skew="iid@attacked")
    allow = {**NOTHING, "renamed": {"methods": {"krum": "krum-2"}}}
    assert differences(tmp_path / "before", tmp_path / "after", allow) == {
        "arena/digits/iid/krum-2/seed~0": [],
        "arena/digits/iid/krum-2/seed~1": ["only before"],
        "arena/digits/iid@attacked/krum/seed~0": ["only after"],
    }


@pytest.mark.parametrize(
    ("sides", "sentences"),
    [
        (["after"], ["failed after: ValueError: x"]),
        (["before"], ["failed before: ValueError: x"]),
        (["before", "after"], ["failed before: ValueError: x", "failed after: ValueError: x"]),
    ],
)
def test_a_run_that_failed_is_named_and_never_the_same(tmp_path, sides, sentences):
    for side in ("before", "after"):
        failed = {"status": "failed", "error": "ValueError: x"} if side in sides else {}
        write_run(tmp_path / side, **failed)
    for allow in (NOTHING, EVERYTHING):
        assert differences(tmp_path / "before", tmp_path / "after", allow) == {NAME: sentences}


def test_a_table_that_is_there_once_is_named(tmp_path):
    write_run(tmp_path / "before")
    write_run(tmp_path / "after")
    (tmp_path / "after/arena/seed~0/clients.parquet").unlink()
    ((found,),) = differences(tmp_path / "before", tmp_path / "after", NOTHING).values()
    assert found.endswith("clients.parquet is there before alone")


def test_a_column_and_a_file_may_be_renamed_by_the_map(tmp_path):
    places = tmp_path / "before", tmp_path / "after"
    for place in places:
        write_run(place)
    file = places[1] / "arena/seed~0/clients.parquet"
    pd.read_parquet(file).rename(columns={"weight": "share"}).to_parquet(file)
    assert len(differences(*places, NOTHING)[NAME]) == 2
    allow = {**NOTHING, "renamed": {"clients": {"weight": "share"}}}
    assert differences(*places, allow) == {NAME: []}
    (places[0] / "arena/seed~0/clients.parquet").rename(places[0] / "arena/seed~0/people.parquet")
    assert differences(*places, {**allow, "files": {"clients": "people"}}) == {NAME: []}
    assert len(differences(*places, {**NOTHING, "files": {"clients": "people"}})[NAME]) == 2


def test_a_row_that_the_base_lacks_is_not_compared(tmp_path):
    """Only where that is said; a row that is there before alone is always a difference."""
    before, after = tmp_path / "before", tmp_path / "after"
    for side in (before, after):
        write_run(side)
    write_run(after, "arena/new", label="new")
    new = "arena/digits/iid/new/seed~0"
    assert differences(before, after, NOTHING) == {NAME: [], new: ["only after"]}
    said = {"runs": "arena/*/new/*", "commit": "abc", "reason": "a new row", "new": True}
    allow = {**NOTHING, "exceptions": [said]}
    assert differences(before, after, allow) == {NAME: []}
    assert differences(after, before, allow) == {NAME: [], new: ["only before"]}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[{runs: '*', commit: a, reason: b}]", "has no difference, columns or new"),
        ("[{runs: '*', commit: a, reason: b, new: true, columns: all}]", "one of them alone"),
        ("[{runs: '*', commit: a, reason: b, difference: 0, columns: all}]", "one of them alone"),
        ("[{runs: '*', commit: a, difference: 0}]", "has no reason"),
        ("[{added: {rounds: [more]}, reason: b}]", "has no commit"),
        ("[{runs: '*', commit: a, reason: b, difference: 0.1}]", "at most 1e-06"),
        ("[{commit: a, reason: b, over: {training: {kernel: torch}}}]", "has 'training'; name a"),
    ],
)
def test_an_exception_says_whose_it_is_and_is_small_and_settings_name_a_side(
    tmp_path, text, sentence
):
    file = tmp_path / "allowed.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=sentence):
        allowed("HEAD", file)


def test_an_entry_counts_where_the_base_lacks_its_commit(tmp_path, monkeypatch):
    """Three commits changed something; the base has the first of them."""
    monkeypatch.setattr(same_bytes, "_has", lambda base, commit: commit <= base)
    entries = [
        {"commit": "a", "added": {"rounds": ["known"]}, "call": {"before": ["first"]}},
        {"commit": "b", "added": {"rounds": ["more"]}, "call": {"before": ["second"]}},
        {"commit": "c", "added": {"rounds": ["most"], "clients": ["far"]}},
        {"commit": "c", "call": {"before": ["third"]}, "over": {"after": {"x": {"y": 1}}}},
        {"commit": "c", "over": {"after": {"x": {"z": 2}}}, "runs": "full/*", "columns": "all"},
    ]
    file = tmp_path / "allowed.yaml"
    file.write_text(yaml.safe_dump([{**entry, "reason": "so"} for entry in entries]))
    found = allowed("a", file)
    assert found["added"] == {"rounds": ["more", "most"], "clients": ["far"]}
    assert found["call"] == {"before": ["second"]}
    assert found["over"] == {"after": {"x": {"y": 1, "z": 2}}}
    assert [one["runs"] for one in found["exceptions"]] == ["full/*"]
    nothing = allowed("c", file)
    assert not any(nothing.values())


def test_a_base_has_the_commits_before_it():
    git = ["git", "-C", str(same_bytes.ROOT), "rev-list", "--max-count=2", "HEAD"]
    done = subprocess.run(git, capture_output=True, text=True)
    if len(done.stdout.split()) < 2:
        pytest.skip("needs the history")
    head, before = done.stdout.split()
    assert same_bytes._has(head, before) and same_bytes._has(head, head)
    assert not same_bytes._has(before, head) and not same_bytes._has(head, "no-such-commit")


def test_the_committed_file_is_read_and_every_attack_takes_part():
    keys = {"renamed", "added", "dropped", "files", "over", "call", "exceptions"}
    assert set(allowed("HEAD")) == keys
    assert set(same_bytes.ATTACKS) == set(ATTACKS)


@pytest.mark.parametrize("grid", (*same_bytes.GRIDS, same_bytes.FEW), ids=lambda grid: grid.name)
def test_this_tree_takes_every_grid_with_what_is_laid_over_it(tmp_path, grid):
    files = [same_bytes.ROOT / "config" / f"{name}.yaml" for name in grid.files]
    over = allowed("no-such-commit")["over"]["after"]  # what is laid over against the oldest
    for name, laid in (("grid", grid.over), ("over", over)):
        files.append(tmp_path / f"{name}.yaml")
        files[-1].write_text(yaml.safe_dump(dict(laid)))
    assert load_config(files, same_bytes.SMALL).federation.rounds == same_bytes.ROUNDS


def test_settings_over_a_side_reach_that_side_alone(tmp_path, monkeypatch):
    """The tree of the other commit and this one, each with settings and a folder of its own."""
    over, given = {"before": {"seeds": [1]}, "after": {"seeds": [2]}}, {}
    allow = {**NOTHING, "over": over, "call": {"before": ["fedsdg", "all"]}, "files": {"a": "b"}}
    monkeypatch.setattr(same_bytes, "allowed", lambda base: allow)
    monkeypatch.setattr(same_bytes, "checked_out", lambda base: nullcontext(tmp_path / base))
    monkeypatch.setattr(
        same_bytes, "compute", lambda grid, tree, work, *how: given.update({tree: (work, *how)})
    )
    assert main(["old", "--only", "arena", "--work", str(tmp_path)]) == 0
    assert given == {
        tmp_path / "old": (
            tmp_path / "before/arena",
            {"seeds": [1]},
            ["fedsdg", "all"],
            {"a": "b"},
        ),
        same_bytes.ROOT: (tmp_path / "after/arena", {"seeds": [2]}, same_bytes.CALL, {}),
    }


def test_a_grid_that_does_not_go_is_an_error_with_its_last_words(tmp_path):
    """A method that does not exist, named by what is laid over the grid."""
    grid = Grid("wrong", ["config"], {"experiment": "wrong", "methods": ["fedavg"]})
    with pytest.raises(Broken, match="wrong in .*fedfoo"):
        compute(grid, same_bytes.ROOT, tmp_path / "work", {"methods": ["fedfoo"]})


#: By file, a line of the tree and the line as the copy has it.
PLANTED = {
    # The last bit of one number of FOCUS's model, when all else about the last round is recorded.
    "fedsdg/federation/rounds.py": (
        'record.timings["train_seconds"] = seconds',
        'server.models.view(__import__("torch").int32)[0, 0] ^= '
        'int(type(setup.rule).__name__ == "Focus" and t == setup.schedule.rounds); '
        'record.timings["train_seconds"] = seconds',
    ),
    # A column that FOCUS alone has.
    "fedsdg/aggregation/rules/focus.py": (
        'facts = {"credibility": credibility, "mutual_loss": mutual}',
        'facts = {"mutual_loss": mutual}',
    ),
    # FedAvg fails, and the config has no CGSV any more.
    "fedsdg/aggregation/rules/mean.py": (
        "weights = counts / counts.sum()",
        'raise ValueError("planted")',
    ),
    "config/extended/label-noise.yaml": ("- {type: cgsv, gamma0: 0.5, floor: 0.001}", ""),
}


@pytest.mark.slow
def test_a_bit_a_column_and_runs_that_are_missing_are_found_through_real_runs(
    tmp_path, monkeypatch, capsys
):
    """This tree and a copy with four differences, by the whole gate; one of four runs is the same.

    The flipped bit is in no table: the hash of the model alone shows it. In the copy each run is
    stopped after its first round and goes on, which makes no difference.
    """
    tree, copy = same_bytes.ROOT, tmp_path / "copy"
    for name in ("fedsdg", "config"):
        shutil.copytree(tree / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    keep_compiled(copy / "fedsdg")
    for name, (old, new) in PLANTED.items():
        fault = {"file": name, "old": old, "new": new}
        (copy / name).write_text(planted((tree / name).read_text(), fault))
    over = {"experiment": "planted", "skews": ["dirichlet~1.0"], "seeds": [0]}
    over |= {"federation": {"shapley": False}, "checkpoint_seconds": 0}
    over["training"] = {"kernel": "auto", "epochs": 1}
    alone = ["--jobs", "1", "--runs-only"]
    grid = Grid("planted", ["config", "extended/label-noise"], over, alone)
    allow = {**NOTHING, "over": {}, "call": {}, "files": {}}

    def stopped_in_the_copy(grid, checkout, *more):
        compute(grid._replace(stopped=checkout == copy), checkout, *more)

    monkeypatch.setattr(same_bytes, "GRIDS", (grid,))
    monkeypatch.setattr(same_bytes, "ROOT", copy)
    monkeypatch.setattr(same_bytes, "compute", stopped_in_the_copy)
    monkeypatch.setattr(same_bytes, "allowed", lambda base: allow)
    monkeypatch.setattr(same_bytes, "checked_out", lambda base: nullcontext(tree))
    assert main(["HEAD", "--work", str(tmp_path / "gate")]) == 1
    log = (tmp_path / "gate/after/planted/planted.log").read_text()
    assert log.count("going on after round") == 2, "FedAvg fails in its first round"
    run = "planted/digits/dirichlet~1.0/{}/seed~0: {}".format
    column = "clients: the column credibility is there before alone"
    lines = [
        run("cgsv", "only before"),
        run("fedavg", "failed after: ValueError: planted"),
        run("fedsdg", "the same"),
        run("focus", f"{column}; the hash of its models differs"),
    ]
    *said, last = capsys.readouterr().out.splitlines()
    assert said == lines
    assert last.startswith("4 runs, 3 of them not the same")
