"""A new method among the recorded ones, and a reproduction beside the record."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fedsdg.next_analysis.names import method_title
from fedsdg.next_analysis.records import KEY, Record
from fedsdg.next_analysis.statistics import LEVEL, holm, interval, p_beyond
from fedsdg.next_analysis.tables import Table, arranged, oracles, tidy, with_ends, with_half_width

METRICS = ("expected_accuracy", "expected_accuracy_a", "expected_accuracy_b")
MARGIN = 1.0


def ranking(record: Record, newcomer: str, metrics: Sequence[str] = METRICS) -> Table:
    """Return every method on the newcomer's seeds, the best first, with the newcomer's lead.

    The verdicts (*higher*, *lower*, *equivalent* within a point, *undecided*) are those of paired
    t-tests, Holm over all rivals, metrics and cells.
    """
    frame = tidy(record, metrics)
    seeds = frame.loc[frame["method"] == newcomer, "seed"].unique()
    frame = frame[frame["seed"].isin(seeds)]
    wide = frame.pivot(
        index=["experiment", "cell", "metric", "seed"], columns="method", values="value"
    )
    gaps = (
        wide.rsub(wide[newcomer], axis=0).drop(columns=newcomer).melt(ignore_index=False).dropna()
    )
    found = interval(gaps.reset_index(), [*KEY, "metric"])
    found = found.assign(verdict=_verdicts(found))
    means = interval(frame, [*KEY, "metric"]).merge(
        found, how="left", on=[*KEY, "metric"], suffixes=("", " lead")
    )
    place = means[means["metric"] == metrics[0]].set_index("method")["mean"].rank(ascending=False)
    texts = means.apply(_with_lead, axis=1)
    text = arranged(means.assign(text=texts), lambda row: row["text"], order=lambda m: place[m])
    n, of = int(place[newcomer]), len(set(means["method"]) - oracles(record))
    caption = f"{method_title(newcomer)}: {n} of {of} on {len(seeds)} seeds; in brackets its lead"
    return Table("ranking", caption, means, text)


def _with_lead(row: pd.Series) -> str:
    own = with_half_width(row)
    if pd.isna(row["mean lead"]):
        return own
    return f"{own} ({with_ends({k: row[f'{k} lead'] for k in ('n', 'mean', 'low', 'high')})}, {row['verdict']})"


def _verdicts(found: pd.DataFrame) -> list[str]:
    rows = found[["mean", "std", "n"]].to_numpy()
    differ = holm([2 * min(p_beyond(m, s, n, 0), p_beyond(-m, s, n, 0)) for m, s, n in rows])
    equal = holm([max(p_beyond(m, s, n, -MARGIN), p_beyond(-m, s, n, -MARGIN)) for m, s, n in rows])
    words = []
    for mean, p, q in zip(found["mean"], differ, equal, strict=True):
        word = ("higher" if mean > 0 else "lower") if p < LEVEL else "undecided"
        words.append("equivalent" if q < LEVEL else word)
    return words


def agreement(here: Record, recorded: Record, metrics: Sequence[str] = METRICS) -> pd.DataFrame:
    """Return means here and in the record, and whether their intervals overlap.

    Where neither has an interval, the range of the record's seeds is compared.
    """
    both = [interval(tidy(r, metrics), [*KEY, "metric"]) for r in (here, recorded)]
    pair = both[0].merge(both[1], on=[*KEY, "metric"], suffixes=(" here", " recorded"))
    ends = (
        tidy(recorded, metrics)
        .groupby([*KEY, "metric"], observed=True)["value"]
        .agg(["min", "max"])
    )
    pair = pair.merge(ends.reset_index(), on=[*KEY, "metric"])
    low, high = (pair[f"{e} here"].fillna(pair["mean here"]) for e in ("low", "high"))
    first, last = (
        pair["low recorded"].fillna(pair["min"]),
        pair["high recorded"].fillna(pair["max"]),
    )
    return pair.assign(agree=(low <= last) & (first <= high)).drop(columns=["min", "max"])
