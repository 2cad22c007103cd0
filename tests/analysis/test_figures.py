"""Figures show the numbers of their frames, legibly, and are the same bytes everywhere."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.text import Text

from fedsdg.analysis import drawing, figures
from fedsdg.analysis.records import Record, record
from tests.analysis.small import rows_of, write_record

#: Figure → a record that has data for it.
SHOWN = {
    "groups": "needs",
    "progress": "needs",
    "accuracy_by_alpha": "label-skew-levels",
    "differences": "needs",
    "gates": "verification",
    "gate_course": "needs-controls",
    "weights": "needs-controls",
    "partition": "label-skew-levels",
    "attacks": "byzantine",
    "label_noise": "contribution",
    "tuning": "needs",
    "regret": "needs",
}
#: Figure → a record without data for it, and why.
WITHOUT = {
    "groups": "label-skew",  # clients are of one kind
    "progress": "byzantine",  # two evaluations
    "accuracy_by_alpha": "contribution",  # two values of α
    "gate_course": "byzantine",
    "weights": "label-skew",
    "attacks": "needs",
    "label_noise": "needs",
    "tuning": "byzantine",
    "variance": "needs",
}


Drawn = Callable[[str], tuple[pd.DataFrame, Figure]]


@pytest.fixture
def drawn(reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """Return a figure's frame and what is drawn of it, of its record in ``SHOWN``."""
    kept: list[Figure] = []

    def keep(figure: Figure, stem: Path) -> list[Path]:
        FigureCanvasAgg(figure).draw()
        kept.append(figure)
        return []

    def draw(name: str) -> tuple[pd.DataFrame, Figure]:
        of = record(reference / SHOWN[name])
        figures.write_figure(name, of, tmp_path / name)
        return figures.figure_named(name).frame(of), kept[-1]

    monkeypatch.setattr(drawing, "save", keep)
    return draw


def shown_panels(figure: Figure) -> list[Axes]:
    """Return the visible panels without colour bars."""
    return [axes for axes in figure.axes if axes.get_visible() and axes.get_label() != "<colorbar>"]


def test_every_figure_is_looked_at() -> None:
    assert {*SHOWN, "variance"} == set(figures.FIGURES)  # test_variance.py has that one


@pytest.mark.parametrize("name", WITHOUT)
def test_a_figure_without_data_is_not_made(name: str, reference: Path, tmp_path: Path) -> None:
    of = record(reference / WITHOUT[name])
    assert figures.sidecars(name, of) == {}
    assert figures.write_figure(name, of, tmp_path / name) == []
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", SHOWN)
def test_axes_are_labelled_and_texts_do_not_overlap(name: str, drawn: Drawn) -> None:
    _, figure = drawn(name)
    panels = shown_panels(figure)
    assert panels
    for panel in panels:
        assert panel.get_xlabel()
        first = panel.get_subplotspec().is_first_col()
        assert not first or panel.get_ylabel() or len(panel.get_yticklabels()) > 1
    columns = panels[0].get_gridspec().ncols
    assert columns <= drawing.ABREAST
    renderer = figure.canvas.get_renderer()
    texts = [text for panel in panels for text in panel.texts]
    for panel in panels:
        labels = [
            tick.label2 if tick.label2.get_visible() else tick.label1
            for axis in (panel.xaxis, panel.yaxis)
            for tick in axis.get_major_ticks()
            if min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
        ]
        rotated = any(text.get_rotation() for text in labels)
        texts += [panel.title, panel.xaxis.label, panel.yaxis.label, *([] if rotated else labels)]
    for legend in figure.legends:
        texts += legend.get_texts()
    texts = [text for text in texts if text.get_visible() and text.get_text().strip()]
    # Of a text with a line to it, that of the text alone.
    boxes = [Text.get_window_extent(text, renderer).padded(-1) for text in texts]
    assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    for box in boxes:
        assert box.x0 >= 0 and box.y0 >= 0
        assert box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1


