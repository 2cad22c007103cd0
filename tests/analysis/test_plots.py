"""Figures: each is drawn, twice the same, with a sidecar that names what it was drawn from."""

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from fedsdg.analysis import plots
from fedsdg.analysis.names import method_title
from fedsdg.analysis.plots import FIGURES, style, write_figure
from fedsdg.analysis.plots.style import looks, styled
from fedsdg.analysis.summarise import summarise
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.views.clients import class_counts
from fedsdg.files import sha256_file
from fedsdg.files.declarations import titles

from .conftest import METHODS as METHODS_OF_GRID
from .conftest import Plan, Run, drawn, write_runs

_RENDER = """
import sys
from pathlib import Path
from fedsdg.analysis.plots import FIGURES, write_figure
summary, folder, *partitions = sys.argv[1:]
for name in FIGURES:
    write_figure(summary, name, Path(folder, name), partitions=partitions)
"""


@pytest.fixture(scope="module")
def figures(summary_dir, partitions, tmp_path_factory) -> dict[str, list[Path]]:
    """The files of every figure of the small grid."""
    folder = tmp_path_factory.mktemp("figures")
    return {name: write_figure(summary_dir, name, folder / name, partitions) for name in FIGURES}


@pytest.mark.parametrize("name", FIGURES)
def test_four_files_and_a_truthful_sidecar(summary_dir, partitions, figures, name) -> None:
    paths = figures[name]
    assert sorted(paths) == sorted(paths[0].parent.glob(f"{name}.*"))
    assert [path.suffix for path in paths] == [".pdf", ".svg", ".png", ".json"]
    heads = [path.read_bytes()[:5] for path in paths]
    assert heads[0] == b"%PDF-" and heads[1] == b"<?xml" and heads[2][1:4] == b"PNG"
    facts = json.loads(paths[3].read_text("utf-8"))
    assert (facts["figure"], facts["experiment"]) == (name, "synthetic")
    inputs = [*summary_dir.glob("*.parquet"), summary_dir / "roles.json", *partitions]
    hashes = {sha256_file(path) for path in inputs}
    assert facts["inputs"] and set(facts["inputs"].values()) <= hashes
    assert len(facts["source_sha256"]) == 64


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_without_rows_says_so_in_one_sentence(
    bare, partitions, tmp_path, monkeypatch, name
) -> None:
    """The files that a workflow declares are there; the picture is small, and not white."""
    monkeypatch.setattr(plots, "_FORMATS", {"png": plots._FORMATS["png"]})
    plot = FIGURES[name]
    rows = plot.frame(Summary(bare), partitions)
    png, sidecar = write_figure(bare, name, tmp_path / name, partitions)
    facts = json.loads(sidecar.read_text("utf-8"))
    if len(rows):
        assert facts["caption"] != plot.empty
        return
    assert (facts["caption"], facts["numbers"]) == (plot.empty, [])
    assert plot.empty.endswith(".") and len(plot.empty) < 80
    picture = imread(png)
    assert picture.shape[0] < 200 and picture[..., :3].min() < 0.5


@pytest.fixture(scope="module")
def unfinished(in_part, tmp_path_factory):
    """Summaries of grids without five seeds: in part, of one seed, and without any run."""
    one, none = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("none")
    summarise(write_runs(one / "runs", Plan(seeds=(0,), quarters=True)).runs, one / "s")
    summarise(none / "runs", none / "s", ["digits/clients~12/dirichlet~0.1/fedsdg/seed~0"])
    return in_part, one / "s", none / "s"


@pytest.mark.usefixtures("as_svg")
@pytest.mark.parametrize("name", FIGURES)
def test_what_is_not_finished_still_gives_every_figure(
    unfinished, partitions, tmp_path, name
) -> None:
    """What was not run is not in a legend, and no caption promises intervals."""
    for folder in unfinished:
        run = {one["method"] for one in Summary(folder).runs if one["status"] == "ok"}
        picture, sidecar = write_figure(folder, name, tmp_path / name, partitions)
        assert "SCAFFOLD" not in picture.read_text("utf-8") or "scaffold" in run
        assert "bars are 95 %" not in json.loads(sidecar.read_text("utf-8"))["caption"]


