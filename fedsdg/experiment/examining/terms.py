"""What holds for every term of an objective, on rows of clients drawn at random in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedsdg.experiment.examining.findings import (
    Failure,
    Inapplicable,
    Property,
    Suspicion,
    counted,
)
from fedsdg.federation.terms import Term
from fedsdg.federation.training import Columns, Rows
from fedsdg.models import Layout

CLIENTS = 3
SEEDS = (0, 1, 2)
STEP = 1e-6
STEPS, RATE = (4, 7, 2), 0.1


class Placed(NamedTuple):
    """A term in its method: whose parameters it sees, and what the method's server sends."""

    term: Term
    layout: Layout
    received: Sequence[str] = ()


def rows_of(placed: Placed, seed: int, clients: int = CLIENTS) -> Rows:
    """Rows without gradients; equal seeds give equal bytes."""
    generator = torch.Generator().manual_seed(seed)
    layout = placed.layout

    def draw(width: int) -> Tensor:
        return torch.randn(clients, width, generator=generator, dtype=torch.float64)

    theta, private = draw(layout.d), draw(layout.d_private)
    return Rows(
        theta=theta,
        private=private,
        theta_grad=torch.zeros_like(theta),
        private_grad=torch.zeros_like(private),
        start=draw(layout.d),
        kept={name: draw(layout.d) for name in placed.term.keeps},
        received={name: draw(layout.d) for name in placed.received},
        memory={},
        log_shares=None,
        columns=Columns.from_layout(layout),
    )


def has(term: Term, *names: str) -> bool:
    """Whether the term defines one of these methods itself."""
    return any(getattr(type(term), name) is not getattr(Term, name) for name in names)


def works(placed: Placed, seed: int) -> None:
    """Value, gradient, correction and what is sent in the end can be computed."""
    _all_of(placed, rows_of(placed, seed), torch.tensor(STEPS))


def gradient_is_that_of_the_value(placed: Placed, seed: int) -> None:
    """What the term adds to gradients is the derivative of its value, with ``correct`` or without.

    By automatic differentiation in every entry; and along one direction by finite differences,
    for a value may hide from the former what it depends on.
    """
    term = placed.term
    if has(term, "correct") and not has(term, "value"):
        raise Inapplicable("it changes gradients by `correct`, and states no `value` of that")
    if not has(term, "value", "add_gradient"):
        raise Inapplicable("it has neither a value nor a gradient")
    added, corrected = rows_of(placed, seed), rows_of(placed, seed)
    for rows in (added, corrected):
        term.add_gradient(rows)
    term.correct(corrected)
    try:
        _require_derivative(placed, seed, corrected)
    except Failure:
        if not has(term, "correct"):
            raise
        try:  # A value may be of what is added before the correction alone.
            _require_derivative(placed, seed, added)
        except Failure:
            pass
        else:
            return
        raise


def _require_derivative(placed: Placed, seed: int, rows: Rows) -> None:
    """``Failure`` unless the gradients in ``rows`` are the derivative of the value."""
    differentiated = _differentiated(placed, seed)
    for row in ("shared", "private"):
        values, gradient = rows.row(row)
        if not values.shape[1]:
            continue
        slopes, expected = _slopes(placed, seed, row, gradient)
        scale = max(1.0, float(slopes.abs().max()))
        if not torch.allclose(expected, slopes, rtol=1e-4, atol=1e-5 * scale):
            k = int((expected - slopes).abs().argmax())
            raise Failure(
                f"along a direction the value of client {k} rises by {float(slopes[k]):.6g}, but "
                f"its gradient in the {row} parameters says {float(expected[k]):.6g} (seed {seed})"
            )
        exact = differentiated.get(row)
        if exact is not None and not torch.allclose(gradient, exact, rtol=1e-8, atol=1e-10):
            k, column = divmod(int((gradient - exact).abs().argmax()), gradient.shape[1])
            raise Failure(
                f"the gradient of client {k} in {row} parameter {column} is "
                f"{float(gradient[k, column]):.6g}, but the derivative of the value is "
                f"{float(exact[k, column]):.6g} (seed {seed})"
            )


