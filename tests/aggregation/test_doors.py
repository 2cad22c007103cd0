"""`aggregate` and `fedsdg_server_aggregate`: what they take, what they return, what they refuse."""

import numpy as np
import pytest
import torch

from fedsdg.aggregation import aggregate, fedsdg_server_aggregate, weight_summary
from fedsdg.aggregation.errors import NonFiniteError
from fedsdg.aggregation.rules.alignment import Alignment
from fedsdg.aggregation.rules.krum import Krum
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.rules.screened import Screened

from . import cohorts

THETA = {"w": torch.tensor([1.0, 2.0])}
CLIENTS = [{"w": torch.tensor(w)} for w in ([1.5, 2.3], [1.6, 2.4], [0.5, 1.8])]


def batch_norm():
    """State dictionaries of a small CNN after different numbers of batches."""
    torch.manual_seed(0)
    models = []
    for batches in (0, 3, 5):
        net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
        for _ in range(batches):
            net(torch.randn(4, 1, 5, 5))
        models.append(net.state_dict())
    return models[0], models[1:]


# --- the first specification ---


def test_the_worked_example_of_the_specification():
    parameters, weights = fedsdg_server_aggregate(THETA, CLIENTS)
    assert [round(weight, 3) for weight in weights] == [0.498, 0.502, 0.0]
    assert parameters["w"].tolist() == pytest.approx([1.55016, 2.35016], abs=1e-5)


def test_returns_with_and_without_weights_and_debug():
    alone = fedsdg_server_aggregate(THETA, CLIENTS, return_weights=False)
    assert set(alone) == {"w"}
    parameters, facts = fedsdg_server_aggregate(THETA, CLIENTS, return_weights=False, debug=True)
    assert torch.equal(parameters["w"], alone["w"])
    assert list(facts) == [
        "clients", "weights", "degenerate", "alpha", "cosine", "norms", "clip_factors", "mean",
        "mean_norm", "noise_norm",
    ]  # fmt: skip
    assert facts["mean"]["w"].tolist() == pytest.approx([0.2, 1 / 6])
    assert facts["alpha"].tolist() == pytest.approx([0.98812, 0.99431, 0.0], abs=1e-5)
    assert facts["norms"] == pytest.approx([0.58310, 0.72111, 0.53852], abs=1e-5)
    assert facts["mean_norm"] == pytest.approx(np.hypot(0.2, 1 / 6))
    assert 0 < facts["noise_norm"] < 1e-6 and facts["degenerate"] is False
    by_name, weights = fedsdg_server_aggregate(THETA, {"ada": CLIENTS[0], "bob": CLIENTS[2]})
    assert set(weights) == {"ada", "bob"} and set(by_name) == {"w"}


def test_debug_takes_what_the_door_takes():
    _, weights, facts = fedsdg_server_aggregate(THETA, CLIENTS, debug=True)

    def wrapped(tensors):
        return {"w": torch.nn.Parameter(tensors["w"])}

    def arrays(tensors):
        return {"w": tensors["w"].numpy()}

    for form in (wrapped, arrays):
        made = fedsdg_server_aggregate(form(THETA), [form(c) for c in CLIENTS], debug=True)
        assert made[1] == weights and torch.equal(made[2]["mean"]["w"], facts["mean"]["w"])
        assert made[2]["noise_norm"] == facts["noise_norm"]


def test_no_client_and_one_client():
    parameters, weights, facts = fedsdg_server_aggregate(THETA, [], debug=True)
    assert torch.equal(parameters["w"], THETA["w"]) and parameters["w"] is not THETA["w"]
    assert weights == [] and facts["clients"] == [] and facts["degenerate"] is False
    parameters, weights = fedsdg_server_aggregate(THETA, {"ada": CLIENTS[0]})
    assert torch.equal(parameters["w"], CLIENTS[0]["w"]) and weights == {"ada": 1.0}
    assert aggregate("krum", THETA, []).weights == []
    with pytest.raises(ValueError, match="at least 2f\\+3 = 5 clients per round and has 1"):
        aggregate("krum", THETA, CLIENTS[:1])


def test_opposite_updates_have_equal_weights():
    up = {"w": torch.tensor([2.0, 3.0])}
    down = {"w": torch.tensor([0.0, 1.0])}
    parameters, weights, facts = fedsdg_server_aggregate(THETA, [up, down], debug=True)
    assert weights == [0.5, 0.5] and facts["degenerate"] is True
    assert torch.equal(parameters["w"], THETA["w"])


