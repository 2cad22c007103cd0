"""Fill the slots of docs/benchmarks.md, {question | subject | setting | code | what}.

    python fill.py PAGE MEASURED

Run once, after `make bench` on a quiet machine. A question, subject, setting or code that was not
measured is an error.
"""

import json
import re
import sys
from pathlib import Path


def main() -> None:
    """Fill the page in place."""
    page, measured = map(Path, sys.argv[1:])
    rows = json.loads(measured.read_text())["rows"]

    def value(slot: re.Match[str]) -> str:
        *key, what = slot[1].split(" | ")
        names = ("question", "subject", "setting", "code")
        (row,) = [row for row in rows if [row[name] for name in names] == key]
        seconds = row["seconds"]
        in_print = {
            "seconds": f"{1e3 * seconds:.2f} ms" if seconds < 1 else f"{seconds:.1f} s",
            "share": f"{row['ratio']:.2f}",
            "ratio": f"{row['ratio']:.2f}×",
            "peak": f"{(row.get('peak_bytes') or 0) / 2**20:.0f} MiB",
        }
        return in_print[what]

    text = re.sub(r"\{([^{}]* \| [^{}]*)\}", value, page.read_text().replace("\n  ", "\0"))
    page.write_text(text.replace("\0", "\n  "))


if __name__ == "__main__":
    main()
