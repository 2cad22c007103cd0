"""An attack forges the attackers' rows as its definition says, and touches nothing else."""

import itertools
import sys
from importlib import import_module, util
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from fedsdg.aggregation.types import Context
from fedsdg.experiment.attackers import AttackConfig
from fedsdg.experiment.conditions import parse_conditions
from fedsdg.experiment.examining.attacks import (
    ATTACK,
    attack_repeats,
    attacked_inputs_stay,
    honest_rows_stay,
)
from fedsdg.experiment.examining.findings import OK, examine
from fedsdg.experiment.examining.situations import Case
from fedsdg.federation.environment.attackers import AttackView, choose_attackers
from fedsdg.federation.environment.attacks.corruption import Corruption
from fedsdg.federation.environment.attacks.label_flip import LabelFlip
from fedsdg.federation.environment.attacks.little_is_enough import LittleIsEnough, z_max
from fedsdg.federation.environment.attacks.sign_flip import SignFlip
from fedsdg.methods.choices import ATTACKS


def built(kind, **given):
    section = {"type": kind, "share": 0.2, **given}
    return parse_conditions({"attack": section}).attack.build()


def cohort(seed=0, clients=9, d=40, attackers=3, dtype=torch.float64, mean=1.0):
    """Updates [M, d] around a common direction, who attacks, and what attackers see."""
    rng = np.random.default_rng(seed)
    updates = torch.from_numpy(mean + rng.standard_normal((clients, d))).to(dtype)
    flags = np.zeros(clients, dtype=bool)
    flags[rng.permutation(clients)[:attackers]] = True
    weights = rng.random(clients) + 0.1
    start = torch.from_numpy(rng.standard_normal((clients, d))).to(dtype)
    return updates, flags, AttackView(weights / weights.sum(), start)


def forge(attack, updates, flags, view, seed=7):
    return attack(updates, flags, view, np.random.default_rng(seed))


EVERY = [pytest.param(built(kind), id=kind) for kind in ATTACKS]
EVERY.append(pytest.param(built("corruption", damage="bits", entries=0.5), id="corruption-bits"))
ON_UPDATES = [one for one in EVERY if one.id != "label-flip"]


