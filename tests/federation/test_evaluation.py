"""Accuracies are those of each client's own model, counted one image after another."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedsdg.federation import evaluation
from fedsdg.federation.evaluation import (
    KnownScores,
    global_metrics,
    known_scores,
    losses,
    personal_accuracies,
)
from fedsdg.federation.losses.cross_entropy import CrossEntropy
from fedsdg.federation.losses.focal import Focal
from fedsdg.federation.seen import Seen
from fedsdg.models.parameters import views

CLIENTS = 5
VAL = [np.arange(4 * k, 4 * k + 3) for k in range(CLIENTS)]
TEST = [np.arange(40 + 2 * k, 40 + 2 * k + 2) for k in range(CLIENTS)]
IMAGES = np.arange(60, 120)


def different_views(samples):
    """Clients with images, labels and weights of their own; a weight may be 0."""
    draw = np.random.default_rng(0)
    index = [draw.choice(IMAGES, 20 + 5 * k, replace=False) for k in range(CLIENTS)]
    labels = [(samples.labels.numpy()[own] + k) % 4 for k, own in enumerate(index)]
    weights = [draw.random(len(own)) * (draw.random(len(own)) < 0.5) for own in index]
    return Seen(index, labels, [own / own.sum() for own in weights])


def one_by_one(s, theta, private, trained, index, labels):
    """bool: what a client's model gets right, an image at a time."""
    named = {**views(theta[None], s.layout.communicated), **views(private[None], s.layout.private)}
    answers = [
        int(s.model.logits(s.samples.images[i : i + 1], [1], named, private=trained).argmax())
        for i in index.tolist()
    ]
    return np.array(answers) == labels


@pytest.mark.parametrize("served", ["one model", "a model each"])
@pytest.mark.parametrize("branch", ["none", "dual"])
def test_every_client_is_judged_by_its_own_model_on_what_it_sees(setting, served, branch):
    s = setting(branch=branch)
    generator = torch.Generator().manual_seed(3)
    theta = torch.randn(CLIENTS, s.layout.d, generator=generator, dtype=torch.float64)
    private = torch.randn(CLIENTS, s.layout.d_private, generator=generator, dtype=torch.float64)
    trained = torch.tensor([True, False, True, True, False])
    models = theta[:1].expand(CLIENTS, -1) if served == "one model" else theta
    seen = different_views(s.samples)
    found = personal_accuracies(
        s.model, s.layout, s.samples, VAL, TEST,
        theta[0] if served == "one model" else theta,
        lambda clients: private[clients], trained, seen,
    )  # fmt: skip
    labels = s.samples.labels.numpy()
    assert found.expected is not None
    for k in range(CLIENTS):
        client = (models[k], private[k], bool(trained[k]))
        right = one_by_one(s, *client, seen.index[k], seen.labels[k])
        assert found.expected[k] == pytest.approx((seen.weights[k] * right).sum(), abs=1e-12)
        # Images that weigh nothing are not asked about.
        assert np.array_equal(found.right[k], right & (seen.weights[k] > 0))
        for values, shard in ((found.val, VAL[k]), (found.test, TEST[k])):
            assert values[k] == one_by_one(s, *client, shard, labels[shard]).mean()
    assert len(set(found.expected.tolist())) > 2  # they do differ


@pytest.mark.parametrize(
    "loss",
    [
        cross_entropy,
        Focal(),
        CrossEntropy(label_smoothing=0.2),
        CrossEntropy(class_weights=(0.2, 1.0, 3.0, 7.0)),
    ],
)
def test_the_loss_of_a_model_is_the_mean_over_its_shard(setting, loss):
    """Shards of 1 to 9 images, one of them for two models; the mean is that of PyTorch."""
    s = setting(branch="dual")
    generator = torch.Generator().manual_seed(4)
    theta = torch.randn(4, s.layout.d, generator=generator, dtype=torch.float64)
    private = torch.randn(4, s.layout.d_private, generator=generator, dtype=torch.float64)
    shards = [np.arange(1), np.arange(1, 10), np.arange(10, 15), np.arange(1, 10)]
    found = losses(s.model, s.layout, s.samples, shards, theta, private, loss)
    for k, shard in enumerate(shards):
        named = {
            **views(theta[[k]], s.layout.communicated),
            **views(private[[k]], s.layout.private),
        }
        own = [s.model.logits(s.samples.images[i : i + 1], [1], named) for i in shard.tolist()]
        expected = loss(torch.cat(own), s.samples.labels[shard], reduction="mean")
        assert float(found[k]) == pytest.approx(float(expected), rel=1e-10)


