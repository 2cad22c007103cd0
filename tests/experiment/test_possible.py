"""What methods cannot do in a federation is said before anything runs, by their own parts."""

from pathlib import Path

import pytest
import yaml

from fedsdg.cli import main
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.possible import require_possible

DEFAULT = Path(__file__).parents[2] / "config" / "config.yaml"


@pytest.fixture
def raw():
    given = yaml.safe_load(DEFAULT.read_text())
    return given | {"search": {}}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"type": "krum", "f": 4}, r"f=4 needs at least 2f\+3 = 11 clients per round and has 10"),
        ({"type": "trimmed-mean", "f": 5}, r"f=5 needs at least 2f\+1 = 11 clients"),
        ({"type": "multikrum", "f": 2, "m": 9}, "m=9 must be at most n - f = 8; lower m or f"),
        ({"type": "fedsdg", "max_weight": 0.05}, "max_weight=0.05 is below 1/10"),
        ({"type": "cgsv-xu"}, "10 of the 20 take part; set clients_per_round"),
        ({"type": "semi-global", "partials": 4}, "must be at most clusters = 3; lower partials"),
        ({"type": "fedsdg", "private_norm": "residual", "private_subspace": "shared-a"},
         "private_norm: residual cannot be combined with private_subspace: shared-a"),
        ({"type": "fedprox-inexact", "gamma_by": "speed"}, "but all clients are equally fast; set"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_named_with_its_method(raw, entry, message):
    raw["federation"]["clients_per_round"] = 10
    config = parse_config({**raw, "methods": ["fedavg", {**entry, "name": "mine"}]})
    with pytest.raises(ValueError, match=f"^methods: mine: .*{message}") as caught:
        require_possible(config)
    assert "\n" not in str(caught.value)
    require_possible(config, "fedavg")


def test_each_rule_has_its_own_bound_of_attackers(raw):
    """Of 10 clients per round Krum withstands 3, a trimmed mean 4."""
    raw["federation"]["clients_per_round"] = 10
    raw["methods"] = [{"type": "trimmed-mean", "f": 4}, {"type": "krum", "f": 3}]
    raw["methods"] += [{"type": "multikrum", "f": 2, "m": 8}]
    require_possible(parse_config(raw))


def test_a_scenario_may_ask_too_much(raw):
    raw["methods"] = ["fedavg", "krum"]
    raw["scenarios"] = {"usual": {}, "many": {"parameters": {"f": 9}}}
    with pytest.raises(ValueError, match="methods: krum: .* f=9 needs"):
        require_possible(parse_config(raw))


def test_clients_of_unequal_speed_have_a_gamma_by_speed(raw):
    raw["methods"] = [{"type": "fedprox-inexact", "gamma_by": "speed"}]
    raw["conditions"] = {"compute": {"slowest": 1, "fastest": 16}}
    require_possible(parse_config(raw))
    raw["conditions"] = {"compute": {"slowest": 2, "fastest": 2}}
    with pytest.raises(ValueError, match="equally fast"):
        require_possible(parse_config(raw))


def test_commands_say_it_before_they_do_anything(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    asked = ["methods=[fedavg, {type: krum, f: 9}]"]
    for command in (["check"], ["run", "--grid"], ["search"]):
        assert main([*command, "--set", *asked]) == 2
        error = capsys.readouterr().err
        assert "methods: krum: " in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())