def _differentiated(placed: Placed, seed: int) -> dict[str, Tensor]:
    """The derivatives by automatic differentiation; nothing where the value has no graph."""
    rows = rows_of(placed, seed)
    rows.theta.requires_grad_()
    rows.private.requires_grad_()
    value = placed.term.value(rows)
    if not value.requires_grad:
        return {}
    found = torch.autograd.grad(value.sum(), (rows.theta, rows.private), allow_unused=True)
    given = {"shared": (rows.theta, found[0]), "private": (rows.private, found[1])}
    return {n: torch.zeros_like(x) if g is None else g for n, (x, g) in given.items()}


def _slopes(placed: Placed, seed: int, row: str, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Slopes [a] of the value along a direction by finite differences, and by the gradient."""
    draw = torch.Generator().manual_seed(seed + 100)
    direction = torch.randn(gradient.shape, generator=draw, dtype=torch.float64)
    values = []
    for sign in (1, -1):
        rows = rows_of(placed, seed)
        rows.row(row)[0].add_(direction, alpha=sign * STEP)
        values.append(placed.term.value(rows).detach())
    return (values[0] - values[1]) / (2 * STEP), (gradient * direction).sum(1)


def value_is_a_number_of_each(placed: Placed, seed: int) -> None:
    """[a] finite numbers."""
    value = placed.term.value(rows_of(placed, seed))
    if tuple(value.shape) != (CLIENTS,):
        raise Failure(f"the value of {CLIENTS} clients has the shape {list(value.shape)}")
    if not torch.isfinite(value).all():
        raise Failure(f"the value of random parameters is not finite (seed {seed})")


def clients_stand_alone(placed: Placed, seed: int) -> None:
    """A client alone gets the value, the gradient and the vectors that it gets beside others."""
    together = _all_of(placed, rows_of(placed, seed), torch.tensor(STEPS))
    for k in range(CLIENTS):
        row = rows_of(placed, seed).take(slice(k, k + 1))
        alone = _all_of(placed, row, torch.tensor(STEPS[k : k + 1]))
        for name, value in alone.items():
            if not torch.allclose(value[0], together[name][k], rtol=1e-9, atol=1e-12):
                raise Failure(
                    f"client {k} alone has another {name} than beside {CLIENTS - 1} others "
                    f"(seed {seed})"
                )


def _all_of(placed: Placed, rows: Rows, steps: Tensor) -> dict[str, Tensor]:
    term = placed.term
    found = {"value": term.value(rows)}
    term.add_gradient(rows)
    term.correct(rows)
    found |= {"gradient": rows.theta_grad, "private gradient": rows.private_grad}
    uploads, kept = term.finish(rows, steps, RATE)
    found |= {f"upload {name!r}": value for name, value in uploads.items()}
    return found | {f"kept vector {name!r}": value for name, value in kept.items()}


def gradient_is_added(placed: Placed, seed: int) -> None:
    """What stands in the gradients already stays in them."""
    before = rows_of(placed, seed + 50)
    plain, upon = rows_of(placed, seed), rows_of(placed, seed)
    placed.term.add_gradient(plain)
    upon.theta_grad.copy_(before.theta)
    upon.private_grad.copy_(before.private)
    placed.term.add_gradient(upon)
    for what, found, own, there in (
        ("theta_grad", upon.theta_grad, plain.theta_grad, before.theta),
        ("private_grad", upon.private_grad, plain.private_grad, before.private),
    ):
        if not torch.allclose(found, there + own, rtol=1e-9, atol=1e-12):
            raise Failure(
                f"{what} loses what stood in it, the gradient of the loss: where that is "
                f"{float(there[0, 0]):.4g} and the term's own {float(own[0, 0]):.4g}, it becomes "
                f"{float(found[0, 0]):.4g} (seed {seed})"
            )


def rows_stay(placed: Placed, seed: int) -> None:
    """But for the gradients nothing is written to."""
    rows, before = rows_of(placed, seed), rows_of(placed, seed)
    _all_of(placed, rows, torch.tensor(STEPS))
    for name in ("theta", "start", "private"):
        if not torch.equal(getattr(rows, name), getattr(before, name)):
            raise Failure(f"{name} is changed in place (seed {seed})")
    for what in ("kept", "received"):
        for name, value in getattr(before, what).items():
            if not torch.equal(getattr(rows, what)[name], value):
                raise Failure(f"{what}[{name!r}] is changed in place (seed {seed})")


def keeps_what_it_declares(placed: Placed, seed: int) -> None:
    """Uploads and kept vectors are [a, d]; only what ``keeps`` names is kept."""
    term, d = placed.term, placed.layout.d
    if not has(term, "finish"):
        raise Inapplicable("it sends nothing beside the update")
    uploads, kept = term.finish(rows_of(placed, seed), torch.tensor(STEPS), RATE)
    if more := sorted(set(kept) - set(term.keeps)):
        raise Failure(f"`finish` keeps {', '.join(more)}, but `keeps` names {list(term.keeps)}")
    if more := sorted(set(term.reset_after_absence) - set(term.keeps)):
        raise Failure(f"`reset_after_absence` names {', '.join(more)}, but `keeps` does not")
    for name, value in {**uploads, **kept}.items():
        if tuple(value.shape) != (CLIENTS, d):
            raise Failure(
                f"{name!r} of {CLIENTS} clients with {d} parameters is {list(value.shape)}"
            )
        if not torch.isfinite(value).all():
            raise Failure(f"{name!r} of random parameters is not finite (seed {seed})")


def kept_vectors_are_read(placed: Placed, seed: int) -> None:
    """Warn about a vector that clients keep for the term and that changes nothing it computes."""
    first = _all_of(placed, rows_of(placed, seed), torch.tensor(STEPS))
    for name in placed.term.keeps:
        rows = rows_of(placed, seed)
        rows.kept[name].mul_(-0.5).add_(1.0)
        second = _all_of(placed, rows, torch.tensor(STEPS))
        changed = {what for what, value in first.items() if not torch.equal(value, second[what])}
        if not changed - {f"kept vector {name!r}"}:
            raise Suspicion(
                f"clients keep {name!r}, but neither the value, the gradient nor what is sent "
                "depends on it"
            )


def _everywhere(holds: Callable[[Placed, int], None]) -> Callable[[Placed], str]:
    def over(placed: Placed) -> str:
        if not placed.layout.d + placed.layout.d_private:
            raise Inapplicable("clients have no parameters")
        for seed in SEEDS:
            holds(placed, seed)
        size = placed.layout.d + placed.layout.d_private
        return f"{counted(CLIENTS, 'client')} with {counted(size, 'parameter')}, {len(SEEDS)} times"

    return over


TERM_WORKS = "it works on the method's parameters"
TERM_ALONE = "no client depends on another"
TERM_KEEPS = "it keeps and sends what it declares"
TERM = (
    Property(
        TERM_WORKS,
        _everywhere(works),
        "a term sees rows [clients, d] of what is shared and [clients, d_p] of what is private",
    ),
    Property(
        "its gradient is the derivative of its value",
        _everywhere(gradient_is_that_of_the_value),
        "look at signs and factors of `add_gradient`, and state the whole `value`",
    ),
    Property(
        "its value is one finite number a client",
        _everywhere(value_is_a_number_of_each),
        "sum over the columns, `.sum(1)`, and over nothing else",
    ),
    Property(
        TERM_ALONE,
        _everywhere(clients_stand_alone),
        "work row by row: sums and norms along dimension 1 alone",
    ),
    Property(
        "it adds to the gradient",
        _everywhere(gradient_is_added),
        "write `rows.theta_grad.add_(…)`, not `copy_` or `=`",
    ),
    Property(
        "parameters and vectors stay as they are",
        _everywhere(rows_stay),
        "change `theta_grad` and `private_grad` alone, and what you have made yourself",
    ),
    Property(
        TERM_KEEPS,
        _everywhere(keeps_what_it_declares),
        "return from `finish` vectors [clients, d], and name in `keeps` what stays",
    ),
    Property(
        "kept vectors are read",
        _everywhere(kept_vectors_are_read),
        'read `rows.kept["name"]`, or leave the name out of `keeps`',
    ),
)