def test_one_model_with_the_labels_of_all_is_as_good_for_everybody_as_it_is_globally(setting):
    s = setting()
    labels = s.samples.labels.numpy()[IMAGES]
    alike = Seen(
        [IMAGES] * CLIENTS, [labels] * CLIENTS, [np.full(len(IMAGES), 1 / len(IMAGES))] * CLIENTS
    )
    theta = torch.randn(s.layout.d, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    found = personal_accuracies(
        s.model, s.layout, s.samples, VAL, TEST, theta, lambda _: s.private[None],
        torch.ones(CLIENTS, dtype=torch.bool), alike,
    )  # fmt: skip
    accuracy, _ = global_metrics(s.model, s.layout, s.samples, IMAGES, theta, s.private)
    assert 0 < accuracy < 1
    assert found.expected == pytest.approx(np.full(CLIENTS, accuracy), abs=1e-12)


def test_known_scores_give_what_the_model_gives_and_ask_it_once_for_an_image(setting):
    s = setting()
    theta = torch.randn(s.layout.d, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    seen = different_views(s.samples)
    asked: list[int] = []

    class Counted:
        effective_weights = s.model.effective_weights

        def forward(self, images, counts, weights):
            asked.append(len(images))
            return s.model.forward(images, counts, weights)

    groups = [np.concatenate([*VAL, *TEST]), IMAGES, np.concatenate(seen.index)]
    known = known_scores(Counted(), s.layout, s.samples, groups, theta, s.private)
    everything = np.unique(np.concatenate(groups))
    assert sum(asked) == len(everything) < sum(map(len, groups))
    others = np.setdiff1d(np.arange(len(s.samples.labels)), everything)
    assert len(others) and known.images[others].isnan().all()

    def judged(model, samples):
        own = personal_accuracies(
            model, s.layout, samples, VAL, TEST, theta, lambda _: s.private[None],
            torch.ones(CLIENTS, dtype=torch.bool), seen,
        )  # fmt: skip
        return own, global_metrics(model, s.layout, samples, IMAGES, theta, s.private)

    (own, overall), (own_known, overall_known) = (
        judged(s.model, s.samples),
        judged(KnownScores(), known),
    )
    for name in ("val", "test", "expected"):
        assert (getattr(own, name) == getattr(own_known, name)).all()
    assert overall_known == pytest.approx(overall, rel=1e-12)


@pytest.mark.parametrize("branch", ["none", "dual"])
def test_clients_that_are_not_asked_for_are_not_judged(setting, branch):
    """Theirs are NaN, and no image is looked at for them; the others' are what they were."""
    s = setting(branch=branch)
    judged = np.array([True, False, True, True, False])
    looked = []

    class Watched:
        effective_weights = s.model.effective_weights

        def forward(self, images, counts, weights):
            looked.append(len(images))
            return s.model.forward(images, counts, weights)

    seen = different_views(s.samples)
    rows = s.private.expand(CLIENTS, -1)
    given = (s.layout, s.samples, VAL, TEST, s.theta, lambda k: rows[k])
    trained = torch.ones(CLIENTS, dtype=torch.bool)
    every = personal_accuracies(s.model, *given, trained, seen)
    some = personal_accuracies(Watched(), *given, trained, seen, judged)
    for name in ("val", "test", "expected"):
        mine, all_ = getattr(some, name), getattr(every, name)
        assert np.isnan(mine[~judged]).all() and np.array_equal(mine[judged], all_[judged])
    chosen = np.flatnonzero(judged)
    own = sum(len(VAL[k]) + len(TEST[k]) for k in chosen)
    if branch == "none":  # one model is asked about an image once, whoever sees it
        weighed = [seen.index[k][seen.weights[k] > 0] for k in chosen]
        assert sum(looked) == own + len(np.unique(np.concatenate(weighed)))
    else:
        assert sum(looked) == own + sum(int((seen.weights[k] > 0).sum()) for k in chosen)


def test_large_images_go_in_smaller_passes_on_a_cpu(setting, monkeypatch):
    s = setting()
    passes = []

    class Watched:
        effective_weights = s.model.effective_weights

        def forward(self, images, counts, weights):
            passes.append(len(images))
            return s.model.forward(images, counts, weights)

    given = (s.layout, s.samples, IMAGES, s.theta, s.private)
    whole = global_metrics(s.model, *given)
    monkeypatch.setattr(evaluation, "CPU_NUMBERS", 7 * s.samples.images[0].numel() + 1)
    accuracy, loss = global_metrics(Watched(), *given)
    assert max(passes) == 7 and sum(passes) == len(IMAGES)
    assert accuracy == whole[0] and loss == pytest.approx(whole[1], rel=1e-12)


def test_without_a_view_nothing_is_expected(setting):
    s = setting()
    found = personal_accuracies(
        s.model, s.layout, s.samples, VAL, TEST, s.theta, lambda _: s.private[None],
        torch.ones(CLIENTS, dtype=torch.bool),
    )  # fmt: skip
    assert found.expected is None and found[np.arange(CLIENTS) < 2].expected is None


def test_an_evaluation_that_does_not_fit_takes_fewer_images_at_once(setting):
    """Twenty images at most: nothing that is found depends on it but by rounding."""
    s = setting(branch="dual")
    rows = torch.randn(CLIENTS, s.layout.d, dtype=torch.float64)
    private = torch.randn(CLIENTS, s.layout.d_private, dtype=torch.float64)

    class Small:
        seen: list[int] = []  # noqa: RUF012

        effective_weights = s.model.effective_weights

        def forward(self, images, counts, weights):
            self.seen.append(len(images))
            if len(images) > 20:
                raise RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED")
            return s.model.forward(images, counts, weights)

    def found(model):
        common = (model, s.layout, s.samples)
        own = personal_accuracies(
            *common, VAL, TEST, rows, lambda k: private[k], torch.ones(CLIENTS, dtype=torch.bool)
        )
        shards = [np.arange(9 * k, 9 * k + 9) for k in range(CLIENTS)]
        return (
            own.val,
            own.test,
            np.array(global_metrics(*common, IMAGES, rows[0], private[0])),
            losses(*common, shards, rows, private, cross_entropy).numpy(),
        )

    for mine, other in zip(found(Small()), found(s.model), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-12)
    assert max(Small.seen) > 20 and Small.seen[-1] <= 20
