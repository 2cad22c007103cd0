"""Where a newcomer stands among the rows of a record."""

from __future__ import annotations

import pandas as pd

from fedsdg.next_analysis import statistics
from fedsdg.next_analysis.layout import MISSING, Table, amount, arranged, percent, points
from fedsdg.next_analysis.means import HEADS, WHERE, interval_over, personal, seeds, tidy
from fedsdg.next_analysis.metrics import values
from fedsdg.next_analysis.names import cell_title, is_oracle, method_title
from fedsdg.next_analysis.records import KEY, Record
from fedsdg.next_analysis.settings import search

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
    headline = personal(record)
    metrics = [headline, "accuracy_a", "accuracy_b", "worst_decile", "accuracy_shared"]
    frame = tidy(record, metrics)
    own = frame[(frame["method"] == newcomer) & (frame["metric"] == headline)]
    frame = frame.merge(own[["cell", "seed"]].drop_duplicates())
    numbers = statistics.interval(frame, [*KEY, "metric", "at"])
    leads = statistics.differences(frame, newcomer, _BY).rename(columns={"rival": "method"})
    verdicts = leads.groupby(["cell", "metric", "method"]).apply(_verdict).rename("verdict")
    leads = leads.rename(columns={"mean": "lead", "low": "lead_low", "high": "lead_high"})
    numbers = numbers.merge(leads.drop(columns=["n", "std"]), "left")
    numbers = numbers.merge(verdicts.reset_index(), "left")
    whole = numbers["n"] == numbers["cell"].map(own.groupby("cell")["seed"].nunique())
    headlines = (numbers["metric"] == headline) & (numbers["at"] == "selected")
    ranked = numbers[whole & headlines & ~numbers["method"].map(is_oracle)]
    place = ranked.groupby("cell")["mean"].rank(ascending=False, method="min")
    return numbers.merge(ranked[["cell", "method"]].assign(place=place), "left")


def _verdict(leads: pd.DataFrame) -> str:
    """Judge the lead over a row by its 99 % intervals at both readings."""
    if leads["n"].min() < statistics.LEAST_SEEDS:
        return MISSING
    for word, sign in (("above", 1), ("below", -1)):
        rows = zip(sign * leads["mean"], leads["std"], leads["n"], strict=True)
        if all(statistics.p_beyond(mean, std, n, 0) < 0.005 for mean, std, n in rows):
            return word
    return "undecided"


def ranking(record: Record, newcomer: str) -> Table:
    """Return the rows of a newcomer's cells, the best first, and its lead over each.

    Args:
        record: A record that has the newcomer's runs beside the others.
        newcomer: The label of the method.
    """
    numbers = standing(record, newcomer)
    title = method_title(newcomer)
    shown = numbers[numbers["at"] == "selected"].sort_values("place", kind="stable")
    lines = shown[shown["metric"] == personal(record)]
    columns = [lines.assign(head="place", text=lines["place"].map("{:.0f}".format))]
    columns.append(shown.assign(head=shown["metric"].map(HEADS), text=shown.apply(percent, axis=1)))
    leads = lines[["n"]].assign(mean=lines["lead"], low=lines["lead_low"], high=lines["lead_high"])
    columns.append(lines.assign(head=f"{title} minus it", text=leads.apply(points, axis=1)))
    columns.append(lines.assign(head="verdict", text=lines["verdict"]))
    for name, head in (("megabytes", "MB"), ("wall_seconds", "seconds")):
        means = values(record, name).groupby(["cell", "method"], as_index=False)["value"].mean()
        spent = lines.merge(means)
        columns.append(spent.assign(head=head, text=spent["value"].map(amount)))
    cells = pd.concat(columns, ignore_index=True)
    own = cells["method"] == newcomer
    kept = own.where(cells["head"] == "seconds", True) & ~(own & cells["head"].str.endswith(" it"))
    text = arranged(
        cells[kept & cells["text"].notna()].replace({"text": {"nan": MISSING}}),
        lambda row: str(row["text"]),
        best=lambda rows: rows["method"] == newcomer,
        order=None,
    )
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
    lines = numbers[(numbers["metric"] == personal(record)) & (numbers["at"] == "selected")]
    title = method_title(newcomer)
    found = []
    for cell, rows in lines.groupby("cell", sort=False):
        own = rows[rows["method"] == newcomer].iloc[0].to_dict()
        counts = rows["verdict"].value_counts()
        words = [f"{word} {counts[word]}" for word in ("above", "below") if word in counts]
        found.append(
            f"{title}: {own['place']:.0f} of {rows['place'].count()} by the accuracy of clients, "
            f"{percent(own)} %, in {cell_title(str(cell))} ({seeds(rows)}); it is "
            f"{' and '.join(words) or 'neither above nor below any'} of the others."
        )
    shared = lines["method"].map(lambda label: not record.methods[label]["personal"])
    if "needs" in record.name and not record.methods[newcomer]["personal"] and shared.any():
        rivals = lines[shared & lines["place"].notna() & (lines["method"] != newcomer)]
        found.append(
            f"{title} ends with one model for all, which cannot serve clients whose labels "
            f"conflict: such methods end near {rivals['mean'].max():.0f} here."
        )
    tuned = search(record)
    if tuned and newcomer not in tuned:
        found.append(f"{title} was not tuned, as the rows of the record were; --tune does it.")
    return found
