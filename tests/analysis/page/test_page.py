"""What the page says is what the record says, worked out here by pandas; and how it may fail."""

import base64
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import zlib
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from scipy.stats import t as student

from fedsdg.analysis.frames import flat
from fedsdg.analysis.names import DIFFERING, method_title
from fedsdg.analysis.page import write_page
from fedsdg.analysis.page.charts import DARK_GROUND, contrast, drawn, on_dark
from fedsdg.analysis.page.document import embedded, library
from fedsdg.analysis.page.tables import attack_maps, regret_map, standing_sheet
from fedsdg.analysis.plots.style import looks
from fedsdg.analysis.standing import Standing
from fedsdg.analysis.summary import Summary
from fedsdg.cli import main
from fedsdg.experiment.config_files import load_config
from fedsdg.experiment.grid.runs import grid_runs
from fedsdg.files import write_json
from fedsdg.files.declarations import families, titles
from fedsdg.files.places import ARENAS, CROSS, run_below

from ..conftest import first_seeds_alone
from .conftest import page_of


@dataclass
class Boards(HTMLParser):
    """Arena → method → column → what stands there; and all tags with their attributes."""

    found: dict = field(default_factory=dict)
    tags: list = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.arena = self.method = self.column = ""

    def handle_starttag(self, tag, attributes):
        said = dict(attributes)
        self.tags.append((tag, said))
        if tag == "section" or said.get("class") == "board":
            self.arena = said.get("data-arena", "")
        elif tag == "tr":
            self.method = said.get("data-method", "")
        elif tag in ("td", "th"):
            self.column = said.get("data-column", "")

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.column = ""

    def handle_data(self, text):
        if self.arena and self.method and self.column:
            row = self.found.setdefault(self.arena, {}).setdefault(self.method, {})
            row[self.column] = row.get(self.column, "") + text.strip()


def parsed(page: Path) -> Boards:
    boards = Boards()
    boards.feed(page.read_text(encoding="utf-8"))
    return boards


def data_of(page: Path) -> dict:
    text = page.read_text(encoding="utf-8")
    found = re.search(r'<script type="text/plain" id="data">(.*?)</script>', text)
    assert found is not None
    return unpacked(found.group(1))


def unpacked(text: str) -> dict:
    return json.loads(zlib.decompress(base64.b64decode(text)))


@pytest.fixture(scope="module")
def boards(made: Path) -> Boards:
    return parsed(made)


@pytest.fixture(scope="module")
def data(made: Path) -> dict:
    return data_of(made)


def ends_of(values: pd.Series) -> list[float]:
    """Mean and 95 % interval."""
    half = student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return [values.mean(), values.mean() - half, values.mean() + half]


def in_print(shares: pd.Series) -> str:
    """Mean and half-width in percent, as a table has them; the interval is cut at 0 and 100."""
    if len(shares) < 5:
        return f"{100 * shares.mean():.1f}" if len(shares) else "–"
    mean, low, high = (100 * end for end in ends_of(shares))
    if low < 0 or high > 100:
        return f"{mean:.1f} [{max(low, 0):.1f}, {min(high, 100):.1f}]"
    return f"{mean:.1f} ± {high - mean:.1f}"


def digits(text: str, value: float) -> bool:
    """Whether a number is printed to three digits or more."""
    return float(text.replace(",", "")) == pytest.approx(value, rel=0.0051)