def test_clip_norm_shortens_updates_first():
    far = {"w": torch.tensor([301.0, 402.0])}  # An update of length 500.
    near = {"w": torch.tensor([1.3, 2.4])}  # Of length 0.5.
    parameters, weights, facts = fedsdg_server_aggregate(
        THETA, [far, near], clip_norm=5, debug=True
    )
    assert facts["clip_factors"] == pytest.approx([0.01, 1.0])
    assert facts["norms"] == pytest.approx([500, 0.5], rel=1e-6)
    assert facts["mean"]["w"].tolist() == pytest.approx([1.65, 2.2], rel=1e-6)
    step = weights[0] * np.array([3.0, 4.0]) + weights[1] * np.array([0.3, 0.4])
    assert parameters["w"].numpy() == pytest.approx(np.array([1.0, 2.0]) + step, rel=1e-6)


def test_a_cap_on_weights():
    _, weights = fedsdg_server_aggregate(THETA, CLIENTS, max_weight=0.4)
    assert weights == pytest.approx([0.4, 0.4, 0.2])
    with pytest.raises(ValueError, match="max_weight=0.2 is below 1/3"):
        fedsdg_server_aggregate(THETA, CLIENTS, max_weight=0.2)
    with pytest.raises(ValueError, match="epsilon"):
        fedsdg_server_aggregate(THETA, CLIENTS, epsilon=0.1)


def test_weight_summary():
    facts = weight_summary(np.array([0.5, 0.25, 0.25, 0.0]))
    assert facts["zeros"] == 1 and facts["max"] == 0.5 and facts["min"] == 0
    assert facts["mean"] == 0.25 and facts["std"] == pytest.approx(np.sqrt(1 / 32))
    assert facts["entropy"] == pytest.approx(1.5 * np.log(2))
    with pytest.raises(ValueError, match="at least one client"):
        weight_summary(np.zeros(0))


# --- forms ---


def test_parameters_come_back_in_their_form():
    array = np.array([1.0, 2.0])
    arrays = [np.array([2.0, 2.0]), np.array([4.0, 4.0])]
    assert aggregate("fedavg-uniform", array, arrays).parameters.tolist() == [3.0, 3.0]
    matrix = aggregate("fedavg-uniform", array, np.array(arrays))
    assert isinstance(matrix.parameters, np.ndarray) and matrix.weights == [0.5, 0.5]
    layers = aggregate("fedavg-uniform", (array,), [(a,) for a in arrays])
    assert isinstance(layers.parameters, tuple) and layers.parameters[0].tolist() == [3.0, 3.0]
    ids = aggregate("fedavg-uniform", array, {"a": arrays[0], 7: arrays[1]})
    assert ids.weights == {"a": 0.5, 7: 0.5}
    grads = torch.ones(2, requires_grad=True)
    made = aggregate("fedavg-uniform", grads, [grads, grads]).parameters
    assert made.tolist() == [1.0, 1.0] and not made.requires_grad


def test_equal_clients_give_exactly_their_parameters():
    theta, clients = cohorts.drawn(seed=2)
    for rule in ("fedavg-uniform", "fedsdg", "geometric-median", "multikrum", "trimmed-mean"):
        made = aggregate(rule, theta, [clients[0]] * 7).parameters
        assert all(np.array_equal(made[name], clients[0][name]) for name in theta)


def test_rows_of_a_config_and_rule_objects():
    theta, clients = cohorts.drawn(size=9)
    by_row = aggregate({"type": "krum", "f": 3, "name": "Krum, f = 3"}, theta, clients)
    by_rule = aggregate(Krum(f=3), theta, clients)
    assert by_row.diagnostics["winner"] == by_rule.diagnostics["winner"]
    assert by_row.diagnostics["score"].tolist() == by_rule.diagnostics["score"].tolist()
    assert by_row.weights[by_row.diagnostics["winner"]] == 1.0


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ("multikrun", "the package has no rule 'multikrun'; did you mean 'multikrum'"),
        ("median", "did you mean 'geometric-median' or 'coordinate-median'"),
        ({"type": "krum", "g": 1}, "rule krum has an unknown key 'g'"),
        ({"type": "krum", "f": -1}, "rule krum.f is -1, but must be at least 0"),
        ({"type": "fedavg-uniform", "weights": "samples"}, "unknown key 'weights'"),
        ({"type": 3}, "rule has the type 3"),
        ("focus", "reads losses"),
        ("pens", "serves clients with several models"),
        (Krum, "rule is the class Krum; give an instance"),
        (3.5, "rule is a float; give a name"),
    ],
)
def test_what_is_no_rule(rule, sentence):
    with pytest.raises(ValueError, match=sentence):
        aggregate(rule, THETA, CLIENTS)


