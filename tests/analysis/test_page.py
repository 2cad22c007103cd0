"""The results page in a browser without a network, by pointer, keyboard and phone."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean

import pandas as pd
import pytest

from fedsdg.analysis.claims import RULE
from fedsdg.analysis.drawing import LOOKS
from fedsdg.analysis.metrics import values
from fedsdg.analysis.page import arenas, write_page
from fedsdg.analysis.records import Record, record
from fedsdg.analysis.tables import Table
from tests.analysis.conftest import write_frame

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "results" / "reference"
HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("page") / "index.html"
    return write_page(output, arenas(REFERENCE), ROOT / "claims.yaml", ROOT)


@pytest.fixture(scope="module")
def browser() -> Iterator:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("no browser")
    playwright = pytest.importorskip("playwright.sync_api", reason="no browser")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def open_tab(browser) -> Iterator:
    """Opens pages without a network; in the end nothing was asked for, and nothing complained."""
    contexts, complaints = [], []

    def opened(page: Path, width: int = 1400, **options):
        context = browser.new_context(
            offline=True, viewport={"width": width, "height": 900}, **options
        )
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("dialog", lambda dialog: complaints.append(dialog.message))
        allowed = (page.as_uri(), "data:")
        tab.on("request", lambda r: r.url.startswith(allowed) or complaints.append(r.url))
        tab.goto(page.as_uri())
        tab.wait_for_selector("#board tbody tr")
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def tab(open_tab, made: Path):
    return open_tab(made)


def small(folder: Path, seeds: int = 1, titles: Mapping[str, str] = {}) -> Record:
    """A record with three rows of `views`, some of them renamed."""
    folder.mkdir(parents=True)
    methods = json.loads((REFERENCE / "views" / "methods.json").read_text())
    kept = ["fedsdg", "fedavg-uniform", "ditto"]
    facts = {titles.get(name, name): methods[name] for name in kept}
    for label in titles.values():
        facts[label] = {**facts[label], "title": label, "family": label}
    (folder / "methods.json").write_text(json.dumps(facts))
    shutil.copy(REFERENCE / "views" / "provenance.json", folder)
    for name in ("runs", "rounds", "clients", "timings"):
        frame = pd.read_parquet(REFERENCE / "views" / f"{name}.parquet")
        frame = frame[frame["method"].isin(kept) & (frame["seed"] < frame["seed"].min() + seeds)]
        frame = frame.assign(method=frame["method"].replace(titles))
        write_frame(folder / f"{name}.parquet", frame)
    return Record(folder)


def column(tab, number: int) -> list[str]:
    return tab.locator(f"#board tbody tr > :nth-child({number})").evaluate_all(
        "cells => cells.map((cell) => cell.firstChild.textContent)"
    )


def as_number(text: str) -> float:
    return float(text.replace("−", "-"))


def each_chart(tab) -> Iterator[str]:
    """Shows one arena after the other; the selectors of both charts of each."""
    for button in tab.locator("#arenas button").all():
        button.click()
        yield from ("#budget", "#rounds")


def lines(tab, chart: str) -> dict[str, dict]:
    """Returns by title the lines that have a colour: it, dashes, height, end, and place of name."""
    found = tab.locator(f"{chart} g:not([stroke='var(--faint)'])").evaluate_all(
        """all => all.map((g) => {
          const [title, line] = g.children;
          const [svg, end, box] = [g.ownerSVGElement, g.lastChild, g.getBBox()];
          const name = [...svg.querySelectorAll("text:not(.axis)")].find((text) =>
            text.getAttribute("fill") === g.getAttribute("stroke")
              && title.textContent.startsWith(text.textContent.replace("…", "")));
          const { x, y, width, height } = name.getBBox();
          const room = svg.viewBox.baseVal;
          return { title: title.textContent.split(":")[0], colour: g.getAttribute("stroke"),
            dash: getComputedStyle(line).strokeDasharray, top: box.y, bottom: box.y + box.height,
            end: +end.getAttribute("cy"), base: +name.getAttribute("y"),
            left: x, right: x + width, inside:
              x >= 0 && y >= 0 && x + width <= room.width && y + height <= room.height };
        })"""
    )
    return {line["title"]: line for line in found}


def neighbours(line: Mapping, others: Mapping[str, Mapping]) -> list[float]:
    """Returns how far the names above or below a line's own are from it."""
    return [
        abs(line["base"] - other["base"])
        for other in others.values()
        if other is not line and other["left"] < line["right"] and line["left"] < other["right"]
    ]


