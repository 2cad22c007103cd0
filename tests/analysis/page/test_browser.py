"""The page as a person uses it, in a real browser without a network: pointer, keyboard, phone."""

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsdg.analysis.summarise import summarise
from fedsdg.files import write_json
from fedsdg.files.declarations import declarations, families
from fedsdg.files.places import ARENAS

from ..conftest import Plan, write_runs
from .conftest import page_of
from .test_page import ends_of

ROUND_ARENA = "cross-label-skew-digits-20-dirichlet~0.1"
NEEDS = "cross-needs-digits-20-iid@half"


@pytest.fixture
def open_tab(browser) -> Iterator:
    """Opens fresh tabs with a page, all of it drawn; in the end no browser has complained."""
    tabs = []

    def opened(page: Path, **options):
        options = {"viewport": {"width": 1280, "height": 900}, **options}
        tab = browser.new_context(offline=True, **options).new_page()
        tab.complaints, tab.asked = [], []
        tab.on("console", lambda message: tab.complaints.append(message.text))
        tab.on("pageerror", lambda error: tab.complaints.append(str(error)))
        tab.on("request", lambda request: tab.asked.append(request.url))
        begun = time.monotonic()
        tab.goto(page.as_uri())
        tab.wait_for_selector("html[data-ready]")
        tab.seconds = time.monotonic() - begun
        tab.wait_for_selector("html[data-ready=all]")
        settle(tab)
        tabs.append(tab)
        return tab

    yield opened
    for tab in tabs:
        assert tab.complaints == []
        tab.context.close()


@pytest.fixture
def tab(open_tab, made: Path):
    return open_tab(made)


BOARD = ".board:not([hidden])"


def column(tab, heading: str) -> list[str]:
    """What stands under a heading of the visible board, in the order of its visible rows."""
    return tab.evaluate(
        """heading => {
          const board = document.querySelector(".board:not([hidden])");
          const heads = [...board.querySelectorAll("thead th")];
          const at = heads.findIndex((one) => one.dataset.column === heading);
          const rows = [...board.querySelectorAll("tr[data-method]")].filter((row) => !row.hidden);
          return rows.map((row) => row.cells[at].textContent);
        }""",
        heading,
    )


def head(tab, name: str):
    return tab.locator(f"{BOARD} thead th[data-column={name}] button")


def mean(text: str) -> float | None:
    return None if text == "–" else float(re.split(r"[ \[]", text.replace(",", ""))[0])


def settle(tab) -> None:
    """Wait until charts that are being drawn stand there."""
    tab.evaluate("Promise.all([...PLOTS.values()].map((plot) => plot.done)).then(() => null)")


def test_it_is_ready_soon_asks_for_nothing_and_complains_of_nothing(open_tab, made):
    tab = open_tab(made)
    assert tab.seconds < 10  # 2 s where nothing else runs
    for arena in tab.evaluate("data.arenas.map((one) => one.id)"):
        tab.select_option("#arena", arena)
        settle(tab)
    for dark in ("true", "false"):
        tab.click("#theme")
        assert tab.get_attribute("#theme", "aria-pressed") == dark
        settle(tab)
    charts = tab.evaluate("[...document.querySelectorAll('.chart')].map((one) => one.id)")
    assert len(charts) == 8
    for chart in charts:
        assert tab.locator(f"#{chart} svg .mark-symbol, #{chart} svg .mark-rect").count(), chart
    assert tab.asked == [made.as_uri()] or tab.asked[1:] == ["data:,"]


def test_columns_sort_by_number_and_what_is_missing_stands_last(tab):
    tab.select_option("#arena", NEEDS)  # there a run sends 68 MB or 218 MB: text sorts otherwise
    for heading in ("expected_worst_decile", "global_accuracy", "bytes"):
        for falling in (True, False):
            head(tab, heading).click()
            values = [mean(text) for text in column(tab, heading)]
            known = [value for value in values if value is not None]
            assert known == sorted(known, reverse=falling) and len(set(known)) > 2
            assert values[: len(known)] == known
    head(tab, "method").press("Enter")
    words = [re.split(r"[^\w ]", name.lower())[0].strip() for name in column(tab, "method")]
    assert words == sorted(words)  # Marks within a name are the browser's to order.
    assert tab.get_attribute(f"{BOARD} thead th[data-column=method]", "aria-sort")
    assert tab.locator(f"{BOARD} th[aria-sort]").count() == 1