@pytest.mark.parametrize("experiment", ARENAS)
def test_every_number_of_a_leaderboard_is_that_of_the_record(boards, reference, experiment):
    runs = pd.read_parquet(reference / experiment / "runs.parquet")
    rounds = pd.read_parquet(reference / experiment / "rounds.parquet")
    names = ["expected_accuracy", "expected_worst_decile", "global_accuracy"]
    if experiment != "cross-label-skew":
        names += ["expected_accuracy_a", "expected_accuracy_b"]
    compared = 0
    for skew, cell in runs.groupby("skew"):
        board = boards.found[f"{experiment}-digits-20-{skew}"]
        assert set(board) == set(cell[cell["status"] != "not run"]["method"])
        for method, mine in cell[cell["status"] == "ok"].groupby("method"):
            row = board[method]
            for name in names:
                known = mine[f"selected_{name}"].dropna()
                # A mean half-way between two that are printed may be printed as either.
                assert row[name] in {in_print(known + off) for off in (-1e-12, 0, 1e-12)}, method
            assert digits(row["bytes"], (mine["bytes_up"] + mine["bytes_down"]).mean() / 1e6)
            own = rounds[(rounds["skew"] == skew) & (rounds["method"] == method)]
            assert digits(row["steps"], own.groupby("seed")["local_steps"].sum().mean() / 1e3)
            asked = len(cell[cell["method"] == method])
            assert row["seeds"] == (str(asked) if len(mine) == asked else f"{len(mine)} of {asked}")
            compared += len(names) + 3
    assert compared > 100


@pytest.mark.parametrize("experiment", ARENAS)
def test_rows_that_were_not_steady_are_marked_as_in_the_table_of_horizons(
    boards, reference, experiment
):
    table = pd.read_csv(reference / experiment / "horizon.csv")
    table = table[table["metric"] == "expected_accuracy"]
    for _, one in table.iterrows():
        row = boards.found[f"{experiment}-digits-20-{one['skew']}"][one["method"]]
        assert row["horizon"] == one["word"]
        assert ("†" in row["method"]) == (one["word"] != "steady")
    assert set(table["word"]) > {"steady"}


def test_the_highest_comes_first_and_families_are_those_declared(made, boards):
    rows = [said for tag, said in boards.tags if tag == "tr" and "data-method" in said]
    for said in rows:
        if said["data-method"] in families():
            assert said["data-family"] == families()[said["data-method"]]
    for board in boards.found.values():
        means = [float(row["expected_accuracy"].split()[0]) for row in board.values()]
        assert means == sorted(means, reverse=True)


def test_a_page_is_one_file_that_asks_for_nothing(made, boards):
    assert made.stat().st_size < 10e6
    text = made.read_text(encoding="utf-8")
    assert text.count("window.vegaEmbed=") == 1 and len(library()) < 2e6
    assert [path.name for path in made.parent.iterdir()] == ["index.html"]
    for tag, said in boards.tags:
        assert "src" not in said, (tag, said)
        if tag == "link":
            assert said["href"] == "data:,"
        if tag == "a":
            assert said["href"].startswith("#")


def test_values_and_runs_behind_a_number_are_those_of_the_record(data, reference):
    runs = pd.read_parquet(reference / "cross-needs" / "runs.parquet").set_index(["method", "seed"])
    (arena,) = [one for one in data["arenas"] if one["experiment"] == "cross-needs"]
    entries = json.loads((reference / "cross-needs" / "provenance.json").read_text())
    for method in arena["methods"]:
        seeds = method["values"]["seeds"]
        assert seeds == sorted(seeds) and seeds
        for i, seed in enumerate(seeds):
            run = runs.loc[method["label"], seed]
            assert method["runs"]["config"][i] == run["config_hash"]
            assert method["runs"]["partition"][i] == run["partition_hash"]
            assert method["runs"]["code"][i] == run["source_hash"]
            shown = method["values"]["expected_accuracy"][i]
            assert shown == pytest.approx(run["selected_expected_accuracy"], rel=1e-5)
            folder = run_below(run.to_dict() | {"method": method["label"], "seed": seed})
            assert method["runs"]["origin"][i] >= 0
            said = arena["origins"][method["runs"]["origin"][i]]
            (entry,) = [one for one in entries if folder in one["runs"]]
            for fact in (entry["commit"], entry["processor"], entry["versions"]["torch"]):
                assert fact in said
            assert entry["first"][:10] in said and entry["last"][:10] in said
    assert arena["commands"]["one"].startswith(
        f"fedsdg run --config {(reference.parents[1] / 'config/cross-needs.yaml').as_posix()} "
        "--dataset digits --skew iid@half --method METHOD"
    )


