"""What holds for every optimiser and every loss."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsdg.experiment.examining.findings import Failure, Inapplicable, Property
from fedsdg.federation.losses import Loss
from fedsdg.federation.optimisers import Rate, RowOptimiser

RATE = 0.03
CLIENTS, COLUMNS, STEPS = 3, 7, 6
#: How many steps each of the clients takes: longest first, as they stand in training.
TAKEN = (6, 4, 1)


def _drawn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


class Moving:
    """Rows [n, d] on their way, with what the optimiser remembers of them and their step counts."""

    def __init__(self, optimiser: RowOptimiser, start: Tensor, rate: Rate = RATE) -> None:
        self.optimiser, self.rate, self.rows = optimiser, rate, start.clone()
        self.memory = {name: torch.zeros_like(start) for name in optimiser.memory}
        self.steps = torch.zeros(len(start), 1, dtype=torch.float64)

    def step(self, gradients: Tensor) -> None:
        """Move the first rows, one for each of the gradients."""
        count = len(gradients)
        memory = {name: value[:count] for name, value in self.memory.items()}
        steps = self.steps[:count].add_(1)
        self.optimiser.move(self.rows[:count], gradients, self.rate, memory, steps)


def rows_move_alone(optimiser: RowOptimiser) -> str:
    """A client is moved as by an optimiser of its own, whoever stands beside it.

    In the last step clients go together that have taken different numbers of steps.
    """
    start, gradients = _drawn(CLIENTS, COLUMNS), _drawn(STEPS + 1, CLIENTS, COLUMNS, seed=1)
    together = Moving(optimiser, start)
    for step in range(STEPS):
        together.step(gradients[step, : sum(step < taken for taken in TAKEN)])
    together.step(gradients[STEPS])
    for k, taken in enumerate(TAKEN):
        alone = Moving(optimiser, start[k : k + 1])
        for step in (*range(taken), STEPS):
            alone.step(gradients[step, k : k + 1])
        off = float((alone.rows[0] - together.rows[k]).abs().max())
        if not torch.allclose(alone.rows[0], together.rows[k], rtol=1e-9, atol=1e-12):
            raise Failure(
                f"after {taken + 1} steps client {k} is elsewhere than alone, by up to {off:.3g}"
            )
    return f"{CLIENTS} clients with {', '.join(str(taken + 1) for taken in TAKEN)} steps"


def gradients_stay(optimiser: RowOptimiser) -> str:
    """The gradients are read and not written."""
    gradient = _drawn(CLIENTS, COLUMNS, seed=1)
    given, moving = gradient.clone(), Moving(optimiser, _drawn(CLIENTS, COLUMNS))
    for step in range(2):
        moving.step(given)
        if not torch.equal(given, gradient):
            raise Failure(f"step {step + 1} changes the gradients in place")
    return "2 steps"


def rates_are_of_columns(optimiser: RowOptimiser) -> str:
    """A rate per column moves each column as that rate alone does; by rate 0 nothing moves."""
    start, gradients = _drawn(CLIENTS, 2), _drawn(3, CLIENTS, 2, seed=1)
    by_column = Moving(optimiser, start, torch.tensor([RATE, 0.0], dtype=torch.float64))
    by_all = Moving(optimiser, start)
    for gradient in gradients:
        by_column.step(gradient)
        by_all.step(gradient)
    if not torch.allclose(by_column.rows[:, 0], by_all.rows[:, 0], rtol=1e-9, atol=1e-12):
        raise Failure("a column moves otherwise where another column has another rate")
    if not torch.equal(by_column.rows[:, 1], start[:, 1]):
        raise Failure("a column with the rate 0 moves")
    return "2 columns, one with the rate 0"


def moves_stay_finite(optimiser: RowOptimiser) -> str:
    """Of finite gradients, those of 0 too, come finite numbers."""
    for size in (0.0, 1e-30, 1.0):
        gradient = (size * _drawn(CLIENTS, COLUMNS, seed=1)).float()
        moving = Moving(optimiser, _drawn(CLIENTS, COLUMNS).float())
        for step in range(3):
            moving.step(gradient)
            if not torch.isfinite(moving.rows).all():
                raise Failure(
                    f"gradients of size {size:g} lead to NaN or infinity in step {step + 1}"
                )
    return "gradients of size 0, 1e-30 and 1 in float32"


def steps_go_downhill(optimiser: RowOptimiser) -> str:
    """Along the gradients of ½‖x‖² every client comes nearer to 0."""
    start = _drawn(CLIENTS, COLUMNS)
    moving = Moving(optimiser, start)
    for _ in range(STEPS):
        moving.step(moving.rows.clone())
    shares = moving.rows.norm(dim=1) / start.norm(dim=1)
    if not bool((shares < 1).all()):
        raise Failure(
            f"after {STEPS} steps along the gradients of ½‖x‖² a client is "
            f"{float(shares.max()):.3g} times as far from the minimum as before"
        )
    return f"{STEPS} steps on ½‖x‖²"


ROWS_ALONE = "no client depends on another"
OPTIMISER = (
    Property(
        "finite gradients move finitely",
        moves_stay_finite,
        "divide by no number that may be 0: add a small one",
    ),
    Property(
        "it goes downhill",
        steps_go_downhill,
        "move by `descend(parameters, direction, rate)`, which goes against the direction",
    ),
    Property(
        ROWS_ALONE,
        rows_move_alone,
        "work row by row, remember in `memory` alone, and let `step` be [n, 1]",
    ),
    Property("gradients stay as they are", gradients_stay, "write into `parameters` and `memory`"),
    Property(
        "a rate is that of its column",
        rates_are_of_columns,
        "move by `descend(parameters, direction, rate)`",
        (ROWS_ALONE,),
    ),
)

SAMPLES = 6


def _classes(loss: Loss) -> int:
    """A number of classes that the loss takes."""
    for classes in (4, 2, 3, *range(5, 21), 47, 62, 100, 200):
        try:
            loss.require_classes(classes)
        except ValueError as error:
            refused = error
        else:
            return classes
    raise Inapplicable(f"it refuses every number of classes that was tried ({refused})")


def _scored(loss: Loss, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    classes = _classes(loss)
    labels = torch.arange(SAMPLES) % classes
    return scale * _drawn(SAMPLES, classes), labels


def a_loss_of_each_sample(loss: Loss) -> str:
    """[B] finite numbers."""
    logits, labels = _scored(loss)
    each = loss(logits, labels, reduction="none")
    if tuple(each.shape) != (SAMPLES,):
        raise Failure(f"the loss of {SAMPLES} samples has the shape {list(each.shape)}")
    if not torch.isfinite(each).all():
        raise Failure("the loss of random logits is not finite")
    return f"{SAMPLES} samples of {logits.shape[1]} classes"


def samples_stand_alone(loss: Loss) -> str:
    """A sample alone, or in another place, has the loss that it has among the others."""
    logits, labels = _scored(loss)
    each = loss(logits, labels, reduction="none")
    order = torch.arange(SAMPLES).flip(0)
    moved = loss(logits[order], labels[order], reduction="none")
    if not torch.allclose(moved, each[order], rtol=1e-9, atol=1e-12):
        raise Failure("in the opposite order samples have other losses")
    for k in range(SAMPLES):
        alone = loss(logits[k : k + 1], labels[k : k + 1], reduction="none")
        if not torch.allclose(alone[0], each[k], rtol=1e-9, atol=1e-12):
            raise Failure(
                f"sample {k} alone has the loss {float(alone[0]):.4g}, but {float(each[k]):.4g} "
                "among others"
            )
    return f"{SAMPLES} samples, alone and in the opposite order"


def right_answers_cost_less(loss: Loss) -> str:
    """From equal scores, higher ones of the right classes lower the mean loss of the samples."""
    logits, labels = _scored(loss, 0.0)
    surer = logits.clone()
    surer[torch.arange(SAMPLES), labels] += 0.5
    rise = loss(surer, labels, reduction="none") - loss(logits, labels, reduction="none")
    if rise.mean() > 0:
        raise Failure(
            f"the mean loss rises by {float(rise.mean()):.3g} when the score of each sample's "
            "class rises to 0.5, and the others are 0"
        )
    return f"{SAMPLES} samples"


def slope_is_that_of_the_loss(loss: Loss) -> str:
    """What is propagated back is the derivative, by finite differences."""
    logits, labels = _scored(loss)

    def value(scores: Tensor) -> Tensor:
        return loss(scores, labels, reduction="none")

    if not value(logits.clone().requires_grad_()).requires_grad:
        raise Failure("no gradient comes back from it")
    try:
        torch.autograd.gradcheck(value, (logits.clone().requires_grad_(),))
    except RuntimeError as error:
        said = " ".join(str(error).split()[:30])
        raise Failure(f"its gradient is not its derivative: {said}") from error
    return "by finite differences in float64"


def slopes_stay_finite(loss: Loss) -> str:
    """Certain or wrong beyond what float32 tells apart, a sample has a finite loss and gradient."""
    for scale in (1.0, 30.0, 1000.0):
        logits, labels = _scored(loss, scale)
        scores = logits.float().requires_grad_()
        each = loss(scores, labels, reduction="none")
        each.sum().backward()
        if not torch.isfinite(each).all() or not torch.isfinite(scores.grad).all():  # type: ignore[arg-type]
            raise Failure(f"logits of size {scale:g} in float32 lead to NaN or infinity")
    return "logits of size 1, 30 and 1000 in float32"


def samples_weigh_something(loss: Loss) -> str:
    """``weigh`` gives a positive number for each sample, or None."""
    _, labels = _scored(loss)
    weights = loss.weigh(labels)
    if weights is None:
        return "all samples weigh the same"
    if tuple(weights.shape) != (SAMPLES,):
        raise Failure(f"the weights of {SAMPLES} samples have the shape {list(weights.shape)}")
    if not torch.isfinite(weights).all() or not bool((weights > 0).all()):
        raise Failure("a weight is not a positive number")
    return f"{SAMPLES} samples"


EACH = "it has a finite loss for each sample"
ALONE = "no sample depends on another"
LOSS = (
    Property(EACH, a_loss_of_each_sample, "return [B], one number for each row of the logits"),
    Property(
        ALONE,
        samples_stand_alone,
        "samples of several clients stand in one batch: work row by row",
    ),
    Property(
        "a right answer costs less",
        right_answers_cost_less,
        "look at the sign: clients minimise it",
        (ALONE,),
    ),
    Property(
        "its gradient is its derivative",
        slope_is_that_of_the_loss,
        "use operations of torch on the logits, or mend `backward`",
        (ALONE,),
    ),
    Property(
        "far from right it stays finite",
        slopes_stay_finite,
        "use log_softmax, or clamp what goes into a logarithm or a power",
    ),
    Property(
        "every sample weighs something",
        samples_weigh_something,
        "return [n] positive weights, or None",
    ),
)
