"""The record of an experiment: all that its tables and figures are made from, or nothing."""

import json
import shutil

import pytest

from fedsdg.analysis.claims import write_claims
from fedsdg.analysis.plots import FIGURES, write_figure
from fedsdg.analysis.record import write_record_hashes
from fedsdg.analysis.summarise import summarise
from fedsdg.analysis.tables import TABLES, write_table
from fedsdg.cli import main
from fedsdg.files import write_json

from .conftest import Plan, write_partitions, write_runs

CELLS = ("dirichlet~0.1", "dirichlet~1.0")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder in which an experiment was computed; a run of its grid was not run."""
    folder = tmp_path_factory.mktemp("computed")
    results = folder / "results"
    plan = Plan(methods=("fedsdg", "fedavg"), seeds=(1, 2))
    runs = write_runs(results / "runs/tried", plan).runs
    for file in runs.rglob("result.json"):
        facts = json.loads(file.read_text())
        facts["config"]["backbone"] = "letters"
        write_json(file, facts)
        # Two machines, told apart by the seed.
        made = {"machine": f"m{facts['seed']}", "wall_seconds": 1.0, "finished": "2026-01-01"}
        write_json(file.with_name("provenance.json"), made)
    write_json(results / "backbones/letters.json", {"accuracy": 0.5})
    write_partitions(results / "partitions", plan)
    wanted = [f"digits/clients~12/{skew}/fedsdg/seed~{seed}" for skew in CELLS for seed in (1, 2)]
    wanted += [f"digits/clients~12/dirichlet~0.1/{name}/seed~1" for name in ("fedavg", "scaffold")]
    summary = results / "summary/tried"
    summarise(runs, summary, wanted)
    for table in TABLES:
        write_table(summary, table, results / "tables/tried" / table)
    write_claims(summary, results / "claims/tried")
    return folder


@pytest.fixture
def computed(built, tmp_path, monkeypatch):
    """A copy of it, as the working folder."""
    shutil.copytree(built, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "results"


@pytest.mark.usefixtures("as_svg")
def test_figures_and_tables_of_the_record_are_those_of_the_results(computed, tmp_path):
    assert main(["record", "tried"]) == 0
    kept = computed / "reference/tried"
    for table in TABLES:
        for file in write_table(kept, table, tmp_path / table)[:2]:
            assert file.read_bytes() == (kept / file.name).read_bytes()
    for figure in FIGURES:
        for name, summary, partitions in (
            ("kept", kept, kept / "partitions"),
            ("own", computed / "summary/tried", computed / "partitions"),
        ):
            files = sorted(partitions.rglob("seed~1.parquet"))
            assert len(files) == len(CELLS)
            write_figure(summary, figure, tmp_path / name / figure, files)
        kept_svg, own_svg = (tmp_path / name / f"{figure}.svg" for name in ("kept", "own"))
        assert kept_svg.read_bytes() == own_svg.read_bytes()


def test_it_holds_provenance_backbone_and_claims_and_the_lowest_seeds_partitions(computed):
    main(["record", "tried"])
    kept = computed / "reference/tried"
    first, second = json.loads((kept / "provenance.json").read_text())
    assert (first["machine"], second["machine"]) == ("m1", "m2")
    place = "digits/clients~12/dirichlet~{}/{}"
    cells = [("0.1", "fedsdg"), ("0.1", "fedavg"), ("1.0", "fedsdg")]
    assert first["runs"] == [f"{place.format(*cell)}/seed~1" for cell in cells]
    assert second["runs"] == [f"{place.format(*cell)}/seed~2" for cell in cells[::2]]
    assert json.loads((kept / "backbones/letters.json").read_text()) == {"accuracy": 0.5}
    assert (kept / "claims.md").read_text() == (computed / "claims/tried.md").read_text()
    found = [str(file.relative_to(kept)) for file in sorted(kept.rglob("seed~*"))]
    assert found == [f"partitions/digits/clients~12/{skew}/seed~1.parquet" for skew in CELLS]


@pytest.mark.usefixtures("as_svg")
def test_it_names_the_tables_and_figures_that_were_made(computed):
    """A record that says that it has no figures has none after a merge."""
    pages = computed / "reference/tried/pages.json"
    main(["record", "tried"])
    assert json.loads(pages.read_text()) == {"tables": sorted(TABLES)}
    write_json(pages, {"figures": [], **json.loads(pages.read_text())})
    write_record_hashes(pages.parent)
    assert main(["record", "tried", "--merge"]) == 0
    assert json.loads(pages.read_text()) == {"figures": [], "tables": sorted(TABLES)}
    for name in ("weights", "gates"):
        write_figure(computed / "summary/tried", name, computed / "figures/tried" / name)
    (pages.parent / "old.md").touch()
    main(["record", "tried"])
    assert json.loads(pages.read_text())["figures"] == ["gates", "weights"]
    assert not (pages.parent / "old.md").exists()
    assert [entry.name for entry in (computed / "reference").iterdir()] == ["tried"]


def test_what_lacks_or_failed_is_one_sentence_and_the_record_stays(computed, refused):
    assert "there is no summary of 'tride'" in refused("record", "tride")
    main(["record", "tried"])
    backbone = computed / "backbones/letters.json"
    backbone.rename(backbone.with_suffix(".lost"))
    assert "backbones/letters.json" in refused("record", "tried")
    backbone.with_suffix(".lost").rename(backbone)
    result = next((computed / "runs/tried").rglob("fedavg/seed~1/result.json"))
    write_json(result, json.loads(result.read_text()) | {"status": "failed", "error": "it fell"})
    summarise(computed / "runs/tried", computed / "summary/tried")
    said = refused("record", "tried")
    assert "1 run(s) of 'tried' failed, the first is digits/" in said
    assert [entry.name for entry in (computed / "reference").iterdir()] == ["tried"]
    assert (computed / "reference/tried/claims.md").is_file()


SEARCH = {"criterion": "accuracy", "seeds": [100], "skews": ["iid"], "methods": {}}


def test_a_record_keeps_the_search_made_here_or_the_one_that_it_had(computed):
    made, tuned = computed / "search/tried.json", computed / "search/tried.tuned.yaml"
    write_json(made, SEARCH)
    tuned.write_text("fedavg: {eta_g: 0.1}\n")
    assert main(["record", "tried"]) == 0
    kept = computed / "reference/tried/search.json"
    assert kept.read_bytes() == made.read_bytes()
    assert "Seeds 100; skews iid" in kept.with_name("tuning.md").read_text()
    made.unlink()
    tuned.unlink()
    assert main(["record", "tried"]) == 0
    assert json.loads(kept.read_text()) == SEARCH
    assert kept.with_name("tuned.yaml").read_text() == "fedavg: {eta_g: 0.1}\n"


def test_values_of_a_search_may_be_there_before_the_first_record(computed) -> None:
    """A search is committed before its runs: what it left is kept, and nothing is merged."""
    target = computed / "reference/tried"
    target.mkdir(parents=True)
    (target / "tuned.yaml").write_text("fedsdg: {eta_g: 0.001}\n")
    write_json(target / "search.json", SEARCH)
    assert main(["record", "tried", "--merge"]) == 0
    assert (target / "runs.parquet").is_file()
    assert (target / "tuned.yaml").is_file()