def test_the_commands_make_what_the_record_says_of_its_runs(data, reference):
    """Records from before may say less of a run than its config does today, but nothing else."""
    compared = 0
    for arena in data["arenas"]:
        runs = pd.read_parquet(reference / arena["experiment"] / "runs.parquet")
        runs = runs[runs["seed"] == 3].set_index(["skew", "method"])["config"]
        files = [shlex.split(arena["commands"]["one"])[3]]
        config = load_config(files)
        for method in arena["methods"]:
            one, many = (
                shlex.split(arena["commands"][kind].replace("METHOD", method["label"]))
                for kind in ("one", "all")
            )
            said = dict(zip(one[2::2], one[3::2], strict=True))
            skew, row = said["--skew"], config.method(said["--method"])
            wanted = flat(config.run(said["--dataset"], skew, row, 3).to_dict())
            there = flat(json.loads(runs[skew, method["label"]]))
            assert {key: wanted.get(key) for key in there} == there
            assert many[:5] == ["fedsdg", "run", "--grid", *files, "--only"]
            assert many[-1] == "SEEDS"
            seeds = method["values"]["seeds"]
            only = [*many[5:-1], *(f"seed~{seed}" for seed in seeds)]
            made = [run.identity for run in grid_runs(config, Path("store"), only)]
            assert [(one["skew"], one["seed"]) for one in made] == [(skew, s) for s in seeds]
            compared += 1
    assert compared == 2 * 34 + 2 * 9


def test_curves_are_means_over_seeds_against_what_was_spent(data, reference):
    rounds = pd.read_parquet(reference / "views" / "rounds.parquet").sort_values("round")
    rounds["spent"] = rounds["bytes_up"] + rounds["bytes_down"]
    rounds["spent"] = rounds.groupby(["skew", "method", "seed"])["spent"].cumsum() / 1e6
    (arena,) = [one for one in data["arenas"] if one["id"] == "views-digits-20-iid@rotate"]
    shown = pd.DataFrame(arena["curves"]["expected_accuracy_b"]).set_index(["method", "round"])
    here = rounds[(rounds["skew"] == "iid@rotate") & rounds["evaluated"]]
    points = here.groupby(["method", "round"])
    assert len(shown) == len(points)
    for place, rows in points:
        mine = shown.loc[place]
        mean, low, high = ends_of(100 * rows["expected_accuracy_b"])
        assert mine["mean"] == pytest.approx(mean, abs=0.006)
        assert mine["high"] - mine["low"] == pytest.approx(high - low, abs=0.011)
        assert mine["bytes"] == pytest.approx(rows["spent"].mean(), rel=1e-5)


@pytest.mark.parametrize("column", ["gates", "private_shares"])
def test_heat_maps_hold_every_client_and_block_to_the_hundredth(data, reference, column):
    clients, rounds = (
        pd.read_parquet(reference / "cross-needs" / f"{name}.parquet")
        for name in ("clients", "rounds")
    )
    clients, rounds = (frame[frame["method"] == "fedsdg"] for frame in (clients, rounds))
    (arena,) = [one for one in data["arenas"] if one["experiment"] == "cross-needs"]
    runs = [run for run in arena["gates"] if run["method"] == "fedsdg"]
    assert [run["seed"] for run in runs] == sorted(set(rounds["seed"]))
    run = runs[3]
    own, mine = (frame[frame["seed"] == run["seed"]] for frame in (clients, rounds))
    assert run["rounds"] == mine[mine["evaluated"]]["round"].tolist()
    shape = len(run["rounds"]), len(run["clients"]), run["blocks"]
    shown = np.frombuffer(base64.b64decode(run[column]), dtype=np.uint8).reshape(shape)
    kinds = own.dropna(subset=["conflicts"]).groupby("client")["conflicts"].last()
    assert run["kinds"] == ["B" if kinds[client] else "A" for client in run["clients"]]
    assert run["kinds"] == sorted(run["kinds"])
    values = own.set_index(["round", "client"])[column]
    for (r, number), (c, client) in product(enumerate(run["rounds"]), enumerate(run["clients"])):
        value = values.get((number, client))
        expected = 255 if value is None else 100 * np.asarray(value)
        assert shown[r, c] == pytest.approx(expected, abs=0.51)