def place(**columns) -> pd.DataFrame:
    """Rows of one place, as views give them."""
    frame = pd.DataFrame(columns)
    return frame.assign(dataset="digits", clients=20, skew="iid", metric="personal_accuracy")


def many_methods(count: int) -> pd.DataFrame:
    methods = [f"method-{i}" for i in range(count) for _ in (1, 2)]
    means = np.linspace(0.2, 0.9, len(methods))
    return place(method=methods, round=[1, 2] * count, mean=means, n=5, low=means, high=means)


@pytest.mark.parametrize("name", ["convergence", "groups", "byzantine", "gates"])
def test_five_hundred_methods_fit_on_a_page_and_the_others_are_counted(tmp_path, name) -> None:
    frame = many_methods(500)
    more = {"attack": "ALIE", "share": 0.2, "client": 0, "block": frame["round"], "gate": 0.5}
    rows = frame if name in ("convergence", "gates") else frame[frame["round"] == 1]
    with styled():
        figure = FIGURES[name].drawn(rows.assign(**more))
        figure.savefig(tmp_path / "x.png", dpi=20)
    assert figure.get_figwidth() < 25 and figure.get_figheight() < 30
    texts = " ".join(t.get_text() for t in figure.findobj(match=lambda a: hasattr(a, "get_text")))
    assert "more are not shown" in texts or "others (495)" in texts


def test_a_hundred_cells_are_a_figure_of_as_many_panels_as_fit() -> None:
    parts = [
        place(rival=["krum", "fedavg"], subject="fedsdg", n=1, mean=0.1, low=0.1, high=0.1).assign(
            skew=f"iid@{number}", metric=metric
        )
        for number in range(100)
        for metric in ("personal_accuracy", "global_accuracy")
    ]
    with styled():
        figure = FIGURES["differences"].drawn(pd.concat(parts))
    assert len(figure.axes) == 36
    assert figure.get_supxlabel() == "164 more are not shown"


def titled(title: str) -> list[Run]:
    """Two methods with the title that a plugin or a config gave them."""
    rounds = [{"round": r, "evaluated": True, "personal_accuracy": 0.1 * r} for r in (1, 2, 3)]
    last = {"personal_accuracy": 0.3, "global_accuracy": 0.2}
    return [
        Run(method, seed, last=last, rounds=rounds, result={"title": title})
        for method, seed in product(("fedsdg", "priced"), (0, 1))
    ]


def test_a_title_of_two_hundred_letters_is_cut_and_wrapped(summary_of, tmp_path) -> None:
    folder = summary_of(titled("w" * 200))
    for name in ("convergence", "differences", "personalisation", "progress"):
        figure = drawn(folder, name)
        with styled():
            figure.savefig(tmp_path / "x.png", dpi=50)
        for axes in figure.axes:
            width = axes.get_window_extent().width
            assert width > 0.2 * figure.bbox.width / len(figure.axes), name


@pytest.mark.usefixtures("as_svg")
def test_titles_of_plugins_are_plain_text_in_figures(summary_of, tmp_path) -> None:
    """A formula that matplotlib does not know would end the drawing."""
    folder = summary_of(titled("Costs $\\foo$ $5 [x](javascript:alert(1))\n|`<b>"))
    for name in ("convergence", "differences", "personalisation"):
        write_figure(folder, name, tmp_path / name)
    with styled():
        _, axes = style.panels(1, 1, panel_height=1.5)
        axes[0][0].set_title(method_title("priced"))
        assert not axes[0][0].title.get_parse_math()