def test_rows_are_filtered_by_family_and_name_and_hidden_one_by_one(tab):
    tab.select_option("#arena", NEEDS)
    everyone = column(tab, "method")
    tab.uncheck("#families input[value='FedSDG']")
    kept = tab.evaluate(
        "[...document.querySelectorAll('.board:not([hidden]) tr[data-method]')]"
        ".filter((row) => !row.hidden).map((row) => row.dataset.method)"
    )
    assert kept and all(families().get(method) != "FedSDG" for method in kept)
    assert len(kept) < len(everyone)
    tab.check("#families input[value='FedSDG']")
    tab.fill("#find", "ditto")
    assert [name.split(" †")[0] for name in column(tab, "method")] == ["Ditto"]
    tab.fill("#find", "")
    row = tab.locator(f"{BOARD} tr[data-method=fedrep]")
    row.locator(".hide").press("Enter")
    assert "FedRep" not in column(tab, "method") and len(column(tab, "method")) == len(everyone) - 1
    assert tab.evaluate("document.activeElement.className") == "hide"
    assert tab.inner_text("#restore") == "Show hidden rows (1)"
    tab.click("#restore")
    assert sorted(column(tab, "method")) == sorted(everyone)


def test_a_number_opens_its_runs_with_their_provenance_by_pointer_and_by_keyboard(tab, reference):
    runs = pd.read_parquet(reference / "cross-needs" / "runs.parquet")
    mine = runs[(runs["method"] == "ditto") & (runs["status"] == "ok")].sort_values("seed")
    origins = json.loads((reference / "cross-needs" / "provenance.json").read_text())
    tab.select_option("#arena", NEEDS)
    cells = tab.locator(f"{BOARD} tr[data-method=ditto] .number")
    assert cells.count() == 9  # the name, five accuracies, bytes, steps, seeds
    for number in range(1, cells.count()):
        cells.nth(number).click()
        said = tab.inner_text("#runs")
        assert "Ditto" in said and cells.nth(number).inner_text() in said
        for _, run in mine.iterrows():
            assert run["config_hash"][:12] in said and run["partition_hash"][:12] in said
        folder = "digits/clients~20/iid@half/ditto/seed~3"
        (origin,) = [one for one in origins if folder in one["runs"]]
        assert origin["commit"] in said and origin["first"][:10] in said
        assert "--method ditto --seed 3" in said and "config/cross-needs.yaml" in said
        assert "iid@half ditto seed~3 seed~4 seed~5 seed~6 seed~7" in said
        tab.keyboard.press("Escape")
        assert not tab.is_visible("#runs")
    cell = cells.nth(3)  # clients that differ
    cell.focus()
    tab.keyboard.press("Enter")
    assert tab.is_visible("#runs")
    for value in mine["selected_expected_accuracy_b"]:
        assert f"{100 * value:.2f}" in tab.inner_text("#runs table")
    tab.click("#runs summary")
    assert mine["config_hash"].iloc[0] in tab.inner_text("#runs")
    tab.keyboard.press("Escape")
    assert not tab.is_visible("#runs")
    assert tab.evaluate("document.activeElement.textContent") == cell.inner_text()


def test_two_methods_differ_by_the_paired_interval_over_their_common_seeds(tab, reference):
    runs = pd.read_parquet(reference / "cross-needs" / "runs.parquet")
    table = runs[runs["status"] == "ok"].pivot(
        index="seed", columns="method", values="selected_expected_accuracy_b"
    )
    tab.select_option("#arena", NEEDS)
    for one, other in (("fedsdg", "fedavg"), ("fedrep", "fine-tune")):
        gaps = 100 * (table[one] - table[other]).dropna()
        assert len(gaps) in (5, 10)
        tab.select_option("#one", one)
        tab.select_option("#other", other)
        tab.select_option("#rival-metric", "expected_accuracy_b")
        settle(tab)
        said = tab.inner_text("#gap").replace("−", "-")
        found = re.search(r": (\S+) points \[(\S+), (\S+)\], (\d+) paired", said)
        assert found is not None, said
        assert [float(text) for text in found.groups()] == pytest.approx(
            [*ends_of(gaps), len(gaps)], abs=0.051
        )
        points = "path[aria-roledescription=point]"
        assert tab.locator(f"#chart-pairs {points}").count() == 2 * len(gaps)
        assert tab.locator(f"#chart-gaps {points}").count() == len(gaps) + 1