def test_robustness_is_the_loss_against_the_same_rule_without_attackers(reference):
    """From the rows of the record, seed by seed."""
    runs = pd.read_parquet(reference / "breakdown" / "runs.parquet")
    runs["share"] = [json.loads(text)["conditions"]["attack"]["share"] for text in runs["config"]]
    table = runs.pivot(index=["method", "seed"], columns="share", values="selected_global_accuracy")
    (found,) = attack_maps(Summary(reference / "breakdown"))
    assert found.groups == [("", 1), ("Sign flip", 3)]
    assert [column.heading for column in found.columns[1:]] == ["5 %", "45 %", "50 %"]
    named = {method_title(name): name for name in runs["method"].unique()}
    assert len(found.rows) == 4
    for _, (name, *fields) in found.rows:
        for one, share in zip(fields, (0.05, 0.45, 0.5), strict=True):
            own = table.loc[named[name.text]]
            mean, *ends = ends_of(100 * (own[share] - own[0.0]))
            assert one.value == pytest.approx(mean, abs=0.051)
            assert one.full == pytest.approx(min(max(-one.value, 0.0) / 20, 1.0), abs=0.006)
            said = re.search(r"\[(.+), (.+)\]", one.told.replace("−", "-"))
            assert [float(end) for end in said.groups()] == pytest.approx(ends, abs=0.051)


def test_regret_is_that_of_its_table(reference):
    table = pd.read_csv(reference / "across" / "regret.csv")
    found = regret_map([Summary(reference / name) for name in CROSS])
    shown = [
        (column.group, name.text.removesuffix(" (oracle)"), one.value)
        for _, (name, *fields) in found.rows
        for column, one in zip(found.columns[1:], fields, strict=True)
        if one.value is not None and column.group
    ]
    table["title"] = table["method"].map(method_title)
    known = table[["experiment", "title", "regret (percentage points)"]].itertuples(index=False)
    for (*here, value), (*there, expected) in zip(sorted(shown), sorted(known), strict=True):
        assert here == there and value == pytest.approx(expected, abs=0.0501)
    assert any(name.text.endswith(" (oracle)") for _, (name, *_) in found.rows)


def test_a_newcomer_stands_first_with_its_verdicts_and_what_was_checked(reference, tmp_path):
    """Ditto with five seeds, as if it were new: the rows of its table, and Holm's verdicts."""
    record = first_seeds_alone(reference / "cross-needs", tmp_path, "ditto", 5)
    standing = Standing(Summary(record), "ditto", ("fedavg", "fedrep"), elsewhere=True)
    page = page_of(
        tmp_path, tmp_path, "cross-needs", compared=[standing], checked="Checked: <this> machine."
    )
    text = page.read_text(encoding="utf-8")
    assert '<p class="finding">Checked: &lt;this&gt; machine.</p>' in text
    assert text.index('id="standing"') < text.index('id="leaderboard"')
    assert '<p class="finding">Ditto: ' in text
    (one,) = data_of(page)["standing"]
    runs = pd.read_parquet(record / "runs.parquet").pivot(
        index="seed", columns="method", values="selected_expected_accuracy_b"
    )
    rows = dict(one["charts"])[DIFFERING.title]
    for row, rival in zip(rows, ("fedrep", "fedavg"), strict=True):
        assert row["row"] == method_title(rival)
        gaps = 100 * (runs["ditto"] - runs[rival]).dropna()
        assert [row["gap"], row["low"], row["high"]] == pytest.approx(ends_of(gaps), rel=1e-4)
    sheet = standing_sheet(standing, standing.cells[0])
    (_, fedrep), (_, fedavg) = sheet.rows
    verdicts = [cell.text.partition(" (")[0] for cell in fedrep[2::2]]
    assert {*verdicts} <= {"higher", "lower", "equivalent", "undecided"}
    assert fedavg[-1].text == "higher", "FedAvg is tens of points below"
    assert [fedrep[0].text, fedavg[0].text] == ["FedRep", "FedAvg (samples)"]