def choose_all(tab) -> None:
    tab.get_by_text("Choose methods").click()
    for box in tab.locator("#chosen input").all():
        box.check()


def seeds_shown(tab) -> dict[int, float]:
    rows = tab.locator("#seeds tbody tr").evaluate_all(
        "rows => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    return {int(row[0]): as_number(row[1]) for row in rows}


def test_it_is_one_small_file_with_few_words(tab, made: Path):
    assert made.stat().st_size < 3_500_000
    text = made.read_text(encoding="utf-8")
    assert not re.search(r"""(?:src|href|url)\s*[=(]\s*["']?(?:https?:)?//""", text)
    assert len(tab.evaluate("document.body.innerText").split()) <= 2_500


def test_the_first_screen_shows_regret_and_findings_with_their_seeds(tab):
    assert tab.locator("#map tbody tr").count() == len(record(REFERENCE / "needs").methods)
    box = tab.locator("#map tbody tr").nth(20).bounding_box()
    assert box["y"] + box["height"] < 900
    assert tab.locator(".first li").count() == 5
    for link in tab.locator(".first li a").all():
        link.click()
        mean = as_number(link.text_content().split()[0])
        assert fmean(seeds_shown(tab).values()) == pytest.approx(mean, abs=0.051)
        tab.keyboard.press("Escape")
        assert tab.locator(link.get_attribute("href")).count() == 1


def test_the_leaderboard_has_the_means_of_the_record(tab):
    opened = record(REFERENCE / "needs")
    means = values(opened, "accuracy").groupby("method")["value"].mean()
    titles = {facts["title"]: label for label, facts in opened.methods.items()}
    shown = dict(zip(column(tab, 1), column(tab, 2), strict=True))
    assert len(shown) == len(means)
    for title, text in shown.items():
        assert as_number(text) == pytest.approx(means[titles[title.removesuffix(" ‡")]], abs=0.051)


def test_every_column_sorts_both_ways(tab):
    heads = tab.locator("#board thead button")
    for i in range(heads.count()):
        heads.nth(i).click()
        first = column(tab, i + 1)
        heads.nth(i).click()
        second = column(tab, i + 1)
        if i == 0:
            assert first == second[::-1]
            continue
        numbers = [as_number(text) for text in first if text != "–"]
        downwards = tab.locator("#board th").nth(i).get_attribute("aria-sort") == "ascending"
        assert numbers == sorted(numbers, reverse=downwards)
        others = [as_number(text) for text in second if text != "–"]
        assert others == sorted(others, reverse=not downwards)
        assert first.count("–") == second.count("–")
        assert "–" not in first[: len(numbers)] + second[: len(others)]


def test_the_leaderboard_is_filtered_by_name_family_and_kind(tab):
    facts = record(REFERENCE / "needs").methods.values()
    tab.fill("#filter [name=text]", "fedavg")
    assert all("FedAvg" in title for title in column(tab, 1))
    tab.fill("#filter [name=text]", "")
    tab.select_option("#filter [name=family]", "Robust rules")
    assert len(column(tab, 1)) == sum(row["family"] == "Robust rules" for row in facts)
    tab.select_option("#filter [name=family]", "")
    tab.select_option("#filter [name=kind]", "personal")
    count = sum(row["personal"] for row in facts)
    assert len(column(tab, 1)) == count
    assert tab.locator("#count").text_content() == f"{count} of {len(facts)} methods"


def test_other_arenas_have_their_own_rows_and_charts(tab):
    tab.get_by_role("button", name="views, rotate").click()
    assert len(column(tab, 1)) == len(record(REFERENCE / "views").methods)
    assert tab.locator("#budget g").count() == len(column(tab, 1))
    assert tab.locator("[aria-pressed=true]").text_content() == "views, rotate"


def test_a_number_opens_its_seeds_and_what_makes_them_again(tab):
    opened = record(REFERENCE / "needs")
    label = {facts["title"]: name for name, facts in opened.methods.items()}
    for row, cell, name, at in ((4, 4, "accuracy_b", "selected"), (2, 8, "accuracy", "end")):
        line = tab.locator("#board tbody tr").nth(row)
        method = label[line.locator("th").evaluate("head => head.firstChild.textContent")]
        number = line.locator(f":nth-child({cell}) > button")
        number.click()
        recorded = values(opened, name, at=at).set_index(["method", "seed"])["value"]
        seeds = seeds_shown(tab)
        assert seeds == pytest.approx(recorded[method].to_dict(), rel=1e-4)
        assert fmean(seeds.values()) == pytest.approx(as_number(number.text_content()), abs=0.051)
        text = tab.locator("#seeds").inner_text()
        end = " --at end" if at == "end" else ""
        assert f"fedsdg trace needs/iid@half/{method} {name}{end}\n" in text
        assert f"results/runs/needs/digits/clients~20/iid@half/{method}/seed~3" in text
        assert "fedsdg grid" in text
        tab.keyboard.press("Escape")


def test_a_field_of_the_map_and_a_claim_open_theirs(tab):
    field = tab.locator("#map .number").first
    field.click()
    assert fmean(seeds_shown(tab).values()) == pytest.approx(
        as_number(field.text_content()), abs=0.051
    )
    tab.get_by_role("button", name="Close").click()
    claim = tab.locator("#claims #private-branch-helps")
    claim.locator("button").click()
    mean = as_number(claim.locator("button").text_content().split()[0])
    assert fmean(seeds_shown(tab).values()) == pytest.approx(mean, abs=0.051)
    assert "fedsdg trace private-branch-helps" in tab.locator("#seeds").inner_text()


def test_verdicts_stand_beside_their_rule(tab):
    text = tab.locator("#claims").inner_text()
    assert RULE.replace("*", "") in text
    assert {"supported", "refuted", "undecided"} <= set(
        tab.locator("#claims b").all_text_contents()
    )


def test_curves_are_those_that_are_chosen(tab):
    drawn = tab.locator("#rounds g").count()
    tab.get_by_text("Choose methods").click()
    tab.locator("#chosen").get_by_label("SCAFFOLD").check()
    assert tab.locator("#rounds g").count() == drawn + 1
    tab.locator("#chosen").get_by_label("FedSDG", exact=True).uncheck()
    assert "FedSDG" not in tab.locator("#rounds text").all_text_contents()
    tab.select_option("#curve", "accuracy_b")
    assert tab.locator("#rounds g").count() == drawn


def test_dominated_methods_are_grey(tab):
    colours = tab.locator("#budget g").evaluate_all(
        "all => all.map((g) => [g.textContent.split(':')[0], g.getAttribute('stroke')])"
    )
    grey = {title for title, colour in colours if colour == "var(--faint)"}
    assert {"SCAFFOLD", "Centralised ‡"} <= grey
    assert not {"FedRep", "Local only"} & grey


def test_named_lines_of_a_chart_have_colours_of_their_own(tab):
    titles = {row["title"]: name for name, row in record(REFERENCE / "needs").methods.items()}
    for chart in each_chart(tab):
        found = lines(tab, chart)
        assert len({line["colour"] for line in found.values()}) == len(found), chart
        for title in found.keys() & titles.keys():
            known = LOOKS.get(titles[title], ("",))[0].replace("#000000", "var(--ink)")
            assert known in found[title]["colour"]


def test_dashes_tell_lines_apart_where_colours_run_out(tab):
    choose_all(tab)
    found = lines(tab, "#rounds").values()
    assert len(found) == len(record(REFERENCE / "needs").methods)
    assert len({(line["colour"], line["dash"]) for line in found}) == len(found)


def test_named_lines_set_the_scale_and_the_others_are_clipped(tab):
    for chart in each_chart(tab):
        found = lines(tab, chart).values()
        assert min(line["top"] for line in found) == pytest.approx(30, abs=4)
        assert max(line["bottom"] for line in found) == pytest.approx(360, abs=4)
    clips = tab.locator("#budget g[stroke='var(--faint)']").evaluate_all(
        "all => all.map((g) => getComputedStyle(g).clipPath)"
    )
    assert set(clips) == {'url("#budget-axes")'}
    top, height = tab.locator("#budget-axes path").evaluate(
        "path => [path.getBBox().y, path.getBBox().height]"
    )
    assert 26 <= top < top + height <= 364
    assert "may leave the axes" in tab.locator("#bytes").inner_text()


@pytest.mark.parametrize("width", [1400, 390])
def test_a_name_leaves_its_line_only_for_another_name(open_tab, made: Path, width: int):
    tab = open_tab(made, width=width)
    for chart in each_chart(tab):
        found = lines(tab, chart)
        for line in found.values():
            assert line["inside"]
            gaps = [*neighbours(line, found), 99]
            assert min(gaps) > 13.9
            assert line["base"] == pytest.approx(line["end"] + 4, abs=0.1) or min(gaps) < 14.1


@pytest.mark.parametrize("width", [1400, 390])
def test_names_of_all_methods_fit_into_the_picture(open_tab, made: Path, width: int):
    tab = open_tab(made, width=width)
    choose_all(tab)
    for chart in each_chart(tab):
        found = lines(tab, chart)
        assert all(line["inside"] for line in found.values())
        assert max(line["base"] for line in found.values()) < 365
        assert min(gap for line in found.values() for gap in neighbours(line, found)) > 11


def test_the_change_within_a_run_is_not_called_that_of_doubled_rounds(tab):
    head = tab.locator("#board th", has_text="Change, half to all rounds")
    assert head.get_attribute("title") == "change from half to all rounds"


def test_the_keyboard_reaches_opens_and_closes(tab):
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Skip to the leaderboard"
    tab.keyboard.press("Enter")
    tab.locator("#board thead button").nth(1).focus()
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.parentNode.ariaSort") == "ascending"
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    tab.locator("#board tbody button").first.focus()
    tab.keyboard.press("Enter")
    assert tab.locator("#seeds").get_attribute("open") is not None
    tab.keyboard.press("Escape")
    assert tab.locator("#seeds").get_attribute("open") is None
    assert tab.evaluate("document.activeElement.className") == "number"


def test_it_fits_a_phone(open_tab, made: Path):
    tab = open_tab(made, width=390)
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    tab.locator("#board tbody button").first.click()
    box = tab.locator("#seeds").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_it_follows_the_colour_scheme(open_tab, made: Path, scheme, dark):
    tab = open_tab(made, color_scheme=scheme)
    ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    ink = tab.evaluate("getComputedStyle(document.body).color")
    light = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (ground, ink)]
    assert (light[0] < light[1]) is dark