@pytest.mark.parametrize("attack", EVERY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("attackers", [1, 4, 8])
def test_honest_rows_are_bit_identical_and_the_input_is_not_touched(attack, dtype, attackers):
    honest_rows_stay(attack, Case(9, 40), attackers, dtype)
    attacked_inputs_stay(attack, Case(9, 40), attackers, dtype)


@pytest.mark.parametrize("attack", ON_UPDATES)
def test_attackers_send_something_else(attack):
    updates, flags, view = cohort()
    changed = (forge(attack, updates, flags, view) != updates).any(1).numpy()
    # One damaged entry in a hundred is none of 40.
    if attack != built("corruption"):
        assert np.array_equal(changed, flags)


@pytest.mark.parametrize("attack", EVERY)
def test_without_attackers_nothing_happens(attack):
    updates, flags, view = cohort(attackers=0)
    generator = np.random.default_rng(0)
    assert torch.equal(attack(updates, flags, view, generator), updates)
    assert generator.random() == np.random.default_rng(0).random(), "nothing was drawn"


@pytest.mark.parametrize("attack", EVERY)
def test_a_cohort_of_attackers_alone_is_no_error(attack):
    updates, _, view = cohort(attackers=0, clients=3)
    forged = forge(attack, updates, np.ones(3, dtype=bool), view)
    assert forged.shape == updates.shape


@pytest.mark.parametrize("attack", EVERY)
def test_nothing_shared_is_nothing_to_attack(attack):
    _, flags, view = cohort()
    empty = torch.zeros(9, 0)
    assert forge(attack, empty, flags, AttackView(view.weights, empty)).shape == (9, 0)


@pytest.mark.parametrize("attack", [one for one in EVERY if one.id != "corruption-bits"])
def test_all_that_is_asked_of_other_peoples_attacks(attack):
    """Equal streams give equal attacks, and the rest; flipped bits are no numbers now and then."""
    assert {one.outcome for one in examine("attack", attack, ATTACK)} == {OK}


@pytest.mark.parametrize("attack", EVERY)
def test_equal_streams_give_equal_attacks(attack):
    attack_repeats(attack, Case(9, 40), 3)


@pytest.mark.parametrize(
    "attack", [one for one in EVERY if not one.id.startswith(("gaussian", "corruption"))]
)
def test_order_of_the_clients_does_not_matter(attack):
    updates, flags, view = cohort()
    order = np.random.default_rng(3).permutation(len(flags))
    there = AttackView(view.weights[order], view.start[order])
    forged = forge(attack, updates[order], flags[order], there)
    assert torch.allclose(forged, forge(attack, updates, flags, view)[order], rtol=1e-12)


@pytest.mark.parametrize("scale", [0.5, 100.0])
def test_gaussian_noise_has_the_length_asked_for_and_any_direction(scale):
    updates, flags, view = cohort(d=4000, attackers=4)
    forged = forge(built("gaussian", scale=scale), updates, flags, view)[flags]
    expected = scale * np.median(np.linalg.norm(updates[~flags].numpy(), axis=1))
    assert torch.linalg.vector_norm(forged, dim=1).numpy() == pytest.approx(expected)
    directions = (forged / expected).numpy()
    # Cosines between random directions in 4000 dimensions have standard deviation 0.016.
    cosines = directions @ directions.T
    assert np.abs(cosines[~np.eye(4, dtype=bool)]).max() < 0.1
    assert np.abs(directions @ np.ones(4000) / np.sqrt(4000)).max() < 0.1


@pytest.mark.parametrize(("kind", "factor"), [("sign-flip", -3.0), ("scaling", 3.0)])
def test_multiples_of_the_own_update(kind, factor):
    updates, flags, view = cohort()
    forged = forge(built(kind, scale=3), updates, flags, view)
    assert torch.equal(forged[flags], factor * updates[flags])


def byzfl():
    """byzfl's attacks, without what its own __init__ starts."""
    spec = util.find_spec("byzfl")
    if spec is None:
        pytest.skip("byzfl is not installed")
    package = ModuleType("byzfl")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules.setdefault("byzfl", package)
    return import_module("byzfl.attacks.attacks")


def test_inner_product_and_alie_are_byzfls():
    """Its ALIE estimates the variance from a sample (n − 1), the authors' code does not."""
    others = byzfl()
    updates, flags, view = cohort()
    honest = updates[~flags]
    manipulated = forge(built("inner-product", epsilon=0.7), updates, flags, view)[flags]
    expected = others.InnerProductManipulation(tau=0.7)(honest)
    assert torch.allclose(manipulated, expected.double().expand(3, -1), rtol=1e-5)
    little = forge(built("alie", z=1.5), updates, flags, view)[flags]
    correction = np.sqrt((len(honest) - 1) / len(honest))
    expected = others.ALittleIsEnough(tau=1.5 * correction)(honest)
    assert torch.allclose(little, expected.double().expand(3, -1), rtol=1e-5)


@pytest.mark.parametrize(
    ("clients", "attackers", "share"),
    [
        (50, 24, 24 / 26),  # the paper's example: two supporters are needed, z = 1.43
        (20, 8, 9 / 12),
        (20, 4, 9 / 16),
        (5, 1, 2 / 4),
    ],
)
def test_z_leaves_the_supporters_of_a_majority_beyond_it(clients, attackers, share):
    z = z_max(clients, attackers)
    assert norm.cdf(z) == pytest.approx(share, abs=1e-12)
    beyond = (1 - norm.cdf(z)) * (clients - attackers)
    assert attackers + beyond == pytest.approx(clients // 2 + 1)


def test_z_of_the_papers_example():
    assert z_max(50, 24) == pytest.approx(1.43, abs=5e-3)


@given(clients=st.integers(1, 60), data=st.data())
def test_z_is_finite_for_any_cohort(clients, data):
    z = z_max(clients, data.draw(st.integers(0, clients)))
    assert 0 <= z < 10


def test_alie_by_hand():
    updates = torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, 4.0], [9.0, 9.0]], dtype=torch.float64)
    flags = np.array([False, False, False, True])
    view = AttackView(np.full(4, 0.25), torch.zeros(4, 2))
    forged = forge(built("alie", z=2), updates, flags, view)
    # μ = (2, 2), σ = √(8/3), √2
    assert forged[3].tolist() == pytest.approx([2 + 2 * np.sqrt(8 / 3), 2 + 2 * np.sqrt(2)])


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    clients=st.integers(2, 12),
    scale=st.floats(0, 100),
    data=st.data(),
)
def test_after_replacement_the_weighted_mean_is_the_target(seed, clients, scale, data):
    attackers = data.draw(st.integers(1, clients - 1))
    updates, flags, view = cohort(seed, clients, 30, attackers)
    forged = forge(built("replacement", scale=scale), updates, flags, view).numpy()
    honest = np.average(updates.numpy()[~flags], axis=0, weights=view.weights[~flags])
    step = view.weights @ forged
    rounding = 1e-13 * (1 + scale) * np.abs(forged).max()
    assert np.abs(step + scale * honest).max() <= rounding