def test_tuning_and_speed_are_those_of_their_files(data, reference):
    search = json.loads((reference / "cross-needs" / "search.json").read_text())["methods"]
    for label, found in search.items():
        rows = [row for row in data["tuning"]["cross-needs"] if row["method"] == label]
        assert [row["trials"] for row in rows] == list(range(1, len(rows) + 1))
        best = [100 * value for value in found["expected_best"]]
        assert [row["best"] for row in rows] == pytest.approx(best, abs=0.006)
        scores = [100 * trial["score"] for trial in found["trials"]]
        shown = [(row["score"], score) for row, score in zip(rows, scores, strict=True)]
        assert all(s is None or s == pytest.approx(score, abs=0.006) for s, score in shown)
        left_out = sum(s is None for s, _ in shown)
        assert (f"({left_out} ↓)" in rows[0]["title"]) == (left_out > 0)

    measured = json.loads((reference / "performance" / "measured.json").read_text())
    own = [r for r in measured["timings"] if (r["suite"], r["code"]) == ("clients", "ours")]
    expected = {(r["rule"], r["clients"]): 100 * r["floor"] for r in own}
    shown = {(r["method"], r["clients"]): r["share"] for r in data["speeds"]["clients"]}
    assert shown == pytest.approx(expected, rel=1e-3)


def test_the_ledger_stands_there_with_every_verdict(made, reference):
    text = made.read_text(encoding="utf-8")
    for entry in json.loads((reference / "ledger.json").read_text()):
        assert f'<tr id="claim-{entry["id"]}" data-verdict="{entry["verdict"]}"' in text


def test_colours_are_seen_on_dark_ground_and_stay_as_they_are_on_light():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    for method, look in looks(list(titles("methods"))).items():
        dark = on_dark(look.colour)
        assert drawn(look)["colour"] == f"light-dark({look.colour}, {dark})"
        assert contrast(dark, DARK_GROUND) >= 4.5, method
    css = (Path(write_page.__code__.co_filename).parent / "assets" / "page.css").read_text()
    assert f"--ground: light-dark(#ffffff, {DARK_GROUND})" in css


def test_embedded_text_cannot_end_its_script():
    text = embedded({"title": "</script><script>alert(1)</script><!--"})
    assert "<" not in text
    assert unpacked(text)["title"].startswith("</script>")


def test_summaries_as_computed_are_shown_with_what_failed_and_what_was_not_run(
    written, summary_dir, in_part, reference, tmp_path
):
    records = tmp_path / "summary"
    shutil.copytree(summary_dir, records / "synthetic")
    shutil.copytree(in_part, records / "in-part")
    runs = tmp_path / "runs" / "synthetic"
    shutil.copytree(written.runs, runs)
    folder = runs / "digits/clients~12/dirichlet~0.1/fedsdg/seed~2"
    write_json(
        folder / "provenance.json", {"commit": "c0ffee", "dirty": False, "processor": "abacus"}
    )
    krum = runs / "digits/clients~12/dirichlet~0.1/krum/seed~0"
    write_json(krum / "provenance.json", {"commit": "decade", "dirty": True})
    (tmp_path / "report-cross-needs.html").write_text("")
    page = page_of(records, tmp_path, "synthetic", "in-part")
    data, boards = data_of(page), parsed(page)
    board = boards.found["synthetic-digits-12-dirichlet~0.1"]
    assert board["krum"]["seeds"] == "4 of 5" and board["fedsdg"]["seeds"] == "5"
    values = written.values("dirichlet~0.1", "fedsdg", "personal_accuracy")
    assert board["fedsdg"]["personal_accuracy"] == in_print(pd.Series(values))
    part = next(board for name, board in boards.found.items() if "runs-digits" in name)
    assert set(part) == {"fedsdg", "fedavg"} and part["fedavg"]["seeds"] == "1 of 2"
    assert "±" not in part["fedavg"]["personal_accuracy"]
    arena = data["arenas"][0]
    (fedsdg,) = [one for one in arena["methods"] if one["label"] == "fedsdg"]
    assert arena["origins"][fedsdg["runs"]["origin"][2]].startswith("commit c0ffee; abacus")
    (changed,) = [one for one in arena["methods"] if one["label"] == "krum"]
    assert changed["runs"]["changes"] and not fedsdg["runs"]["changes"]
    assert "commit decade with changes that were not committed" in " ".join(arena["origins"])
    assert arena["commands"] == {} and data["speeds"] is None
    text = page.read_text(encoding="utf-8")
    assert "left out: Findings, Regret, Robustness, Ledger, Tuning, Speed." in text
    assert '<a href="../report-cross-needs.html">report-cross-needs.html</a>' in text