@pytest.mark.slow
def test_two_processes_draw_the_same_bytes(summary_dir, partitions, figures, tmp_path) -> None:
    """Every figure; whatever the order of sets, which is another in each process."""
    arguments = [str(summary_dir), str(tmp_path), *map(str, partitions)]
    environment = os.environ | {"PYTHONHASHSEED": "97"}
    subprocess.run([sys.executable, "-c", _RENDER, *arguments], env=environment, check=True)
    files = [file for paths in figures.values() for file in paths]
    assert len(files) == 4 * len(FIGURES)
    assert {f.name for f in files if f.read_bytes() != (tmp_path / f.name).read_bytes()} == set()


def test_convergence_draws_the_means_over_seeds(written, summary_dir) -> None:
    figure = drawn(summary_dir, "convergence")
    skews = written.plan.skews
    for column, skew in enumerate(skews):
        axes = figure.axes[column]
        assert axes.get_title() == f"Dirichlet α = {skew.partition('~')[2]}"
        ends = sorted(float(line.get_ydata()[-1]) for line in axes.lines)
        means = [
            100 * written.values(skew, method, "personal_accuracy").mean()
            for method in written.plan.methods
        ]
        assert ends == pytest.approx(sorted(means))
    below = figure.axes[len(skews)]
    assert len(below.lines) == len(written.plan.methods) - 1  # local-only has no global model
    assert figure.axes[0].get_ylabel() == "Personal accuracy (%)"
    assert below.get_xlabel() == "round"


@pytest.mark.parametrize("seeds", [(0, 1), (0, 1, 2)])
def test_bands_need_three_seeds_and_end_at_0_and_100(make_runs, tmp_path, seeds) -> None:
    written = make_runs(methods=("fedsdg", "fedavg"), skews=("iid",), seeds=seeds)
    summarise(written.runs, tmp_path / "s")
    figure = drawn(tmp_path / "s", "convergence")
    bands = [path for c in figure.axes[0].collections for path in c.get_paths()]
    assert bool(bands) == (len(seeds) == 3)
    for band in bands:
        assert band.vertices[:, 1].min() >= 0.0 and band.vertices[:, 1].max() <= 100.0


def test_alphas_are_categories(make_runs, tmp_path) -> None:
    skews = ("dirichlet~0.1", "dirichlet~0.3", "dirichlet~10")
    written = make_runs(methods=("fedsdg", "fedavg"), skews=skews, seeds=(0, 1))
    summarise(written.runs, tmp_path / "s")
    axes = drawn(tmp_path / "s", "accuracy_vs_alpha").axes[0]
    assert axes.get_xticks().tolist() == [0, 1, 2]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0.1", "0.3", "10"]
    means = [100 * written.values(skew, "fedsdg", "personal_accuracy").mean() for skew in skews]
    assert any(list(line.get_ydata()) == pytest.approx(means) for line in axes.lines)


def test_a_rival_far_off_is_an_arrow_with_its_number() -> None:
    """Three panels of thirteen rivals each, one of which is 71 points below."""
    metrics = ("personal_accuracy", "personal_worst_decile", "global_accuracy")
    means = np.linspace(0.01, 0.03, 12).tolist()
    rivals = [name for name in METHODS_OF_GRID if name != "fedsdg"]
    frame = pd.concat(
        place(rival=rivals, subject="fedsdg", n=2, mean=[0.71, *means], low=0.0, high=0.8)
        .assign(metric=metric) for metric in metrics
    )  # fmt: skip
    with styled():
        figure = FIGURES["differences"].drawn(frame)
    names = [axes.get_title() for axes in figure.axes]
    assert names == ["Personal accuracy", "Worst-decile accuracy", "Global accuracy"]
    for axes in figure.axes:
        low, high = axes.get_xlim()
        assert low <= 0 < high < 71
        assert [text.get_text() for text in axes.texts] == ["+71.0"]


def test_a_difference_whose_interval_includes_zero_is_open() -> None:
    ends = {"low": [0.01, -0.01], "high": [0.03, 0.03]}
    frame = place(rival=["krum", "fedavg"], subject="fedsdg", n=5, mean=[0.02, 0.01], **ends)
    with styled():
        axes = FIGURES["differences"].drawn(frame).axes[0]
    faces = {
        round(float(line.get_xdata()[0]), 1): line.get_markerfacecolor() for line in axes.lines
    }
    assert faces[1.0] == "white" and faces[2.0] != "white"