def test_replacement_carries_over_to_the_rule_that_the_server_uses():
    from fedsdg.aggregation.rules.mean import Mean

    updates, flags, _ = cohort(clients=5, attackers=1, dtype=torch.float32)
    samples = np.array([10, 20, 30, 25, 15])
    view = AttackView(samples / samples.sum(), torch.zeros(5, 40))
    forged = forge(built("replacement", scale=2), updates, flags, view)
    context = Context(
        round=1,
        clients=np.arange(5),
        num_clients=5,
        num_samples=samples,
        num_batches=samples,
        client_samples=samples,
    )
    step = Mean(weights="samples")({"update": forged}, context, {}).steps[0]
    honest = np.average(updates.numpy()[~flags], axis=0, weights=samples[~flags])
    assert step.numpy() == pytest.approx(-2 * honest, rel=1e-5, abs=1e-5)


def test_replacement_without_any_weight_is_an_error():
    updates, flags, view = cohort()
    weights = np.where(flags, 0.0, 1.0)
    with pytest.raises(ValueError, match="no weight at all"):
        forge(built("replacement"), updates, flags, AttackView(weights, view.start))


@pytest.mark.parametrize("attackers", [1, 3])
def test_blind_replacement_hits_its_target_where_the_others_stay_at_the_aggregate(attackers):
    updates, flags, view = cohort(attackers=attackers)
    own = updates[flags].mean(0)
    updates[~flags] = 0.0
    forged = forge(built("replacement-blind", scale=4), updates, flags, view)
    assert torch.allclose(forged.mean(0), -4 * own, rtol=1e-12)


def test_blind_replacement_knows_nothing_of_the_others():
    updates, flags, view = cohort()
    forged = forge(built("replacement-blind"), updates, flags, view)[flags]
    updates[~flags] *= -17
    others = AttackView(view.weights[::-1].copy(), view.start)
    assert torch.equal(forge(built("replacement-blind"), updates, flags, others)[flags], forged)


@pytest.mark.parametrize("damage", ["noise", "bits"])
@pytest.mark.parametrize("entries", [0.0, 0.1, 1.0])
def test_so_many_entries_are_damaged(damage, entries):
    updates, flags, view = cohort(d=1000, dtype=torch.float32)
    forged = forge(built("corruption", damage=damage, entries=entries), updates, flags, view)
    changed = (forged[flags] != updates[flags]).sum(1)
    # A flipped last bit of a parameter can be lost when the start is subtracted again.
    assert (changed <= round(1000 * entries)).all()
    assert (changed >= round(900 * entries)).all()
    if damage == "noise":
        assert forged.isfinite().all() and (changed == round(1000 * entries)).all()


def test_damaged_entries_are_noise_of_the_parameters_size():
    updates, flags, view = cohort(d=20_000)
    forged = forge(built("corruption", entries=1, scale=3), updates, flags, view)[flags]
    sent = (view.start + updates)[flags]
    sizes = (view.start[flags] + forged).square().mean(1).sqrt() / sent.square().mean(1).sqrt()
    assert sizes.numpy() == pytest.approx(3.0, rel=0.03)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_flipped_bit_is_one_bit(dtype):
    """From a start of 0 what is sent is the update, so its bits can be compared."""
    updates, flags, view = cohort(d=2000, dtype=dtype)
    view = AttackView(view.weights, torch.zeros_like(updates))
    forged = forge(built("corruption", entries=1, damage="bits"), updates, flags, view)[flags]
    kind = np.uint32 if dtype == torch.float32 else np.uint64
    flipped = forged.numpy().view(kind) ^ updates[flags].numpy().view(kind)
    finite = forged.isfinite().numpy()  # subtracting 0 keeps all bits but those of a NaN
    ones = np.array([[int(word).bit_count() for word in row] for row in flipped])
    assert (ones[finite] == 1).all()
    # Exponents of numbers around 1 lack one bit of infinity, which is flipped now and then.
    assert not finite.all() and finite.mean() > 0.9
    width = 8 * forged.element_size()
    assert len(np.unique(flipped[finite])) >= width - 2, "every bit is flipped now and then"