def test_dots_are_the_means_of_all_rows_and_open_where_the_interval_has_zero(drawn: Drawn) -> None:
    frame, figure = drawn("differences")
    for panel in shown_panels(figure):
        (points,) = [c for c in panel.collections if isinstance(c, PathCollection)]
        x, rows = np.asarray(points.get_offsets()).T
        names = [panel.figure.axes[0].get_yticklabels()[int(row)].get_text() for row in rows]
        title = panel.get_title().replace("\n", " ")
        own = frame[frame["metric"].map(lambda m: drawing.title_of("metric", m)) == title]
        means = dict(zip(own["rival"].map(drawing.method_title), own["mean"], strict=True))
        assert dict(zip(names, x, strict=True)) == pytest.approx(means)
        is_open = (np.asarray(points.get_facecolors())[:, :3] == 1).all(axis=1)
        assert is_open.tolist() == (own["low"].le(0) & own["high"].ge(0)).tolist()


def test_rows_are_sorted_by_clients_in_conflict(drawn: Drawn) -> None:
    frame, figure = drawn("groups")
    b = frame[frame["metric"] == "accuracy_b"].sort_values("mean")
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert labels == [drawing.method_title(method) for method in b["method"]]
    assert len(labels) == 31


def test_curves_are_the_means_and_a_method_has_one_colour(drawn: Drawn) -> None:
    seen: dict[str, set[str]] = {}
    for name in ("progress", "tuning", "accuracy_by_alpha"):
        frame, figure = drawn(name)
        titles = {drawing.method_title(m): m for m in frame["method"].unique()}
        panel = shown_panels(figure)[0]
        metric = frame["metric"].iloc[0]
        named = [line for line in panel.get_lines() if line.get_label() in titles]
        assert len(named) == drawing.NAMED
        for line in named:
            method = titles[str(line.get_label())]
            own = frame[(frame["method"] == method) & (frame["metric"] == metric)]
            own = own.sort_values(figures.FIGURES[name].view["x"])
            assert np.asarray(line.get_ydata()) == pytest.approx(own["mean"].to_numpy())
            seen.setdefault(method, set()).add(str(line.get_color()))
            low, high = panel.get_ylim()
            assert low <= min(line.get_ydata()) and max(line.get_ydata()) <= high
    assert all(colours == {drawing.colour(method)} for method, colours in seen.items())


def test_named_methods_have_a_look_each() -> None:
    looks = [*drawing.LOOKS.values()]
    assert len({look[0] for look in looks}) == len({look[:2] for look in looks}) == len(looks)
    styles = drawing.styles([f"variant-{i}" for i in range(8)])
    assert len({style["color"] for style in styles.values()}) == 8
    assert not {style["color"] for style in styles.values()} & {look[0] for look in looks}
    assert next(iter(drawing.styles([*map(str, range(20)), "fedsdg"]))) == "fedsdg"


def test_a_heat_map_shows_its_numbers_and_who_is_best_in_bold(drawn: Drawn) -> None:
    frame, figure = drawn("regret")
    (panel,) = shown_panels(figure)
    printed = [float(text.get_text().replace("−", "-")) for text in panel.texts]
    assert printed == pytest.approx(frame["mean"], abs=0.051)
    bold = [text.get_fontweight() == "bold" for text in panel.texts]
    assert bold == frame["tied"].tolist()
    worst = frame[~frame["oracle"]]["mean"]
    assert worst.is_monotonic_increasing and frame["oracle"].is_monotonic_increasing