def test_hostile_titles_stay_text(open_tab, tmp_path: Path):
    own = small(tmp_path / "views", seeds=5, titles={"ditto": HOSTILE})
    text = pd.DataFrame({"Method": [HOSTILE], "All": ["**90.0** [1]"]})
    table = Table("ranking", HOSTILE, text, text, (HOSTILE,))
    made = write_page(
        tmp_path / "page.html", [own], root=tmp_path, compared=[table], remark=HOSTILE
    )
    tab = open_tab(made)
    assert tab.locator("img[src=x]").count() == 0
    assert HOSTILE in column(tab, 1)
    assert HOSTILE in tab.locator(".newcomer h1").text_content()
    assert tab.locator(".newcomer b").text_content() == "90.0"
    tab.locator("#board tr", has_text=HOSTILE).locator("button").first.click()
    assert f"trace 'views/iid@invert/{HOSTILE}' accuracy" in tab.locator("#seeds").inner_text()


def test_one_seed_has_no_intervals_and_no_findings(open_tab, tmp_path: Path):
    own = small(tmp_path / "views")
    made, again = (write_page(tmp_path / f"{i}.html", [own], root=ROOT) for i in range(2))
    assert made.read_bytes() == again.read_bytes()
    tab = open_tab(made)
    assert "±" not in tab.locator("#board").inner_text()
    assert tab.locator(".first li, #claims, #figures").count() == 0


def test_arenas_come_first_and_an_empty_folder_is_an_error(tmp_path: Path):
    assert [record.name for record in arenas(REFERENCE)] == [
        "needs",
        "label-skew",
        "views",
    ]
    with pytest.raises(FileNotFoundError, match="no record"):
        arenas(tmp_path)
