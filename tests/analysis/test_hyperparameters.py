"""The sentence under tables and figures: what runs had in common, and where they differ."""

import json

from fedsdg.analysis.hyperparameters import hyperparameters


def run(method, seed=0, rounds=20, per_round=5, training=None, **parameters):
    federation = {"rounds": rounds, "clients_per_round": per_round}
    config = {"federation": federation, "parameters": parameters}
    config |= {"training": training} if training else {}
    facts = {"method": method, "seed": seed, "status": "ok", "backbone_hash": "ab" * 32}
    return facts | {"config": json.dumps(config)}


def test_what_differs_is_named() -> None:
    runs = [run("fedavg"), run("krum", f=1), run("scaffold", rounds=10), run("fedavg", seed=1)]
    assert hyperparameters(runs) == (
        "20 rounds (SCAFFOLD: 10); 5 clients per round; Krum: f = 1. Seeds 0–1 (n = 2). "
        "Backbone abababab."
    )


def test_a_method_under_several_scenarios_has_all_its_values() -> None:
    runs = [run("krum", f=f, per_round=n) for f, n in ((0, 20), (4, 20), (8, 19))]
    runs += [run("fedavg", per_round=20)]
    text = hyperparameters(runs)
    assert text.startswith("20 rounds; 20 clients per round (Krum: 19); Krum: f = 0/4/8. ")


def test_what_scenarios_set_for_all_methods_alike_is_listed_once() -> None:
    runs = [run(method, per_round=n) for n in (2, 5, 20) for method in ("fedavg", "scaffold")]
    assert hyperparameters(runs).startswith("20 rounds; 2/5/20 clients per round. Seeds 0 (n = 1).")


def test_a_choice_with_settings_reads_as_words() -> None:
    chosen = {
        "fedavg": {"type": "sgd", "momentum": 0.9, "nesterov": True},
        "scaffold": {"type": "sgd", "momentum": 0.5, "nesterov": False},
        "krum": "adam",
    }
    text = hyperparameters([run(m, training={"optimiser": one}) for m, one in chosen.items()])
    assert "; optimiser adam (FedAvg (samples): sgd with momentum 0.9 and nesterov; " in text
    assert "SCAFFOLD: sgd with momentum 0.5)" in text
    spread = [run("fedprox-inexact", gamma={"low": 0.4, "high": 0.8})]
    assert "FedProx (γ-inexact): γ = 0.4 to 0.8. " in hyperparameters(spread)


def test_a_sweep_names_no_methods() -> None:
    runs = [run(f"fedsdg-{i}", per_round=2 + i % 2, lambda1=0.1 * i) for i in range(30)]
    text = hyperparameters(runs)
    assert text.startswith("20 rounds; 2 clients per round (also 3). Seeds 0 (n = 1).")


def test_what_is_usual_is_named_only_where_something_else_is_there() -> None:
    usual = [run("scaffold", server_rate=1.0), run("fedprox-inexact", gamma=[0.9, 0.7, 0.5])]
    assert "server rate" not in hyperparameters(usual) and "γ =" not in hyperparameters(usual)
    both = [run("scaffold", server_rate=1.0), run("scaffold", server_rate=1.5)]
    assert "SCAFFOLD: server rate = 1/1.5" in hyperparameters(both)
    assert "γ = 0.9/0.5" in hyperparameters([run("fedprox-inexact", gamma=[0.9, 0.5])])
    plain = [run(method, training={"loss": "cross-entropy"}) for method in ("fedavg", "krum")]
    assert "loss" not in hyperparameters(plain)
    mixed = [*plain, run("fedprox", training={"loss": "focal"})]
    assert "loss cross-entropy (FedProx: focal)" in hyperparameters(mixed)