def test_partitions_of_several_data_sets_have_a_panel_each(reference: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(reference / "label-skew-levels", tmp_path / "two")
    (folder / "SHA256SUMS").unlink()
    shutil.copytree(folder / "partitions/digits", folder / "partitions/mnist")
    frame = figures.partition(Record(folder))
    assert {cell.partition(":")[0] for cell in frame["cell"]} == {"digits", "mnist"}
    assert not frame.duplicated(["cell", "client", "class"]).any()


def test_gates_stand_client_by_client_a_before_b(drawn: Drawn) -> None:
    frame, figure = drawn("gates")
    panels = shown_panels(figure)
    assert len(panels) == frame["method"].nunique() == 8
    for panel, (_, own) in zip(panels, frame.groupby("method", sort=False), strict=True):
        assert [text.get_text() for text in panel.get_yticklabels()] == ["A", "B"]
        shown = np.asarray(panel.get_images()[0].get_array())
        assert shown.ravel() == pytest.approx(own["gate"].to_numpy())


def test_attacks_are_in_the_order_of_their_shares(reference: Path) -> None:
    frame = figures.figure_named("attacks").frame(record(reference / "breakdown"))
    shares = ["5 % attackers", "45 % attackers", "50 % attackers"]
    assert [*frame["column"].unique()] == shares


def test_progress_has_every_cell_by_groups_or_not(reference: Path) -> None:
    frame = figures.figure_named("progress").frame(record(reference / "needs-controls"))
    metrics = frame.groupby("cell")["metric"].agg(set)
    assert metrics["iid@none"] == {"accuracy", "accuracy_shared"}
    assert metrics["iid@all"] == metrics["iid@groups"] == {"accuracy_b"}


def test_noise_around_zero_is_zero_in_the_numbers_of_a_figure(tmp_path: Path) -> None:
    of = write_record(tmp_path / "small", rows_of({"fedsdg": (80.1, 80.1 + 1e-12)}))
    assert pd.read_csv(io.StringIO(figures.sidecars("progress", of)["csv"]))["std"].max() == 0


def test_weights_are_percent_of_an_equal_share(reference: Path) -> None:
    frame = figures.figure_named("weights").frame(record(reference / "needs"))
    drawn = frame.set_index(["group", "round"])["mean"]
    clients = pd.read_parquet(reference / "needs/clients.parquet")
    clients = clients[clients["method"] == "fedsdg"]
    taking_part = clients[clients["weight"].notna()]
    equal = taking_part.groupby(["seed", "round"])["weight"].transform("mean")
    shares = 100 * taking_part["weight"] / equal
    of_a_seed = shares.groupby([taking_part[key] for key in ("conflicts", "round", "seed")]).mean()
    for (conflicts, at), mean in of_a_seed.groupby(["conflicts", "round"]).mean().items():
        assert drawn["B" if conflicts else "A", at] == pytest.approx(mean, rel=1e-5)


def test_the_files_of_a_figure(reference: Path, tmp_path: Path) -> None:
    of = record(reference / "needs")
    files = figures.write_figure("groups", of, tmp_path / "groups")
    assert [file.suffix for file in files] == [".pdf", ".svg", ".png", ".csv", ".json"]
    assert all(file.stat().st_size for file in files)
    texts = figures.sidecars("groups", of)
    assert {suffix: (tmp_path / f"groups.{suffix}").read_text() for suffix in texts} == texts
    numbers = pd.read_csv(tmp_path / "groups.csv")
    assert [*numbers.columns[:4]] == ["experiment", "cell", "method", "metric"]
    facts = json.loads(texts["json"])
    runs = reference / "needs/runs.parquet"
    digest = hashlib.sha256(runs.read_bytes()).hexdigest()
    assert facts["inputs"] == {"results/reference/needs/runs.parquet": digest}
    assert facts["caption"].startswith("Accuracy of clients that agree")


def test_captions_are_sentences(reference: Path) -> None:
    for name, experiment in SHOWN.items():
        caption = json.loads(figures.sidecars(name, record(reference / experiment))["json"])[
            "caption"
        ]
        assert caption.endswith(".") and "{" not in caption


def test_a_metric_is_a_figure_and_an_unknown_name_an_error(reference: Path, tmp_path: Path) -> None:
    of = record(reference / "needs")
    assert len(figures.write_figure("megabytes", of, tmp_path / "megabytes")) == 5
    with pytest.raises(ValueError, match="no figure 'group'; did you mean 'groups'"):
        figures.figure_named("group")


def test_bytes_do_not_depend_on_the_users_matplotlib(reference: Path, tmp_path: Path) -> None:
    of = record(reference / "needs")
    here = figures.write_figure("progress", of, tmp_path / "here")
    (tmp_path / "matplotlibrc").write_text("font.size: 20\nlines.linewidth: 9\naxes.grid: False\n")
    code = (
        "import sys; from fedsdg.analysis import figures, records; "
        "figures.write_figure('progress', records.record(sys.argv[1]), sys.argv[2])"
    )
    hostile = {"MPLBACKEND": "svg", "MATPLOTLIBRC": str(tmp_path), "SOURCE_DATE_EPOCH": "1"}
    command = [sys.executable, "-c", code, str(of.folder), str(tmp_path / "there")]
    subprocess.run(command, check=True, env=os.environ | hostile)
    for file in here:
        assert file.read_bytes() == (tmp_path / f"there{file.suffix}").read_bytes(), file.suffix