# --- buffers and ties ---


def test_batch_norm_counters_take_the_largest_client_value():
    theta, clients = batch_norm()
    made = aggregate("fedsdg", theta, clients)
    assert made.parameters["1.num_batches_tracked"].item() == 5
    assert made.parameters["1.num_batches_tracked"].dtype == torch.int64
    running = torch.stack([c["1.running_mean"] for c in clients])
    expected = torch.tensor(made.weights) @ running
    assert torch.allclose(made.parameters["1.running_mean"], expected, atol=1e-7)
    (remark,) = made.remarks
    assert "'1.num_batches_tracked'" in remark and "largest client value" in remark
    kept = aggregate("fedsdg", theta, clients, buffers="global")
    assert kept.parameters["1.num_batches_tracked"].item() == 0
    with pytest.raises(ValueError, match="'1.num_batches_tracked': integers and booleans"):
        aggregate("fedsdg", theta, clients, buffers="refuse")
    with pytest.raises(ValueError, match="buffers='most': use one of largest, global, refuse"):
        aggregate("fedsdg", theta, clients, buffers="most")


def test_masks_are_joined_by_or_and_buffers_are_no_part_of_norms():
    theta = {"w": np.zeros(2), "mask": np.array([False, False]), "n": np.array([1, 5])}
    clients = [
        {"w": np.array([3.0, 4.0]), "mask": np.array([True, False]), "n": np.array([9, 2])},
        {"w": np.array([6.0, 8.0]), "mask": np.array([False, False]), "n": np.array([7, 3])},
    ]
    made = aggregate("fedsdg", theta, clients)
    assert made.parameters["mask"].tolist() == [True, False]
    assert made.parameters["n"].tolist() == [9, 3]
    assert made.diagnostics["update_norm"] == pytest.approx([5.0, 10.0])
    assert made.parameters["w"] == pytest.approx([4.5, 6.0])
    assert clients[0]["n"].tolist() == [9, 2]


def test_a_dropped_client_has_no_say_in_buffers():
    theta = {"w": torch.zeros(2), "n": torch.tensor(0)}
    clients = [
        {"w": torch.ones(2), "n": torch.tensor(3)},
        {"w": torch.ones(2), "n": torch.tensor(9)},
    ]
    clients[1]["w"][0] = torch.nan
    made = aggregate("fedavg-uniform", theta, clients, on_nonfinite="drop")
    assert made.parameters["n"].item() == 3


def test_a_blocked_client_has_no_say_in_buffers():
    theta = {"w": torch.zeros(2), "n": torch.tensor(0)}
    clients = [{"w": torch.ones(2) + k / 9, "n": torch.tensor(k)} for k in range(6)]
    clients[5]["w"] *= -50
    rule = Screened(inner=Mean(weights="uniform"), strikes=1)
    made = aggregate(rule, theta, clients, num_clients=6)
    assert made.weights[5] == 0 and made.parameters["n"].item() == 4
    state = {**made.state, "blocked": torch.ones(6, dtype=torch.int64)}
    clients[0]["w"][0] = torch.nan
    made = aggregate(rule, theta, clients, num_clients=6, round=2, state=state)
    assert made.parameters["n"].item() == 0 and not made.parameters["w"].any()


def test_tied_weights_count_once_and_stay_tied():
    def net(values):
        shared = torch.tensor(values)
        return {"embedding": shared, "head": shared, "b": torch.tensor([1.0])}

    theta = net([0.0, 0.0])
    clients = [net([3.0, 4.0]), net([6.0, 8.0])]
    made = aggregate("fedsdg", theta, clients)
    assert made.diagnostics["update_norm"] == pytest.approx([5.0, 10.0])
    assert made.parameters["embedding"].data_ptr() == made.parameters["head"].data_ptr()
    assert made.parameters["head"].tolist() == pytest.approx([4.5, 6.0])
    again = aggregate("fedsdg", made.parameters, clients, out=made.parameters)
    assert again.parameters["head"] is made.parameters["head"]
    untied = [{**client, "head": client["head"].clone()} for client in clients]
    norms = aggregate("fedsdg", theta, untied).diagnostics["update_norm"]
    assert norms == pytest.approx([5 * 2**0.5, 10 * 2**0.5])
    square = torch.zeros(2, 2)
    turned = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    made = aggregate("fedsdg", {"a": square, "b": square}, [{"a": turned, "b": turned.mT}])
    assert torch.equal(made.parameters["b"], turned.mT)


