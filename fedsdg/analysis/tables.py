"""The tables of a record, each declared once: its metrics, its numbers, its words."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd

from fedsdg.analysis import statistics
from fedsdg.analysis.layout import Table, amount, arranged, points
from fedsdg.analysis.means import (
    BEST,
    HEADS,
    WHERE,
    best,
    failures,
    headed,
    heading,
    in_order,
    interval_over,
    means,
    printed,
    seeds,
    tidy,
)
from fedsdg.analysis.metrics import METRICS, SUMS, values
from fedsdg.analysis.names import cell_title, is_oracle, method_order, method_title
from fedsdg.analysis.records import KEY, Record
from fedsdg.analysis.records import record as opened
from fedsdg.analysis.settings import settings, tuning
from fedsdg.analysis.variance import variance
from fedsdg.errors import hint

GROUPS = ("accuracy_a", "accuracy_b", "accuracy_new")
COSTS = (
    *("megabytes", "client_storage"),
    *("communicated_parameters", "private_parameters"),
    *("local_steps", "personal_steps", "wall_seconds", "aggregation_ms"),
)
STRAGGLERS = ("simulated_seconds", *SUMS)
GATES = (
    *("gate", "gate_a", "gate_b", "gates_closed", "gates_open"),
    *("private_share", "private_share_a", "private_share_b"),
    *("gate_penalty_late", "private_penalty_late"),
)
DETECTION = ("precision", "recall", "delay", "wrongly_blocked")
#: Whose accuracy is the yardstick of the target, and the percentage of it that the target is.
YARDSTICK, TARGET = "fedavg-uniform", 95
#: Evaluations that a smoothed accuracy is the mean of: this one and those before it.
SMOOTHED = 3
_NUMBERS = ["n", "mean", "std", "low", "high"]


def main(record: Record) -> Table:
    """Return accuracies of clients and of the shared model, and what twice the rounds change.

    The change is that of the record length-… of the experiment, if it stands beside this one, else
    from half of the rounds to all of them.
    """
    longer = record.folder.with_name(f"length-{record.name}")
    measured = opened(longer) if (longer / "runs.parquet").is_file() else record
    numbers = pd.concat([means(record, [*HEADS]), means(measured, ["doubled"])], ignore_index=True)
    shown = headed(numbers[(numbers["at"] != "end") | (numbers["metric"] == "accuracy")])
    caption = (
        "Accuracy (%) of clients' own models on the global test set as each client sees it, "
        f"{WHERE}; end: mean of the last quarter; shared model: what is communicated, alone. "
        f"{interval_over(numbers)}; {BEST}."
    )
    return Table("main", caption, numbers, arranged(shown, printed, best=best), failures(record))


def subject(record: Record) -> str:
    """Return the method that the others are subtracted from: FedSDG, or the first eligible."""
    methods = sorted(record.runs["method"].unique(), key=method_order)
    eligible = [name for name in methods if not is_oracle(name)] or methods
    return "fedsdg" if "fedsdg" in methods else eligible[0]


def paired(record: Record, metrics: Sequence[str], of: str) -> pd.DataFrame:
    """Return a method minus every other one, paired by seed, in each metric and reading.

    Args:
        record: The experiment.
        metrics: Names of ``METRICS``.
        of: The method.

    Returns:
        ``KEY``, ``rival``, ``metric``, ``at``, ``n``, ``mean``, ``std``, ``low``, ``high``.
    """
    found = statistics.differences(
        tidy(record, metrics), of, ["experiment", "cell", "metric", "at"]
    )
    columns = [*KEY, "rival", "metric", "at", *_NUMBERS]
    return in_order(found.assign(method=of)[columns], "rival")


def differences(record: Record) -> Table:
    """Return the subject minus every other method."""
    of = subject(record)
    numbers = paired(record, [*HEADS], of)
    wanted = ["accuracy", *GROUPS[:2], "accuracy_shared"]
    shown = headed(numbers[(numbers["at"] == "selected") & numbers["metric"].isin(wanted)])
    text = arranged(shown, points, line="rival", heading=f"{method_title(of)} minus")
    caption = (
        f"{method_title(of)} minus every other method, percentage points, paired by seed, {WHERE}: "
        f"mean [95 % interval] over {seeds(numbers)}; above 0, {method_title(of)} is better."
    )
    return Table("differences", caption, numbers, text)


def regrets(records: Sequence[Record], metric: str = "accuracy") -> pd.DataFrame:
    """Return points below the best method of every cell, at each reading.

    Args:
        records: The experiments.
        metric: In which the methods are compared.

    Returns:
        ``KEY``, ``metric`` ("regret", or "regret_METRIC" of another than accuracy), ``at``, ``n``,
        ``mean``, ``std``, ``low``, ``high``, ``tied`` (see ``statistics.regret``), ``oracle``.
    """
    parts = [pd.DataFrame(columns=[*KEY, "at", "value", "tied"])]
    for record in records:
        for _, values_there in tidy(record, [metric]).groupby(["cell", "at"], sort=False):
            oracles = [label for label in values_there["method"].unique() if is_oracle(label)]
            gaps = statistics.regret(values_there, oracles)
            parts.append(gaps.merge(values_there.drop(columns="value"), on=["method", "seed"]))
    name = "regret" if metric == "accuracy" else f"regret_{metric}"
    gaps = pd.concat(parts).assign(metric=name).astype({"value": float, "tied": bool})
    numbers = statistics.interval(gaps, [*KEY, "metric", "at", "tied"])
    numbers = numbers.assign(oracle=numbers["method"].map(is_oracle))
    return in_order(numbers[[*KEY, "metric", "at", *_NUMBERS, "tied", "oracle"]])


def regret(records: Sequence[Record], metric: str = "accuracy") -> Table:
    """Return points below the best method of every cell; the smallest worst regret stands first.

    Args:
        records: The experiments.
        metric: In which the methods are compared.
    """
    numbers = regrets(records, metric)
    names = [record.name for record in records]
    shown = numbers[numbers["at"] == "selected"]
    shown = shown.sort_values("experiment", key=lambda own: own.map(names.index), kind="stable")
    worst = shown.groupby("method")["mean"].max()
    heads = shown["experiment"] + ", " + shown["cell"].map(cell_title)
    text = arranged(
        shown.assign(head=heads),
        partial(points, sign=""),
        setting="metric",
        best=lambda rows: rows["tied"],
        order=lambda label: worst[label],
    )
    caption = (
        f"Percentage points of {METRICS[metric].title} below the best method of a cell, {WHERE}, "
        f"the best chosen on the other seeds: mean [95 % interval] over {seeds(shown)}. Bold: a "
        "paired test cannot tell it from the best (Holm, 5 %); ‡: an oracle, never the best."
    )
    return Table("regret", caption, numbers, text)


def cost(record: Record) -> Table:
    """Return bytes, parameters, steps, time and memory, and what a target accuracy takes."""
    numbers = pd.concat([means(record, COSTS), to_target(record)], ignore_index=True)
    text = arranged(headed(numbers), lambda row: amount(row["mean"]))
    caption = (
        f"Costs of a run, means over {seeds(numbers)}; target: {TARGET} % of the accuracy of "
        f"FedAvg (uniform), reached by the mean over {SMOOTHED} evaluations."
    )
    return Table("cost", caption, numbers, text)


def to_target(record: Record) -> pd.DataFrame:
    """Return what it takes until the mean accuracy over seeds reaches that of the yardstick.

    A method is there at its first evaluation at which the mean, smoothed over ``SMOOTHED``
    evaluations, is at least ``TARGET`` percent of what the yardstick has at its selected round; one
    that never is has no row.

    Returns:
        ``KEY``, ``metric`` (``rounds_to_target``, ``megabytes_to_target``), ``at``, ``n``,
        ``mean``.
    """
    rows = record.rows("rounds", ["round", "accuracy", "bytes_up", "bytes_down"])
    rows = rows.sort_values("round", kind="stable")
    sent = rows[["bytes_up", "bytes_down"]].sum(axis=1) / 1e6
    costs = ["rounds_to_target", "megabytes_to_target"]
    rows[costs] = pd.concat([rows["round"], sent.groupby(rows["run"]).cumsum()], axis=1)
    evaluated = rows.dropna(subset=["accuracy"]).groupby([*KEY, "round"])
    curves = evaluated[["accuracy", *costs]].mean().assign(n=evaluated.size()).reset_index()
    smooth = curves.groupby(KEY)["accuracy"].transform(lambda a: a.rolling(SMOOTHED, 1).mean())
    final = values(record, "accuracy").query("method == @YARDSTICK").groupby("cell")["value"].mean()
    reached = curves[100 * smooth >= curves["cell"].map(final).astype(float) * TARGET / 100]
    first = reached.groupby(KEY, as_index=False).first()
    long = first.melt([*KEY, "n"], costs, "metric", "mean").dropna(subset=["mean"])
    return in_order(long.assign(at="")[[*KEY, "metric", "at", "n", "mean"]])


def scenarios(record: Record) -> pd.DataFrame:
    """Return attack, share of attackers and the cell without attackers of every cell.

    Two cells belong together where skew, federation and all conditions but the attack agree.

    Returns:
        ``cell``, ``attack``, ``share``, ``clean`` (missing where no cell is without attackers).
    """
    rows = []
    for _, run in record.finished.drop_duplicates("cell").iterrows():
        config = json.loads(run["config"])
        conditions = dict(config.get("conditions") or {})
        attack = conditions.pop("attack", None) or {}
        skew, _, scenario = run["cell"].partition("@")
        kind = scenario.partition("~")[0] if "~" in scenario else attack.get("type", "")
        around = json.dumps([skew, conditions, config["federation"]], sort_keys=True)
        facts = {"attack": kind, "share": float(attack.get("share") or 0), "around": around}
        rows.append({"cell": run["cell"], **facts})
    frame = pd.DataFrame(rows, columns=["cell", "attack", "share", "around"])
    # Attacks that differ in other values have the names of their scenarios.
    frame["attack"] = frame["attack"].mask(
        frame.duplicated(["attack", "share", "around"], keep=False) & (frame["share"] > 0),
        frame["cell"].str.replace(r".*@", "", regex=True),
    )
    clean = frame[frame["share"] == 0].drop_duplicates("around").set_index("around")["cell"]
    return frame.assign(clean=frame["around"].map(clean).astype(object)).drop(columns="around")


def losses(record: Record) -> pd.DataFrame:
    """Return the points that attacks cost the shared model, paired by seed.

    Args:
        record: The experiment.

    Returns:
        ``KEY``, ``metric``, ``at``, ``attack``, ``share``, ``clean``, ``n``, ``mean``, ``std``,
        ``low``, ``high``.
    """
    frame = tidy(record, ["accuracy_shared"])
    free = frame.rename(columns={"cell": "clean", "value": "free"})
    attacked = frame.merge(scenarios(record).query("share > 0"), on="cell")
    pairs = attacked.merge(free)
    lost = pairs.assign(value=pairs["free"] - pairs["value"])
    keys = [*KEY, "metric", "at", "attack", "share", "clean"]
    return in_order(statistics.interval(lost, keys))


def attacks(record: Record) -> Table:
    """Return the shared model under attack, points lost, and whom a method blocked."""
    cells = scenarios(record)
    attacked = cells[cells["share"] > 0]
    cells = cells[(cells["share"] > 0) | cells["cell"].isin(attacked["clean"])]
    accuracies = means(record, ["accuracy_shared"]).merge(cells.drop(columns="clean"))
    blocked = means(record, DETECTION).merge(attacked.drop(columns="clean"))
    lost = losses(record)
    numbers = pd.concat([accuracies, lost, blocked], ignore_index=True)[[*lost.columns]]
    shown = numbers[numbers["at"] != "end"].sort_values("share", kind="stable")
    rows = shown.to_dict("records")
    text = arranged(
        shown.assign(head=[_share(row) for row in rows], block=[_attack(row) for row in rows]),
        lambda row: printed(row) if pd.isna(row["clean"]) else points(row),
        setting="block",
        best=lambda cells: best(cells.assign(cell=cells["block"])) & cells["clean"].isna(),
    )
    caption = (
        "Accuracy (%) of the shared model by share of the clients that attack, points lost to the "
        f"same runs without attackers, and whom a method blocked in the end, {WHERE}. "
        f"{interval_over(accuracies)}; {BEST}."
    )
    return Table("attacks", caption, numbers, text, failures(record))


def _share(row: Mapping[Hashable, Any]) -> str:
    """Return the heading of a number of ``attacks``: "20 %, lost"."""
    what = "" if row["metric"] == "accuracy_shared" else f", {heading(row['metric'])}"
    return f"{100 * row['share']:g} %" + (what if pd.isna(row["clean"]) else ", lost")


def _attack(row: Mapping[Hashable, Any]) -> str:
    """Return the block of a number of ``attacks``."""
    skew = cell_title(row["cell"].partition("@")[0])
    return f"{row['attack'] if row['share'] > 0 else 'no attackers'}, {skew}"


def sweeps(record: Record) -> Table:
    """Return the accuracies of methods side by side in all cells: by α, attackers or clients."""
    numbers = means(record, ["accuracy", "accuracy_shared"])
    shown = numbers[numbers["at"] == "selected"]
    shown = shown.assign(head=shown["cell"].map(cell_title), block=shown["metric"].map(HEADS))
    text = arranged(shown, printed, setting="block", best=best)
    caption = f"Accuracy (%) of methods by cell, {WHERE}. {interval_over(numbers)}; {BEST}."
    return Table("sweeps", caption, numbers, text, failures(record))


def of_means(name: str, metrics: Sequence[str], caption: str, record: Record) -> Table:
    """Return the means of some metrics, a table that has no more to say.

    Args:
        name: Its name.
        metrics: Names of ``METRICS``.
        caption: What they are, without a full stop.
        record: The experiment.
    """
    numbers = means(record, metrics)
    end = "; end: mean of the last quarter" if (numbers["at"] == "end").any() else ""
    caption = f"{caption}{end}. {interval_over(numbers)}."
    text = arranged(headed(numbers), printed, best=best)
    return Table(name, caption, numbers, text, failures(record))


#: Tables of means alone: name → metrics, caption.
MEANS = {
    "groups": (
        GROUPS,
        "Accuracy (%) of the clients that agree with the majority (A), that differ from it (B) "
        f"and that never train (new clients), {WHERE}",
    ),
    "stragglers": (
        STRAGGLERS,
        "Simulated time of a run, and what became of uploads and clients, sums over rounds",
    ),
    "gates": (
        GATES,
        "Gates (0: shared alone, 1: all of the private part), private share of a block's update "
        "and penalties, in the last quarter of the rounds",
    ),
}
#: Name → the table of a record.
TABLES: Mapping[str, Callable[[Record], Table]] = {
    **{"main": main, "differences": differences, "cost": cost, "settings": settings},
    **{"tuning": tuning, "attacks": attacks, "sweeps": sweeps, "variance": variance},
    **{name: partial(of_means, name, *given) for name, given in MEANS.items()},
}


def table(name: str, record: Record) -> Table:
    """Return a table by its name, or the means of the metric of that name.

    Args:
        name: A key of ``TABLES`` or of ``METRICS``.
        record: The experiment.

    Raises:
        ValueError: There is neither a table nor a metric of that name.
    """
    if name in TABLES:
        return TABLES[name](record)
    if name in METRICS:
        return of_means(name, [name], heading(name), record)
    raise ValueError(f"there is no table or metric {name!r}{hint(name, [*TABLES, *METRICS])}")
