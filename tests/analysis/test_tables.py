"""Tables: numbers against closed forms, bold where they are best, and three formats that parse."""

import math
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedsdg.analysis.formatting import amount, percent, points, printed
from fedsdg.analysis.names import method_title
from fedsdg.analysis.summarise import summarise
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables import TABLES, layout, write_table
from fedsdg.analysis.tables.render import latex_escape, markdown_escape, to_latex, to_markdown

from .conftest import Run, make_record, markdown


def tables_in(text: str) -> list[pd.DataFrame]:
    """The pipe tables of a Markdown text, read as GitHub does."""
    found: list[pd.DataFrame] = []
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        lines = [
            [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for line in block.splitlines()
        ]
        assert all(re.fullmatch(r"-+:?", cell) for cell in lines[1])
        assert len({len(line) for line in lines}) == 1
        found.append(pd.DataFrame(lines[2:], columns=lines[0]).set_index(lines[0][0]))
    return found


def interval(values: np.ndarray) -> str:
    """The cell that stands for these shares of five seeds, from SciPy."""
    low, high = 100 * np.array(stats.t.interval(0.95, 4, values.mean(), stats.sem(values)))
    if low < 0 or high > 100:
        return f"{100 * values.mean():.1f} [{max(low, 0):.1f}, {min(high, 100):.1f}]"
    return f"{100 * values.mean():.1f} ± {(high - low) / 2:.1f}"


@pytest.fixture
def csv_of(summary_dir, tmp_path):
    def written(name: str) -> pd.DataFrame:
        return pd.read_csv(write_table(summary_dir, name, tmp_path / name)[0])

    return written


@pytest.mark.parametrize(
    ("table", "metric"),
    [
        ("personal_accuracy", "personal_accuracy"),
        ("worst_decile", "personal_worst_decile"),
        ("global_accuracy", "global_accuracy"),
    ],
)
def test_cells_are_means_and_half_widths_in_percent(written, summary_dir, table, metric) -> None:
    """The best of a column is bold, and only it."""
    selected, last = tables_in(markdown(summary_dir, table))
    for at, shown in (("last", last), ("selected", selected)):
        for skew, heading in zip(written.plan.skews, shown.columns, strict=True):
            means = {}
            for method in written.plan.methods:
                cell = shown.at[method_title(method), heading].replace("**", "")
                values = written.values(skew, method, metric, at)
                means[method_title(method)] = values.mean()
                if metric == "global_accuracy" and method == "local-only":
                    assert cell == "–"
                elif (skew, method) in {("dirichlet~0.1", "krum"), ("dirichlet~1.0", "fedavg")}:
                    assert cell == f"{100 * values.mean():.1f} (4/5 ok)"
                else:
                    assert cell == interval(values)
            bold = [name for name, cell in shown[heading].items() if cell.startswith("**")]
            assert bold == [max(means, key=lambda name: np.nan_to_num(means[name]))]


def test_the_main_table_has_a_column_per_skew_and_metric_and_says_what_lacks(
    written, summary_dir
) -> None:
    text = markdown(summary_dir, "main")
    (shown,) = tables_in(text)
    assert shown.shape == (len(written.plan.methods), 3 * len(written.plan.skews))
    cell = shown.at["FedSDG", "Dirichlet α = 1.0<br>worst decile"].replace("**", "")
    assert cell == interval(written.values("dirichlet~1.0", "fedsdg", "personal_worst_decile"))
    assert "Local only: – no global accuracy: every parameter is private" in text
    assert "Krum: seed 1 failed with “FloatingPointError: client 3" in text
    assert "FedAvg (samples): seed 2 failed with “the run left no result.json” (α = 1.0)" in text
    assert "Not known to be steady at round 6: all methods." in text
    caption = text.splitlines()[0].replace("\\", "")
    for words in (
        "6 rounds; 4 clients per round",
        "batch size 16",
        "η_g = 0.003",
        "λ₁ = 0.0001, λ₂ = 0.0001",
        "Krum: f = 1",
        "Seeds 0–4 (n = 5)",
        "Backbone ",
    ):
        assert words in caption


@pytest.mark.parametrize("name", TABLES)
def test_a_grid_in_part_and_one_of_failures_still_give_every_table(
    in_part, failures, tmp_path, name
) -> None:
    for folder in (in_part, failures):
        assert all(path.read_text() for path in write_table(folder, name, tmp_path / name))


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    """The summary of an experiment of which both runs failed."""
    folder = tmp_path_factory.mktemp("failures")
    return make_record(folder, "failed", [Run(m, error="it fell") for m in ("fedsdg", "fedavg")])


def test_cells_that_were_not_run_stand_in_the_table_as_such(in_part, failures) -> None:
    text = markdown(in_part, "main")
    (shown,) = tables_in(text)
    assert set(shown.loc["SCAFFOLD"]) == {"– (not run)"}
    assert all(cell.endswith("(1/2 ok)") for cell in shown.loc["FedSDG"].str.replace("**", ""))
    assert ": not run: seed 1." in text and "SCAFFOLD: " not in text
    assert "Seeds 0 (n = 1)." in text, "a seed of which nothing was run is not counted"
    assert markdown(failures, "main").count("– (0/1 ok)") == 6


def test_csv_reads_back_to_six_digits_and_holds_no_more(written, csv_of) -> None:
    for row in csv_of("personal_accuracy").to_dict("records"):
        values = written.values(row["skew"], row["method"], "personal_accuracy")
        assert row["last round mean (%)"] == pytest.approx(100 * values.mean(), rel=5e-6)
        spread = row["last round standard deviation (%)"]
        assert spread == pytest.approx(100 * values.std(ddof=1), rel=5e-6)
        whole = [n for n in row.values() if isinstance(n, float) and not math.isnan(n)]
        assert whole and all(float(f"{n:.6g}") == n for n in whole)
        assert row["runs ok"] == len(values)
        assert row["runs"] == len(written.plan.seeds)


@pytest.mark.parametrize("name", ["main", "differences", "bytes", "rounds_to_target"])
def test_latex_is_balanced_with_whole_rows(summary_dir, name) -> None:
    text = to_latex(TABLES[name](Summary(summary_dir)))
    assert text.count("{") == text.count("}")
    stack = []
    for kind, environment in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            stack.append(environment)
        else:
            assert stack.pop() == environment
    assert not stack
    for columns, body in re.findall(
        r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", text, re.S
    ):
        for line in body.splitlines():
            if line.endswith(r"\\"):
                spans = sum(int(n) - 1 for n in re.findall(r"\\multicolumn\{(\d+)\}", line))
                assert len(re.findall(r"(?<!\\)&", line)) + spans == len(columns) - 1


def test_two_renderings_are_equal_whatever_the_times(make_runs, tmp_path) -> None:
    for turn, seconds in (("a", 1.0), ("b", 3.0)):
        written = make_runs(name=f"{turn}/synthetic", seeds=(0, 1), seconds=seconds)
        summarise(written.runs, tmp_path / turn)
        for name in TABLES:
            write_table(tmp_path / turn, name, tmp_path / turn / "tables" / name)
    for file in (tmp_path / "a/tables").iterdir():
        same = file.read_bytes() == (tmp_path / "b/tables" / file.name).read_bytes()
        assert same == (file.stem != "seconds"), file.name


def test_bytes_are_per_round_and_in_total(written, summary_dir, csv_of) -> None:
    raw = csv_of("bytes").set_index("method")
    per_round = written.plan.cohort * 96_512
    assert raw.at["fedsdg", "bytes up per round (bytes)"] == per_round
    assert raw.at["fedsdg", "bytes down per run (bytes)"] == per_round * written.plan.rounds
    assert raw.at["local-only", "bytes up per run (bytes)"] == 0
    (shown,) = tables_in(markdown(summary_dir, "bytes"))
    assert shown.at["FedSDG", "per round<br>up (kB)"] == "386"


def test_data_that_leave_their_clients_are_told_beside_the_bytes(summary_dir, tmp_path) -> None:
    folder = tmp_path / "summary"
    shutil.copytree(summary_dir, folder)
    file = folder / "clients.parquet"
    clients = pd.read_parquet(file)
    given = clients["method"].eq("krum") & clients["client"].isin([0, 1])
    shares = clients["client"].map({0: 0.1, 1: 0.3}).where(given)
    clients.assign(disclosed=shares).to_parquet(file)
    (shown,) = tables_in(markdown(folder, "bytes"))
    column = shown["privacy<br>data disclosed (%)"]
    assert column["Krum"] == "20.0" and column["FedSDG"] == "–"


def test_seconds_come_from_the_timings(written, csv_of) -> None:
    raw = csv_of("seconds").set_index("method")
    assert raw.at["fedsdg", "train per round (s)"] == pytest.approx(1.0)
    assert raw.at["fedsdg", "evaluate per round (s)"] == pytest.approx(0.2)
    assert raw.at["krum", "wall time per run (s)"] == pytest.approx(1.3 * written.plan.rounds)


def test_differences_show_their_interval_and_no_mark(written, summary_dir, csv_of) -> None:
    shown = tables_in(markdown(summary_dir, "differences"))[0]
    ours, theirs = (
        written.values("dirichlet~0.1", method, "personal_accuracy")
        for method in ("fedsdg", "fedavg")
    )
    ends = stats.ttest_rel(ours, theirs).confidence_interval()
    cell = shown.at["FedAvg (samples)", "Dirichlet α = 0.1"].replace("\\", "")
    assert cell == f"{points((ours - theirs).mean())} [{points(ends.low)}, {points(ends.high)}]"
    columns = set(csv_of("differences").columns)
    assert not {"p", "p_holm"} & columns, "what is described has no test"
    assert {"low (percentage points)", "high (percentage points)"} <= columns


def test_a_table_of_several_settings_has_a_block_for_each(bare) -> None:
    text = markdown(bare, "main")
    assert re.findall(r"^\*\*(.*)\*\*$", text, flags=re.MULTILINE) == [
        "Digits, 12 clients",
        "USPS, 12 clients",
    ]
    assert all("±" not in cell for t in tables_in(text) for cell in t.to_numpy().flat)


def test_unknown_table_and_missing_summary_are_named(summary_dir, tmp_path) -> None:
    with pytest.raises(ValueError, match="there is no table 'nothing'; "):
        write_table(summary_dir, "nothing", tmp_path / "x")
    with pytest.raises(FileNotFoundError, match="summarise"):
        Summary(tmp_path)


def test_a_view_becomes_a_block_whose_cells_know_their_rows() -> None:
    view = pd.DataFrame(
        [("krum", 0.2, 5, 0.50), ("fedsdg", 0.2, 5, 0.75), ("fedsdg", 0.4, 2, 0.25)],
        columns=["method", "share", "n", "mean"],
    )
    columns = [
        layout.Column(f"{share:.0%}", lambda row: f"{row['mean']:.2f}", "mean", {"share": share})
        for share in (0.2, 0.4)
    ]
    shown = layout.pivot("t", view, {"method": "Method"}, columns, lambda row: row["mean"])
    texts = [[entry.text for entry in row] for row in shown.rows]
    assert texts == [["FedSDG", "0.75", "0.25"], ["Krum", "0.50", "–"]], "in the order of methods"
    bold = [[entry.bold for entry in row] for row in shown.rows]
    assert bold == [[False, True, True], [False, False, False]]
    keys = [[entry.raw and entry.raw.row for entry in row[1:]] for row in shown.rows]
    assert keys[0] == [{"method": "fedsdg", "share": share} for share in (0.2, 0.4)]
    assert keys[1] == [{"method": "krum", "share": 0.2}, None]


@pytest.mark.parametrize(
    ("escape", "text", "escaped"),
    [
        (latex_escape, "a_b & 5 % η_g {x}", r"a\_b \& 5 \% η\_g \{x\}"),
        (latex_escape, "~^$#\\ 日", r"\textasciitilde{}\textasciicircum{}\$\#\textbackslash{} 日"),
        (latex_escape, "two\n\nlines", "two lines"),
        (markdown_escape, "a|b*c_d", r"a\|b\*c\_d"),
        (markdown_escape, "1.2 [0.1, 0.3]", "1.2 [0.1, 0.3]"),
        (markdown_escape, "[x](javascript:1)\n# [y][z]: $1", r"[x\](javascript:1) # [y\][z\]: \$1"),
    ],
)
def test_escapes(escape, text, escaped) -> None:
    assert escape(text) == escaped


def test_a_title_with_breaks_and_links_keeps_tables_whole() -> None:
    title = "a\n[x](javascript:alert(1)) | `b` <i>c</i>"
    rows = layout.block(title, ["Method", "n"], [[title, "1"], ["[b]", "2"]])
    table = layout.Table("t", title, (rows,), (title,), pd.DataFrame())
    lines = to_markdown(table).splitlines()
    escaped = r"a [x\](javascript:alert(1)) \| \`b\` \<i\>c\</i\>"
    assert lines[0] == escaped
    assert lines[2] == f"**{escaped}**"
    assert lines[6].startswith(f"| {escaped} |") and lines[-1] == f"- {escaped}"
    assert "\n{}[b] & 2 \\\\\n" in to_latex(table)


def test_formatting() -> None:
    assert percent(0.91234, 0.0081) == "91.2 ± 0.8"
    assert percent(1.0, None) == "100.0"
    assert (percent(0.99, 0.02), percent(0.01, 0.02)) == ("99.0 [97.0, 100.0]", "1.0 [0.0, 3.0]")
    assert (points(-0.0123), points(0.05), points(-0.0001)) == ("−1.2", "+5.0", "0.0")
    assert (amount(123_456, 1e3), amount(1_234, 1e3), amount(0, 1e3)) == ("123", "1.23", "0")
    assert (amount(0.123, 1), amount(0.05, 1), amount(4e-4, 1)) == ("0.123", "0.050", "0.000400")
    assert amount(3e-9, 1) == "3.00e-09"


def test_the_ceiling_is_never_the_best(summary_of) -> None:
    shares = {"fedavg": 0.7, "krum": 0.6, "centralised": 0.9, "centralised-long": 0.95}
    metrics = ("personal_accuracy", "personal_worst_decile", "global_accuracy")
    runs = [Run(m, last=dict.fromkeys(metrics, share)) for m, share in shares.items()]
    text = markdown(summary_of(runs), "main")
    assert text.count("**70.0**") == 3 and "| 90.0 |" in text
    assert "**90.0**" not in text and "**95.0**" not in text


def test_files_hold_six_significant_digits() -> None:
    """A last digit does not reach them: the same numbers, summed in another order."""
    for value, held in (
        (-2.0 / 3, -0.666667),
        (1.23456789e-7, 1.23457e-7),
        (123456789.0, 123456789.0),  # whole: a count of bytes is exact
        (1234567.5, 1234570.0),
        (0.0, 0.0),
        (float("inf"), float("inf")),
    ):
        assert printed(value) == held
    one, other = (0.1 + 0.2) + 0.3, 0.1 + (0.2 + 0.3)
    assert one != other and printed(one) == printed(other)
    assert math.isnan(printed(float("nan")))


def test_accuracies_of_todays_records_are_expected_ones_of_the_selected_round(
    with_quarters, quarters_dir, tmp_path
) -> None:
    """The own shard stands beside them, clients that agree and that differ in a table of theirs."""

    def check(shown: pd.DataFrame, wanted: list[tuple[str, str]], method: str) -> None:
        assert len(shown.columns) == len(wanted)
        for (key, at), heading in zip(wanted, shown.columns, strict=True):
            cell = shown.at[method_title(method), heading].replace("**", "")
            assert cell == interval(with_quarters.values("iid", method, key, at))

    text = markdown(quarters_dir, "main")
    keys = ("expected_accuracy", "expected_worst_decile", "global_accuracy")
    check(*tables_in(text), [(key, "selected") for key in keys], "fedsdg")
    assert "round selected on validation data" in text.splitlines()[0]
    (groups,) = tables_in(markdown(quarters_dir, "groups"))
    check(groups, [(f"expected_accuracy_{kind}", "selected") for kind in "ab"], "fedsdg")
    assert [*groups.columns] == ["IID<br>A", "IID<br>B"]
    csv, file, _ = write_table(quarters_dir, "personal_accuracy", tmp_path / "table")
    tables = tables_in(file.read_text("utf-8"))
    wanted = [(key, at) for key in ("expected_accuracy", "personal_accuracy")
              for at in ("selected", "quarter")]  # fmt: skip
    for place, shown in zip(wanted, tables, strict=True):
        check(shown, [place], "fedavg")
    assert file.read_text("utf-8").count("personal accuracy (own shard)") == 2
    raw = pd.read_csv(csv).set_index(["method", "metric"])
    values = with_quarters.values("iid", "fedavg", "expected_accuracy", "quarter")
    found = raw.at[("fedavg", "expected_accuracy"), "last quarter mean (%)"]
    assert found == pytest.approx(100 * values.mean())


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("groups", "No client of this experiment differs"),
        ("byzantine", "was attacked"),
        ("detection", "blocks clients"),
        ("label_noise", "has label noise"),
        ("stragglers", "kept simulated time"),
        ("primary", "names no primary comparisons"),
        ("sensitivity", "No setting varies"),
        ("tuning", "No search was made of this experiment's hyper-parameters."),
    ],
)
def test_a_table_without_rows_says_why(summary_dir, name, note) -> None:
    assert note in markdown(summary_dir, name)


def test_few_seeds_give_points_and_a_note(make_runs, tmp_path) -> None:
    summarise(make_runs(seeds=(0, 1, 2, 3)).runs, tmp_path / "s")
    for name in ("main", "differences"):
        text = markdown(tmp_path / "s", name)
        assert "the mean of 4 seeds, fewer than 5" in text
        for shown in tables_in(text):
            assert not [c for c in shown.to_numpy().flat if "±" in c or "[" in c]
    csv, *_ = write_table(tmp_path / "s", "main", tmp_path / "main")
    assert pd.read_csv(csv)["last round half-width of 95 % interval (%)"].isna().all()