# --- counts, ids and state ---


def test_counts_by_list_mapping_and_array():
    for samples in ([1, 2, 1], {0: 1, 1: 2, 2: 1}, np.array([1, 2, 1]), torch.tensor([1, 2, 1])):
        made = aggregate("fedavg", THETA, CLIENTS, num_samples=samples)
        assert made.weights == [0.25, 0.5, 0.25]
    looked_up = aggregate("fedavg", THETA, {2: CLIENTS[0], 0: CLIENTS[1]}, client_samples=[3, 9, 1])
    assert looked_up.weights == {2: 0.25, 0: 0.75}
    batches = aggregate(Mean(weights="batches"), THETA, CLIENTS, num_batches=[0, 1, 3])
    assert batches.weights == [0, 0.25, 0.75]


@pytest.mark.parametrize(
    ("samples", "sentence"),
    [
        (None, "weighs clients by num_samples"),
        ([1, 2], "give a list of one count per client"),
        ([1, 2, -1], "client 2: the count in num_samples is -1"),
        ([1, True, 1], "client 1: the count in num_samples is True"),
        ([1, "3", 1], "client 1: the count in num_samples is '3'"),
        ([1, float("nan"), 1], "client 1: the count in num_samples is nan"),
        ([0, 0, 0], "with a positive sum"),
        ({0: 1, 1: 2}, "client 2: the count in num_samples is None"),
        (7, "num_samples is 7; give a list"),
    ],
)
def test_counts_that_are_refused(samples, sentence):
    with pytest.raises(ValueError, match=sentence):
        aggregate("fedavg", THETA, CLIENTS, num_samples=samples)


def test_a_client_with_zero_samples_weighs_nothing_but_its_nan_is_found():
    assert aggregate("fedavg", THETA, CLIENTS, num_samples=[1, 0, 1]).weights == [0.5, 0, 0.5]
    broken = [CLIENTS[0], {"w": torch.tensor([torch.nan, 0])}]
    with pytest.raises(NonFiniteError, match="client 1: tensor 'w' has 1 non-finite values"):
        aggregate("fedavg", THETA, broken, num_samples=[1, 0])


def test_a_state_goes_in_and_out():
    first = aggregate("cgsv", THETA, CLIENTS, client_samples=[1, 1, 2])
    assert set(first.state) == {"r", "participations"}
    second = aggregate("cgsv", THETA, {2: CLIENTS[0]}, num_clients=3, state=first.state, round=2)
    assert second.state["participations"].tolist() == [1, 1, 2]
    assert first.state["participations"].tolist() == [1, 1, 1]
    for state, sentence in (
        ({"r": first.state["r"]}, "state is .*, expected \\['r', 'participations'\\]"),
        ({**first.state, "r": torch.ones(2)}, "state 'r' is a Tensor, expected finite"),
        ({**first.state, "r": first.state["r"] * torch.nan}, "expected finite"),
        ({**first.state, "r": [1, 2, 3]}, "state 'r' is a list"),
        (5, "state is 5, expected"),
    ):
        with pytest.raises(ValueError, match=sentence):
            aggregate("cgsv", THETA, CLIENTS, num_clients=3, state=state)
    with pytest.raises(ValueError, match="the rule keeps none"):
        aggregate("fedsdg", THETA, CLIENTS, state=first.state)


@pytest.mark.parametrize(
    ("clients", "facts", "sentence"),
    [
        (CLIENTS, {}, "starts from the clients' shares"),
        (
            {"ada": CLIENTS[0]},
            {"client_samples": [1, 2]},
            "the rule keeps a state by client, and .*ada.* do not say",
        ),
        (CLIENTS[:2], {"client_samples": [1, 2, 3]}, "do not say which of the 3 clients they are"),
        ({5: CLIENTS[0]}, {"client_samples": [1, 2]}, "must be in 0 … 1"),
        (CLIENTS, {"client_samples": [1, 2, 3], "num_clients": 4}, "do not fit 3 clients"),
        (CLIENTS, {"client_samples": [1]}, "do not fit 3 clients"),
        (CLIENTS, {"client_samples": [0, 0, 0]}, "not all 0"),
        (CLIENTS, {"client_samples": [1, 2, 3], "round": 0}, "round=0 must be a whole number"),
    ],
)
def test_clients_that_a_rule_with_a_state_cannot_know(clients, facts, sentence):
    with pytest.raises(ValueError, match=sentence):
        aggregate("cgsv", THETA, clients, **facts)


