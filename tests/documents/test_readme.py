"""README and findings lead to what they speak of; `fedsdg verify` compares what they say."""

import re
from pathlib import Path

from sklearn.datasets import load_digits

from fedsdg.experiment.config_files import load_config
from fedsdg.experiment.grid.runs import grid_runs
from fedsdg.files.places import ARENAS, CROSS, shipped
from fedsdg.methods.families import METHODS

ROOT = Path(__file__).parents[2]


def test_every_file_that_the_readme_links_to_is_there():
    readme = (ROOT / "README.md").read_text()
    links = [t for t in re.findall(r"\]\(([^)#]+)\)", readme) if not t.startswith("http")]
    assert len(links) > 5
    assert [target for target in links if not (ROOT / target).exists()] == []


def test_it_counts_methods_and_runs_as_they_are(tmp_path):
    readme = (ROOT / "README.md").read_text()
    assert int(re.search(r"(\d+) methods", readme)[1]) == len(METHODS)
    configs = {arena: load_config([shipped(file)]) for arena, file in ARENAS.items()}
    said = re.search(r"(\d+) of them, in (\d+) rows, .* and (\d+) in `views`", readme, re.DOTALL)
    crossed, rows, alone = map(int, said.groups())
    for arena in CROSS:
        assert rows == len(configs[arena].methods)
        assert crossed == len({method.type for method in configs[arena].methods})
    assert alone == len(configs["views"].methods)
    few = tmp_path / "few.yaml"
    few.write_text("seeds: [3, 4, 5]\n")
    made = [load_config([shipped(ARENAS[arena]), "reproduced", few]) for arena in CROSS]
    for config in made:
        assert [configs[config.experiment].method(one.label) for one in config.methods] == [
            *config.methods
        ]
    small = [load_config([name]) for name in ("views", "every-method", "every-condition")]
    runs = sum(len(grid_runs(config, tmp_path)) for config in (*made, *small))
    pages = readme, (ROOT / "docs/running.md").read_text()
    assert [int(re.search(r"(\d+) runs", page)[1]) for page in pages] == [runs, runs]


def test_its_first_lines_say_what_is_measured_on_what():
    first = " ".join((ROOT / "README.md").read_text().split("\n\n")[1].split())
    config, digits = load_config(), load_digits()
    images, size, _ = digits.images.shape
    clients = config.federation.clients
    said = f"{clients} clients share {images:,} handwritten digits of {size}×{size} pixels"
    assert said in first and "small vision transformer, pretrained on rendered letters" in first
    assert config.datasets == ("digits",) and config.trainable == "adapters"
    assert config.backbones[config.backbone]["data"] == "letters"


def test_every_file_that_the_findings_link_to_is_there():
    page = (ROOT / "docs/findings.md").read_text()
    links = [t for t in re.findall(r"\]\(([^)#]+)\)", page) if not t.startswith("http")]
    assert [target for target in links if not (ROOT / "docs" / target).exists()] == []