def test_a_server_that_checks_names_the_damaged_upload():
    from fedsdg.aggregation.rules.mean import Mean

    updates, flags, view = cohort(d=2000, dtype=torch.float32)
    forged = forge(built("corruption", entries=1, damage="bits"), updates, flags, view)
    sizes = np.full(9, 10)
    context = Context(1, np.arange(9), 9, sizes, 90, sizes, sizes)
    with pytest.raises(ValueError, match=f"client {np.flatnonzero(flags)[0]}"):
        Mean(weights="uniform")({"update": forged}, context, {})


@pytest.mark.parametrize("kind", ATTACKS)
def test_only_label_flip_changes_labels(kind):
    labels = np.array([0, 3, 9, 5])
    attack = built(kind)
    flipped = attack.labels(labels, 10)
    assert flipped.tolist() == ([9, 6, 0, 4] if kind == "label-flip" else labels.tolist())
    assert labels.tolist() == [0, 3, 9, 5]
    updates, flags, view = cohort()
    if kind == "label-flip":
        assert torch.equal(forge(attack, updates, flags, view), updates)


def test_flip_to_the_next_class():
    assert built("label-flip", to="next").labels(np.array([0, 8, 9]), 10).tolist() == [1, 9, 0]


def test_attackers_are_as_many_as_asked_and_nested():
    for seed in range(20):
        chosen = [choose_attackers(20, n, np.random.default_rng(seed)) for n in (0, 4, 8, 19)]
        assert [int(one.sum()) for one in chosen] == [0, 4, 8, 19]
        assert all((few <= many).all() for few, many in itertools.pairwise(chosen))
    draws = [choose_attackers(20, 4, np.random.default_rng(seed)) for seed in range(400)]
    # Each client attacks in a fifth of the draws: standard deviation 0.02.
    assert np.mean(draws, axis=0) == pytest.approx(0.2, abs=0.08)


@pytest.mark.parametrize("count", [-1, 20, 21])
def test_somebody_must_be_honest(count):
    with pytest.raises(ValueError, match="at least one client must be honest"):
        choose_attackers(20, count, np.random.default_rng(0))


def test_arguments_must_belong_together():
    updates, flags, view = cohort()
    attack = built("sign-flip")
    with pytest.raises(ValueError, match="attackers must be bool"):
        forge(attack, updates, flags[:-1], view)
    with pytest.raises(ValueError, match="attackers must be bool"):
        forge(attack, updates, flags.astype(int), view)
    with pytest.raises(ValueError, match="of the same clients"):
        forge(attack, updates, flags, AttackView(view.weights[1:], view.start))
    with pytest.raises(ValueError, match="of the same clients"):
        forge(attack, updates, flags, AttackView(view.weights, view.start[:, 1:]))


def test_every_row_of_the_table_builds_with_its_defaults():
    for kind, row in ATTACKS.items():
        parameters = {key: parameter.default for key, parameter in row.parameters.items()}
        assert AttackConfig(kind, 0.2, parameters).build() == built(kind)
        assert row.title and row.source
        assert all(parameter.meaning for parameter in row.parameters.values())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SignFlip(-1), "^scale is -1, but must be at least 0$"),
        (lambda: SignFlip(1e7), "^scale is 10000000.0, but must be at most 1000000.0$"),
        (lambda: LittleIsEnough(float("nan")), "^z is nan, but must be at least -1000000.0$"),
        (lambda: Corruption(entries=2), "^entries is 2, but must be at most 1$"),
        (lambda: Corruption(damage="bit"), "^damage is 'bit', but must be one of noise, bits$"),
        (lambda: LabelFlip("any"), "^to is 'any', but must be one of opposite, next$"),
    ],
)
def test_what_an_attack_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