def test_further_uploads_are_sorted_by_client():
    theta, clients = cohorts.drawn(size=3)
    zero = {name: np.zeros_like(v) for name, v in theta.items()}
    ids = ["c", "a", "b"]
    sent = dict(zip(ids, clients, strict=True))
    control = {"a": zero, "b": zero, "c": clients[0]}
    made = aggregate(
        "scaffold", theta, {0: clients[0], 1: clients[1], 2: clients[2]}, num_clients=6,
        uploads={"control": {2: zero, 1: zero, 0: clients[0]}},
    )  # fmt: skip
    assert made.state["control"].numpy() == pytest.approx(cohorts.flat(clients[0]) / 6, rel=1e-6)
    with pytest.raises(ValueError, match="upload 'control' is of the clients"):
        aggregate("scaffold", theta, sent, uploads={"control": {"a": zero}})
    with pytest.raises(ValueError, match="upload 'update'"):
        aggregate("fedsdg", theta, sent, uploads={"update": control})
    with pytest.raises(ValueError, match="upload 'control' has 0 rows for 3 clients"):
        aggregate("scaffold", theta, clients, num_clients=3)
    with pytest.raises(ValueError, match="uploads is a str; give a mapping"):
        aggregate("fedsdg", theta, sent, uploads="control")
    with pytest.raises(ValueError, match="upload 'control' is a NoneType; give a list"):
        aggregate("fedsdg", theta, sent, uploads={"control": None})


# --- what is refused, by client and tensor ---


def changed(**tensors):
    return [CLIENTS[0], {**CLIENTS[1], **tensors}]


@pytest.mark.parametrize(
    ("clients", "sentence"),
    [
        ([CLIENTS[0], {}], "client 1: tensor 'w' is missing"),
        (changed(v=torch.ones(1)), "client 1: tensor 'v' is not in global_params"),
        (changed(w=torch.ones(3)), "client 1: tensor 'w' is torch.float32 of shape \\(3,\\)"),
        (changed(w=torch.ones(2).double()), "client 1: tensor 'w' is torch.float64 of shape"),
        (changed(w=torch.ones(2, dtype=torch.complex64)), "client 1: tensor 'w' is complex"),
        (changed(w=torch.ones(2).to_sparse()), "client 1: tensor 'w' is torch.float32, torch.spa"),
        (changed(w=torch.ones(2, device="meta")), "client 1: tensor 'w' is .* on meta"),
        (changed(w=[1.0, 2.0]), "client 1: 'w' is a list; convert it"),
        (changed(w=np.ma.masked_array([1.0, 2.0])), "client 1: 'w' is a MaskedArray"),
        ([CLIENTS[0], [torch.ones(2)]], "client 1: parameters are a list, global_params is a dict"),
        ("ada", "client_params is a str"),
        (None, "client_params is a NoneType"),
        (changed(w=torch.tensor([1.0, torch.inf])), "client 1: tensor 'w' has 1 non-finite"),
    ],
)
def test_what_clients_may_not_send(clients, sentence):
    for rule in ("fedavg-uniform", "fedsdg", "coordinate-median", "geometric-median"):
        with pytest.raises(ValueError, match=sentence):
            aggregate(rule, THETA, clients)


@pytest.mark.parametrize(
    ("theta", "sentence"),
    [
        ({}, "no floating tensors"),
        ({"n": torch.ones(2, dtype=torch.int64)}, "no floating tensors"),
        (3, "global parameters: 'parameters' is a int"),
        ({"w": np.array(["a"])}, "global parameters: array 'w' has dtype <U1"),
        ({"w": np.ones(2, ">f4")}, "array 'w' has dtype >f4"),
        ({"w": np.ones(2, "c8")}, "array 'w' has dtype <c8"),
        ({"w": torch.tensor([1.0, torch.nan])}, "global parameters: tensor 'w' has 1 non-finite"),
    ],
)
def test_what_global_parameters_may_not_be(theta, sentence):
    with pytest.raises(ValueError, match=sentence):
        aggregate("fedsdg", theta, [theta, theta])