def _rewrite(name, change):
    def damage(folder: Path) -> None:
        file = folder / f"{name}.parquet"
        pq.write_table(change(pq.read_table(file)), file)

    return damage


YOUNGER = {b"fedsdg.format": b"99"}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_rewrite("rounds", lambda table: table.drop_columns("evaluated")),
         r"rounds\.parquet has no column 'evaluated'.*schema.*fedsdg summarise"),
        (_rewrite("runs", lambda table: table.replace_schema_metadata(YOUNGER)),
         r"runs\.parquet has records of format 99.*update"),
        (lambda folder: (folder / "clients.parquet").write_bytes(b"PAR1"),
         r"clients\.parquet is no file of records.*fedsdg summarise"),
        (_rewrite("runs", lambda table: table.slice(0, 0)),
         r"runs\.parquet holds no run; summarise again"),
        (lambda folder: (folder / "rounds.parquet").unlink(), r"rounds\.parquet is missing"),
    ],
)  # fmt: skip
def test_a_record_that_cannot_be_read_is_named_in_one_sentence(
    reference, tmp_path, refused, damage, said
):
    folder = tmp_path / "records" / "cross-label-skew"
    folder.mkdir(parents=True)
    for name in ("runs", "rounds", "clients"):
        shutil.copy(reference / "cross-label-skew" / f"{name}.parquet", folder)
    damage(folder)
    output = tmp_path / "report" / "index.html"
    line = refused("render", "page", "--records", folder.parent, "--output", output)
    assert re.fullmatch(rf"fedsdg: error: .*{said}.*", line), line
    assert not list(output.parent.iterdir())


def test_what_cannot_be_read_or_written_is_named_before_anything_is_computed(
    reference, tmp_path, refused, monkeypatch
):
    monkeypatch.setattr("fedsdg.analysis.page._page", lambda *_: pytest.fail("computed"))
    page = ("render", "page", "--output", tmp_path / "index.html", "--records")
    (tmp_path / "empty").mkdir()
    assert "has no runs of cross-needs, cross-label-skew, views" in refused(
        *page, tmp_path / "empty"
    )
    line = refused(*page, reference, "--experiments", "cross-neads")
    assert "did you mean 'cross-needs'?" in line and not (tmp_path / "index.html").exists()
    (tmp_path / "file").write_text("")
    wrong = [tmp_path / "file" / "index.html", tmp_path]
    if os.geteuid() != 0:
        (tmp_path / "locked").mkdir(mode=0o555)
        wrong.append(tmp_path / "locked" / "index.html")
    for output in wrong:
        line = refused("render", "page", "--records", reference, "--output", output)
        assert re.fullmatch(rf"fedsdg: error: {output} .*--output", line)


def test_the_command_prints_the_path_and_makes_the_same_bytes_in_every_process(
    reference, tmp_path, capsys
):
    output, again = tmp_path / "index.html", tmp_path / "again.html"
    options = ["render", "page", "--records", str(reference), "--experiments", "cross-label-skew"]
    options += ["--reference", str(tmp_path), "--configs", str(tmp_path), "--output"]
    assert main([*options, str(output)]) == 0
    assert capsys.readouterr().out == f"{output}\n"
    assert {one["experiment"] for one in data_of(output)["arenas"]} == {"cross-label-skew"}
    command = [sys.executable, "-m", "fedsdg", *options, str(again)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": "7"})
    assert again.read_bytes() == output.read_bytes()