def test_a_rule_that_loses_accuracy_is_drawn_as_points_lost() -> None:
    means = {"method": ["krum", "fedavg"], "mean": [0.012, -0.2]}
    with styled():
        axes = FIGURES["byzantine"].drawn(place(attack="ALIE", share=0.2, **means)).axes[0]
    rows = [text.get_text() for text in axes.get_yticklabels()]
    lost = dict(zip(rows, axes.collections[0].get_array().ravel(), strict=True))
    assert lost == pytest.approx({"FedAvg (samples)": 20.0, "Krum": -1.2})
    assert {text.get_text() for text in axes.texts} == {"20.0", "−1.2"}


def test_partition_counts_local_samples_only(make_partitions) -> None:
    path = make_partitions(skews=("dirichlet~0.3",), seeds=(0,))[0]
    counts = class_counts([path])
    assert set(counts["seed"]) == {0} and len(counts) == 12 * 10
    # The global test set is left out.
    assert counts.groupby("label")["samples"].sum().tolist() == [140] * 10


def test_partition_takes_the_lowest_seed_and_needs_files(
    summary_dir, make_partitions, tmp_path
) -> None:
    files = make_partitions(skews=("iid",), seeds=(2, 7))
    frame = FIGURES["partition"].frame
    pd.testing.assert_frame_equal(
        frame(Summary(summary_dir), files[::-1]), frame(Summary(summary_dir), files[:1])
    )
    pq.write_table(pa.table({"label": [0], "client": [0]}), tmp_path / "other.parquet")
    for paths, error, said in (
        ([], ValueError, "--partitions"),
        ([tmp_path / "none.parquet"], FileNotFoundError, "fedsdg partition"),
        ([tmp_path / "other.parquet"], ValueError, "carries no facts of a partition"),
    ):
        with pytest.raises(error, match=said):
            write_figure(summary_dir, "partition", tmp_path / "x", paths)
    with pytest.raises(ValueError, match="there is no figure 'nothing'; "):
        write_figure(summary_dir, "nothing", tmp_path / "x")


def test_every_method_has_its_own_look() -> None:
    methods = list(titles("methods"))
    known = looks(methods)
    assert len({(look.colour, str(look.dashes)) for look in known.values()}) == len(methods)
    hues = {look.colour for look in known.values()}
    for hue in hues:
        markers = [look.marker for look in known.values() if look.colour == hue]
        assert len(set(markers)) == len(markers), f"methods drawn in {hue} differ in their marker"
    assert max(known, key=lambda name: known[name].width) == "fedsdg"
    assert looks(["krum"])["krum"] == known["krum"]
    variants = looks([f"fedsdg-{i}" for i in range(12)])
    assert len({(look.colour, str(look.dashes)) for look in variants.values()}) == 12
    assert not {v.colour for v in variants.values()} & {look.colour for look in known.values()}
    assert all(len(to_rgb(look.colour)) == 3 for look in (*known.values(), *variants.values()))


def test_what_still_rose_is_said_above_the_panels_and_in_the_caption(summary_of, tmp_path) -> None:
    """Accuracy rises by 20 points in the last quarter; only on the methods shown is it said."""
    rounds = [
        {"round": r, "evaluated": True, "personal_accuracy": 0.7 if r > 15 else 0.5}
        for r in range(1, 21)
    ]
    folder = summary_of([Run("fedavg", seed, rounds=rounds) for seed in (0, 1)])
    *_, sidecar = write_figure(folder, "convergence", tmp_path / "figure")
    assert "still rising at round 20" in json.loads(sidecar.read_text("utf-8"))["caption"]
    label = FIGURES["gates"].label
    assert "rising" in label(Summary(folder), pd.DataFrame({"method": ["fedavg"]}))
    assert label(Summary(folder), pd.DataFrame({"method": ["fedsdg"]})) == ""