def test_parameters_of_the_server_that_no_step_reads_may_be_nan():
    theta = {"w": torch.tensor([torch.nan, 2.0])}
    made = aggregate("fedavg-uniform", theta, CLIENTS).parameters["w"]
    assert made.tolist() == pytest.approx([1.2, 6.5 / 3])
    faulty = [*CLIENTS, {"w": torch.tensor([torch.nan, 2.0])}]
    made = aggregate("coordinate-median", theta, faulty, on_nonfinite="drop")
    assert made.parameters["w"].tolist() == pytest.approx([1.5, 2.3])


def test_tensors_without_numbers():
    for kind in (np.zeros, torch.zeros):
        theta = {"w": kind(2), "none": kind((0, 3))}
        clients = [{"w": kind(2) + k, "none": kind((0, 3))} for k in (1.0, 2.0)]
        for out in (None, {"w": kind(2), "none": kind((0, 3))}):
            made = aggregate("fedavg-uniform", theta, clients, out=out).parameters
            assert made["w"].tolist() == [1.5, 1.5] and made["none"].shape == (0, 3)


def test_dropping_leaves_clients_out_of_everything():
    clients = [*CLIENTS, {"w": torch.tensor([torch.nan, torch.inf])}]
    made = aggregate("fedsdg", THETA, clients, on_nonfinite="drop")
    assert made.dropped == {3: {"w": 2}} and made.weights[3] == 0.0
    assert np.isnan(made.diagnostics["cosine"][3])
    fewer = aggregate("fedsdg", THETA, CLIENTS)
    assert torch.equal(made.parameters["w"], fewer.parameters["w"])
    with pytest.raises(
        NonFiniteError, match="no client is left, for all hold non-finite values: client 0"
    ):
        aggregate("fedsdg", THETA, clients[3:], on_nonfinite="drop")
    for choice in ("skip", np.ones((2, 2))):
        with pytest.raises(ValueError, match="on_nonfinite=.*: use one of raise, drop"):
            aggregate("fedsdg", THETA, CLIENTS, on_nonfinite=choice)
    with pytest.raises(ValueError, match="needs at least 2f\\+3 = 5 .* has 4"):
        aggregate("krum", THETA, [*CLIENTS, CLIENTS[0], clients[3]], on_nonfinite="drop")


def test_a_nan_in_a_further_upload_drops_its_client():
    control = [{"w": torch.zeros(2)} for _ in range(3)]
    control[1]["w"][0] = torch.nan
    given = {"num_clients": 3, "uploads": {"control": control}}
    with pytest.raises(NonFiniteError, match="client 1: tensor 'control: w' has 1"):
        aggregate("scaffold", THETA, CLIENTS, **given)
    made = aggregate("scaffold", THETA, CLIENTS, on_nonfinite="drop", **given)
    assert made.dropped == {1: {"control: w": 1}} and made.weights == [0.5, 0.0, 0.5]
    by_id = dict(enumerate(CLIENTS))
    given["uploads"] = {"control": {k: control[k] for k in (1, 2, 0)}}
    assert aggregate("scaffold", THETA, by_id, on_nonfinite="drop", **given).dropped == made.dropped


def test_norms_beyond_float64_are_an_error_that_names_the_update():
    theta = np.zeros(3)
    clients = [np.ones(3), np.full(3, 1e200), np.ones(3), np.ones(3), np.ones(3)]
    for rule in ("fedsdg", "krum", "geometric-median", "cgsv"):
        with pytest.raises(NonFiniteError, match="client 1: the norm of the update exceeds 1e150"):
            aggregate(rule, theta, clients, client_samples=[1] * 5)
    assert aggregate("coordinate-median", theta, clients).parameters.tolist() == [1, 1, 1]
    near = [np.ones(3), np.full(3, 1e140), np.ones(3)]
    assert np.isfinite(aggregate("fedsdg", theta, near).parameters).all()