def test_curves_are_switched_shown_against_any_cost_and_say_what_is_under_the_pointer(tab):
    tab.select_option("#arena", ROUND_ARENA)
    lines = "#chart-curves path[aria-roledescription='line mark']"
    settle(tab)
    before = tab.locator(lines).count()
    boxes = tab.locator("#curve-methods input")
    assert before == tab.locator("#curve-methods input:checked").count() < boxes.count()
    tab.check("#curve-methods input[value=krum]")
    settle(tab)
    assert tab.locator(lines).count() == before + 1
    tab.locator("#curve-methods input[value=krum]").press("Space")
    settle(tab)
    assert tab.locator(lines).count() == before
    for cost, title in (("steps", "local steps"), ("bytes", "MB sent"), ("round", "round")):
        tab.check(f"#cost input[value={cost}]")
        settle(tab)
        assert title in tab.text_content("#chart-curves svg")
    point = tab.locator("#chart-curves path[aria-roledescription=point]").last
    point.hover(force=True)
    tab.wait_for_selector("#vg-tooltip-element.visible")
    assert re.search(r"accuracy \(%\)\s*\d+\.\d \[", tab.inner_text("#vg-tooltip-element"))


def test_gates_of_any_round_seed_and_method_are_shown(tab, reference):
    tab.select_option("#arena", NEEDS)
    settle(tab)
    fields = "#chart-gates g.concat_0_group path[aria-roledescription='rect mark']"
    rounds = tab.evaluate("arena().gates[0].rounds")
    assert tab.inner_text("#gate-said") == str(rounds[-1])

    def last() -> list[str]:
        return tab.evaluate(
            "(path) => [...document.querySelectorAll(path)].map((one) => one.ariaLabel)", fields
        )

    shown = last()
    assert len(shown) == 20 * 6
    tab.locator("#gate-round").press("Home")
    settle(tab)
    assert tab.inner_text("#gate-said") == str(rounds[0]) and last() != shown
    tab.locator("#gate-round").press("End")
    tab.select_option("#gate-seed", "4")
    tab.select_option("#gate-measure", "private_shares")
    settle(tab)
    assert len(last()) == 20 * 6 and last() != shown
    clients = pd.read_parquet(reference / "cross-needs" / "clients.parquet")
    gated = clients[clients["gates"].notna()]["method"].nunique()
    assert tab.locator("#gate-method option").count() == gated > 5


def test_the_ledger_is_filtered_by_verdict_source_and_words(tab, reference):
    entries = json.loads((reference / "ledger.json").read_text())
    rows = tab.locator("#claims tbody tr:not([hidden])")
    assert rows.count() == len(entries)
    for verdict in ("supported", "undecided", "no verdict", "open"):
        tab.uncheck(f"#verdicts input[value='{verdict}']")
    refuted = [entry for entry in entries if entry["verdict"] == "refuted"]
    assert rows.count() == len(refuted)
    tab.select_option("#source", index=2)
    source = tab.evaluate("document.getElementById('source').value")
    number = re.search(r"\d{3}", source)
    assert number is not None
    assert rows.count() == sum(entry["source"] == number.group() for entry in refuted)
    tab.select_option("#source", "")
    tab.fill("#claim-find", refuted[0]["id"])
    assert rows.count() >= 1 and refuted[0]["sentence"] in rows.first.inner_text()
    assert tab.inner_text("#claims-shown") == f"{rows.count()} of {len(entries)}"


@pytest.mark.parametrize("method", ["fedsdg", "fedsdg-official"])
def test_what_is_seen_of_the_gates_is_said_in_a_sentence(tab, reference, method):
    clients = pd.read_parquet(reference / "cross-needs" / "clients.parquet")
    own = clients[(clients["method"] == method) & (clients["seed"] == 3)]
    of_b = own.dropna(subset=["conflicts"]).groupby("client")["conflicts"].last().astype(bool)
    last = own[own["round"] == own["round"].max()].set_index("client")["gates"].dropna()
    tab.select_option("#arena", NEEDS)
    tab.select_option("#gate-method", method)
    settle(tab)
    said = tab.inner_text("#gate-seen")
    for kind, word in ((False, "A"), (True, "B")):
        gates = np.stack([gates for client, gates in last.items() if of_b[client] == kind])
        found = re.search(rf"of {word} ([\d.]+) on average, (\d+) % above one half", said)
        assert found is not None, said
        assert float(found[1]) == pytest.approx(gates.mean(), abs=0.011)
        assert float(found[2]) == pytest.approx(100 * (gates > 0.5).mean(), abs=2)
    gates = np.stack(list(last))
    opened = (gates > 0.5).sum(axis=0)
    block = f"% lie in block {1 + int(np.argmax(opened))}."
    assert said.endswith(block if opened.any() else "% above one half.")
    assert opened.any() == (method == "fedsdg-official"), "both kinds of sentences"


