"""How long a federation runs, who takes part, and when it is evaluated."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Rounds, cohorts, local epochs and when to evaluate; no ``batch_size`` is a whole shard."""

    rounds: int
    clients_per_round: int
    epochs: int
    batch_size: int | None
    evaluate_every: int
    personal_epochs: int = 0
    #: Whether in these epochs the head alone trains.
    head_alone: bool = False
    #: Epochs of what is private alone on the current model before an evaluation, then discarded.
    refresh: int = 0
    #: Earlier rounds are not evaluated; the last one always is.
    evaluate_from: int = 0
    #: The rounds that are evaluated, in place of every so many; None: every so many.
    evaluate_at: tuple[int, ...] | None = None
    #: What clients' updates of the last round are worth, exactly (and estimated) or only
    #: "estimated"; where the models of all clients go, each beginning at the "shared" model or at
    #: its "own".
    shapley: bool | str = False
    trajectory: str | None = None
    #: Whose models are kept: those after the "last" round, or after the "selected" one, which is
    #: the first of those with the highest mean validation accuracy; None keeps none.
    save: str | None = None
    #: Whether participants' gates are recorded in rounds that are not evaluated, too.
    gates_of_every_round: bool = True

    def due(self, round_: int) -> bool:
        """Whether a round is evaluated: every so many from the first on, and the last one."""
        if self.evaluate_at is None:
            chosen = round_ % self.evaluate_every == 0
        else:
            chosen = round_ in self.evaluate_at
        return (chosen and round_ >= self.evaluate_from) or round_ == self.rounds

    def in_last_quarter(self, round_: int) -> bool:
        """Whether a round counts in what is reported: round > 3R/4."""
        return 4 * round_ > 3 * self.rounds