def test_an_overflowing_result_is_an_error():
    theta = {"w": torch.full((2,), 60000.0, dtype=torch.float16)}
    clients = [{"w": torch.full((2,), 60000.0, dtype=torch.float16)}] * 3
    made = aggregate({"type": "scaffold", "server_rate": 1.0}, theta, clients,
                     num_clients=3, uploads={"control": clients})  # fmt: skip
    assert made.parameters["w"].tolist() == [60000, 60000]
    half = {"w": torch.full((2,), 40000.0, dtype=torch.float16)}
    with pytest.raises(NonFiniteError, match="overflows torch.float16; use a wider dtype"):
        aggregate({"type": "scaffold", "server_rate": 3.0}, half, clients,
                  num_clients=3, uploads={"control": clients})  # fmt: skip


# --- out ---


def test_out_is_refused_where_it_overlaps_or_cannot_be_written():
    room = torch.zeros(5)
    theta = {"a": torch.zeros(2), "b": torch.zeros(2)}
    clients = [{"a": torch.ones(2), "b": torch.ones(2)}]
    for out, sentence in (
        ({"a": room[:2], "b": room[1:3]}, "out: tensors share memory"),
        ({"a": torch.zeros(1).expand(2), "b": room[:2]}, "'a' cannot be written to in place"),
        ({"a": room[:2]}, "out: tensor 'b' is missing"),
        ({"a": room[:2], "b": room[2:5]}, "out: tensor 'b' is torch.float32 of shape"),
    ):
        with pytest.raises(ValueError, match=sentence):
            aggregate("fedavg-uniform", theta, clients, out=out)
    shared = {"a": room[:2], "b": room[2:4]}
    moved = [{"a": room[1:3], "b": torch.ones(2)}]
    with pytest.raises(ValueError, match="out overlaps 'a' of client 0"):
        aggregate("fedavg-uniform", theta, moved, out=shared)
    fixed = np.zeros(2)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="cannot be written to"):
        aggregate("fedavg-uniform", np.zeros(2), [np.ones(2)], out=fixed)
    with pytest.raises(ValueError, match="cannot be written to"):
        aggregate("fedavg-uniform", np.zeros(2), [np.ones(2)], out=np.zeros(2)[::-1])


def test_out_may_be_strided_and_is_untouched_by_a_client_with_nan():
    theta, clients = cohorts.drawn(seed=4)
    out = cohorts.expanded(cohorts.tensors(theta))
    given = [cohorts.tensors(client) for client in clients]
    made = aggregate("coordinate-median", cohorts.tensors(theta), given, out=out)
    fresh = aggregate("coordinate-median", theta, clients)
    assert np.array_equal(cohorts.flat(made.parameters), cohorts.flat(fresh.parameters))
    base = cohorts.tensors(theta)
    given[2]["a.b"][0] = torch.nan
    for rule in ("fedavg-uniform", "coordinate-median", "fedsdg"):
        with pytest.raises(NonFiniteError, match="client 2: tensor 'a.b'"):
            aggregate(rule, base, given, out=base)
        assert np.array_equal(cohorts.flat(base), cohorts.flat(theta))
        dropped = aggregate(rule, base, given, out=cohorts.tensors(theta), on_nonfinite="drop")
        assert dropped.dropped == {2: {"a.b": 1}}


def test_scope_adapters_compares_without_the_head():
    theta, clients = cohorts.drawn(seed=6)
    made = aggregate(Alignment(scope="adapters"), theta, clients)
    adapters = [{n: v for n, v in p.items() if n != "head.w"} for p in (theta, *clients)]
    norms = np.linalg.norm(cohorts.updates(adapters[0], adapters[1:]), axis=1)
    assert made.diagnostics["update_norm"] == pytest.approx(norms)
    big = {"a": np.zeros(1), "head.w": np.zeros(1)}
    sent = [{"a": np.array([0.5]), "head.w": np.array([100.0])}] * 3
    clipped = aggregate(Alignment(scope="adapters", clip_norm=1.0), big, sent).parameters
    assert np.hypot(clipped["a"][0], clipped["head.w"][0]) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="all tensors belong to the head"):
        aggregate(Alignment(scope="adapters"), {"head.w": np.ones(1)}, [{"head.w": np.ones(1)}])


def test_nothing_given_is_modified():
    theta, clients = cohorts.drawn(seed=8)
    before = [cohorts.flat(p).copy() for p in (theta, *clients)]
    for rule in ("fedsdg", "krum", "coordinate-median", "geometric-median"):
        aggregate(rule, theta, clients)
    assert all(
        np.array_equal(a, cohorts.flat(p)) for a, p in zip(before, (theta, *clients), strict=True)
    )