def test_how_the_runs_were_made_is_a_table_of_their_configs(tab, reference):
    runs = pd.read_parquet(reference / "cross-needs" / "runs.parquet")
    tab.select_option("#arena", NEEDS)
    tab.fill("#find", "nobody")  # filters are of the leaderboard alone
    tab.click(f"{BOARD} summary")
    common, own = (tab.locator(f"{BOARD} details table").nth(i) for i in (0, 1))
    config = json.loads(runs.loc[runs["method"] == "ditto", "config"].iloc[0])
    assert f"rounds\t{config['federation']['rounds']}" in common.inner_text()
    _, heads, *rows = (line.split("\t") for line in own.inner_text().splitlines())
    ditto = dict(zip(heads, next(row for row in rows if row[0] == "Ditto"), strict=True))
    assert float(ditto["η_g"]) == pytest.approx(config["training"]["eta_g"], rel=1e-3)
    assert float(ditto["λ"]) == pytest.approx(config["parameters"]["strength"], rel=1e-3)


def test_a_method_leads_to_what_is_declared_of_it(tab):
    tab.select_option("#arena", NEEDS)
    tab.locator(f"{BOARD} tr[data-method=fedsdg-fixed] th .number").press("Enter")
    said = tab.inner_text("#runs")
    (declared,) = [one for one in declarations()["methods"] if one["name"] == "fedsdg"]
    assert "A variant of FedSDG" in said and declared["formula"] in said
    assert declared["source"] in said and "λ₁ of Eq. 5, weight of Σ_l |m_l|" in said


def test_what_was_chosen_stands_in_the_address_and_survives_a_reload(tab):
    def state():
        return column(tab, "method"), tab.inner_text("#gap"), tab.inner_text("#claims-shown")

    assert tab.evaluate("arena().experiment") == next(iter(ARENAS)), "it opens there"
    tab.select_option("#arena", ROUND_ARENA)
    head(tab, "bytes").click()
    tab.uncheck("#families input[value='FedSDG']")
    tab.fill("#find", "fed")
    tab.locator(f"{BOARD} tr[data-method=fedprox] .hide").click()
    tab.check("#curve-methods input[value=krum]")
    tab.check("#cost input[value=steps]")
    tab.select_option("#one", "scaffold")
    tab.uncheck("#verdicts input[value='open']")
    before = state()
    tab.reload()
    tab.wait_for_selector("html[data-ready=all]")
    settle(tab)
    assert before == state() and tab.input_value("#find") == "fed"
    assert tab.is_checked("#curve-methods input[value=krum]")
    assert tab.is_checked("#cost input[value=steps]")
    assert tab.inner_text("#restore") == "Show hidden rows (1)"


def test_the_back_button_takes_back_the_arena_the_dialog_and_the_section(tab):
    first = tab.evaluate("arena().id")
    tab.select_option("#arena", ROUND_ARENA)
    tab.click(".bar nav a[href='#ledger']")
    assert tab.evaluate("location.hash").startswith("#ledger?arena=")
    assert tab.evaluate("byId('ledger').getBoundingClientRect().top") < 200
    tab.locator(f"{BOARD} .number").nth(1).click()
    assert tab.is_visible("#runs")
    title = tab.inner_text("#runs-title")
    tab.go_back()
    assert not tab.is_visible("#runs")
    tab.go_forward()
    assert tab.is_visible("#runs") and tab.inner_text("#runs-title") == title
    tab.keyboard.press("Escape")
    assert not tab.is_visible("#runs")
    for _ in range(4):
        if tab.evaluate("arena().id") != first:
            tab.go_back()
    assert tab.evaluate("arena().id") == first and not tab.is_visible("#runs")


def test_an_address_that_means_nothing_shows_the_page_as_it_is_at_first(tab, made):
    for address in (
        "#nowhere",
        "#%?arena=%",
        "#?arena=none&sort=x&open=a b",
        "#?one=a&gate-round=x&hide=",
    ):
        tab.goto(made.as_uri() + address)
        tab.reload()
        tab.wait_for_selector("html[data-ready=all]")
        settle(tab)
        assert tab.evaluate("arena().experiment") == next(iter(ARENAS)) and not tab.is_visible(
            "#runs"
        )
        assert len(column(tab, "method")) == len(tab.evaluate("arena().methods"))


def test_all_can_be_done_by_the_keyboard(tab):
    def focused(what="className"):
        return tab.evaluate(f"document.activeElement.{what}")

    tab.keyboard.press("Tab")
    assert focused() == "skip"
    tab.keyboard.press("Enter")
    assert focused("id") == "leaderboard"
    for _ in range(40):
        tab.keyboard.press("Tab")
        if focused() == "number":
            break
    tab.keyboard.press("Enter")
    assert tab.is_visible("#runs")
    tab.keyboard.press("Escape")
    assert focused() == "number"
    box = tab.locator("#curve-methods input[value=ditto]")
    box.focus()
    tab.keyboard.press("Space")
    settle(tab)
    assert focused("value") == "ditto" and box.is_checked()


