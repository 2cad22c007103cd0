"""Where a newcomer stands among the rows of a record."""

from __future__ import annotations

import pandas as pd

from fedsdg.analysis import statistics
from fedsdg.analysis.layout import MISSING, Table, amount, arranged, points, spread
from fedsdg.analysis.means import WHERE, headed, interval_over, means, seeds, tidy
from fedsdg.analysis.names import cell_title, is_oracle, method_title
from fedsdg.analysis.records import KEY, Record
from fedsdg.analysis.settings import search

_BY = ["experiment", "cell", "metric", "at"]


def standing(record: Record, newcomer: str) -> pd.DataFrame:
    """Compare a newcomer with every row of its cells, on the newcomer's seeds.

    Args:
        record: A record that has the newcomer's runs beside the others.
        newcomer: The label of the method.

    Returns:
        A row per cell, method, metric and reading: ``KEY``, ``metric``, ``at``, ``n``, ``mean``,
        ``std``, ``low``, ``high``; of the newcomer minus the row, paired by seed, ``lead``,
        ``lead_low``, ``lead_high`` (95 %); ``verdict``: the newcomer is *above* or *below* if the
        99 % interval excludes 0 at both readings, else *undecided*, and nothing below five seeds;
        ``place``: 1 for the best accuracy of clients at the selected round, none for an oracle or a
        row that lacks a seed.
    """
    metrics = ["accuracy", "accuracy_a", "accuracy_b", "worst_decile", "accuracy_shared"]
    frame = tidy(record, metrics)
    own = frame[(frame["method"] == newcomer) & (frame["metric"] == "accuracy")]
    frame = frame.merge(own[["cell", "seed"]].drop_duplicates())
    numbers = statistics.interval(frame, [*KEY, "metric", "at"])
    leads = statistics.differences(frame, newcomer, _BY).rename(columns={"rival": "method"})
    leads["verdict"] = _verdicts(leads)
    leads = leads.rename(columns={"mean": "lead", "low": "lead_low", "high": "lead_high"})
    numbers = numbers.merge(leads.drop(columns=["n", "std"]), "left")
    whole = numbers["n"] == numbers["cell"].map(own.groupby("cell")["seed"].nunique())
    headlines = (numbers["metric"] == "accuracy") & (numbers["at"] == "selected")
    ranked = numbers[whole & headlines & ~numbers["method"].map(is_oracle)]
    place = ranked.groupby("cell")["mean"].rank(ascending=False, method="min")
    numbers = numbers.merge(ranked[["cell", "method"]].assign(place=place), "left")
    return numbers.sort_values(["cell", "place"], kind="stable", ignore_index=True)


def _verdicts(leads: pd.DataFrame) -> pd.Series:
    """Judge leads by their 99 % intervals at both readings."""
    verdicts = pd.Series("undecided", leads.index)
    for word, sign in (("above", 1), ("below", -1)):
        rows = zip(sign * leads["mean"], leads["std"], leads["n"], strict=True)
        beyond = pd.Series([statistics.p_beyond(*row, 0) < 0.005 for row in rows], leads.index)
        keys = [leads[name] for name in ("cell", "metric", "method")]
        verdicts = verdicts.mask(beyond.groupby(keys).transform("all"), word)
    return verdicts.where(leads["n"] >= statistics.LEAST_SEEDS, MISSING)


def ranking(record: Record, newcomer: str) -> Table:
    """Return the rows of a newcomer's cells, the best first, and its lead over each.

    Args:
        record: A record that has the newcomer's runs beside the others.
        newcomer: The label of the method.
    """
    numbers = standing(record, newcomer)
    title = method_title(newcomer)
    shown = headed(numbers[numbers["at"] == "selected"])
    costs = means(record, ["megabytes", "wall_seconds"]).pivot(
        index=["cell", "method"], columns="metric", values="mean"
    )
    lines = shown[shown["metric"] == "accuracy"].join(costs, on=["cell", "method"])
    own = lines["method"] == newcomer
    ends = lines[["n"]].assign(mean=lines["lead"], low=lines["lead_low"], high=lines["lead_high"])
    text = arranged(shown, spread, best=lambda rows: rows["method"] == newcomer, order=None)
    columns = {
        "place": lines["place"].map("{:.0f}".format).where(lines["place"].notna(), MISSING),
        f"{title} minus it": ends.apply(points, axis=1).mask(own, MISSING),
        "verdict": lines["verdict"].fillna(MISSING),
        "MB": lines["megabytes"].map(amount),
        "seconds": lines["wall_seconds"].map(amount).where(own, MISSING),
    }
    text = text.assign(**{head: column.to_numpy() for head, column in columns.items()})
    caption = (
        f"{title} among the rows of {record.name}, on its seeds. Accuracy (%) {WHERE}. "
        f"{interval_over(lines)}; MB sent both ways; seconds of a run here. {title} minus a row: "
        "points of the accuracy of clients, paired by seed [95 % interval]; above, below: the "
        "99 % interval excludes 0 at the selected round and at the end."
    )
    return Table("ranking", caption, numbers, text)


def sentences(record: Record, newcomer: str) -> list[str]:
    """Return in words where a newcomer stands in each cell, and what limits it there.

    Args:
        record: A record that has the newcomer's runs beside the others.
        newcomer: The label of the method.
    """
    numbers = standing(record, newcomer)
    lines = numbers[(numbers["metric"] == "accuracy") & (numbers["at"] == "selected")]
    title = method_title(newcomer)
    found = []
    for cell, rows in lines.groupby("cell", sort=False):
        own = rows[rows["method"] == newcomer].iloc[0].to_dict()
        above, below = (int((rows["verdict"] == word).sum()) for word in ("above", "below"))
        told = (
            f"it is above {above} and below {below} of the others"
            if own["n"] >= statistics.LEAST_SEEDS
            else f"there is no verdict below {statistics.LEAST_SEEDS} seeds"
        )
        place = f"{own['place']:.0f} of {rows['place'].count()} by the accuracy of clients"
        found.append(
            f"{title}: {place if own['place'] > 0 else 'an oracle, without a place'}, "
            f"{spread(own)} %, in {cell_title(str(cell))} ({seeds(rows)}); {told}."
        )
    personal_models = lines["method"].map(lambda label: record.methods[label]["personal"])
    rivals = lines[~personal_models & lines["place"].notna() & (lines["method"] != newcomer)]
    if "needs" in record.name and not record.methods[newcomer]["personal"] and len(rivals):
        found.append(
            f"{title} ends with one model for all, which cannot serve clients whose labels "
            f"conflict: such methods end near {rivals['mean'].max():.0f} here."
        )
    if newcomer not in (search(record) or [newcomer]):
        found.append(f"{title} was not tuned, as the rows of the record were; --tune does it.")
    return found