def test_on_a_phone_nothing_scrolls_sideways_but_tables_in_their_own_place(open_tab, made):
    size = {"width": 390, "height": 844}
    tab = open_tab(made, viewport=size, has_touch=True)
    for arena in (ROUND_ARENA, NEEDS):
        tab.select_option("#arena", arena)
        settle(tab)
        assert tab.evaluate("document.documentElement.scrollWidth") == 390, arena
    tab.locator(f"{BOARD} td .number").first.tap()
    verdict = tab.locator("#claims tbody tr").first.locator("td").first
    assert "verdict" in verdict.get_attribute("class") and verdict.bounding_box()["x"] < 40
    cards = tab.evaluate(
        "[...document.querySelectorAll('#claims td, #claims th')].every("
        "(one) => one.getBoundingClientRect().right <= 390)"
    )
    assert cards, "a claim has no part beside the screen"
    box = tab.locator("#runs").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390


def test_dark_by_preference_but_on_paper_light_with_all_leaderboards(open_tab, made):
    tab = open_tab(made, color_scheme="dark")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 28)"
    tab.emulate_media(media="print")
    boards = tab.locator(".board")
    assert all(boards.nth(i).is_visible() for i in range(boards.count()))
    assert not tab.is_visible(".bar nav") and not tab.is_visible("#families")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_what_is_not_there_is_said_and_breaks_nothing(
    open_tab, reference, summary_dir, bare, tmp_path
):
    """Failed runs, one seed, no FedSDG, no ledger, no attacks, no search, part of the speeds."""
    records = tmp_path / "summary"
    shutil.copytree(summary_dir, records / "synthetic")
    shutil.copytree(bare, records / "bare")
    measured = json.loads((reference / "performance" / "measured.json").read_text())
    measured["timings"] = [row for row in measured["timings"] if row["suite"] == "sizes"]
    write_json(tmp_path / "performance" / "short" / "aggregation.json", measured)
    page = page_of(records, tmp_path, "bare", "synthetic")
    tab = open_tab(page)
    for arena in tab.evaluate("data.arenas.map((one) => one.id)"):
        tab.select_option("#arena", arena)
        settle(tab)
        tab.locator(f"{BOARD} td .number").first.click()
        assert "No config file" in tab.inner_text("#runs")
        assert "not recorded" in tab.inner_text("#runs-made")
        tab.keyboard.press("Escape")
    assert tab.is_disabled("#cost input[value=steps]") and tab.is_enabled(
        "#cost input[value=bytes]"
    )
    assert not tab.is_visible("#chart-speed-clients") and tab.is_visible("#chart-codes svg")


def test_five_hundred_methods_with_hostile_titles_of_one_seed_are_shown_as_they_are(
    open_tab, tmp_path
):
    """What plugins, configs and errors say is text: it is shown, and is never part of the page."""
    hostile = "<img src=x onerror=alert(1)>{{ 7*7 }}</script>'\"&" + "long " * 31
    methods = tuple(f"mine{i}" for i in range(500))
    plan = Plan(methods=methods, skews=("iid",), seeds=(0,), clients=3, cohort=2, rounds=4)
    summary = tmp_path / "records" / "mine"
    summarise(write_runs(tmp_path / "runs", plan).runs, summary)
    file = summary / "runs.parquet"
    table = pq.read_table(file)
    frame = table.to_pandas()
    for at in (0, 499):
        result = json.loads(frame.loc[at, "result"])
        result |= {"title": f"{hostile}{at}", "method": frame.loc[at, "method"]}
        frame.loc[at, "result"] = json.dumps(result)
    pq.write_table(pa.Table.from_pandas(frame, schema=table.schema), file)
    page = page_of(summary.parent, tmp_path, "mine")
    tab = open_tab(page)
    assert tab.locator(".board tr[data-method]").count() == 500
    assert tab.locator("img").count() == 0
    name = frame.loc[0, "method"]
    row = tab.locator(f".board tr[data-method={name}]")
    assert row.locator("th .number").inner_text().strip() == f"{hostile}0"
    tab.select_option("#one", name)
    settle(tab)
    assert tab.inner_text("#gap").startswith(hostile[:40]) or "Choose" in tab.inner_text("#gap")
    row.locator("td .number").first.click()
    assert hostile[:40] in tab.inner_text("#runs-title")
    assert tab.locator("img").count() == 0
