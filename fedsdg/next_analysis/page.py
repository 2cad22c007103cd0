"""One HTML file with tables, figures and claims; it needs no network and no script library."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from fedsdg.next_analysis.claims import Verdict
from fedsdg.next_analysis.tables import Table

_HEAD = """<!doctype html><html lang=en><meta charset=utf-8><title>FedSDG Bench</title>
<meta name=viewport content="width=device-width"><style>
:root{color-scheme:light dark;font:15px/1.45 system-ui}body{max-width:76rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;display:block;overflow-x:auto}
th,td{padding:.15rem .6rem;text-align:right;border-bottom:1px solid #8884}td:first-child,th:first-child{text-align:left}
th{cursor:pointer}img{max-width:100%;background:#fff}.supported{color:#087f5b}.refuted{color:#c92a2a}
</style><script>
addEventListener('click',e=>{const h=e.target.closest('th');if(!h)return;const b=h.closest('table').tBodies[0],
i=h.cellIndex,v=r=>parseFloat(r.cells[i].textContent.replace('−','-'));h.up=!h.up;
b.append(...[...b.rows].sort((p,q)=>(h.up?-1:1)*((v(p)||-1e9)-(v(q)||-1e9))))})
</script>"""


def write_page(
    output: str | Path,
    sections: Sequence[tuple[str, Sequence[Table], Sequence[Path]]],
    verdicts: Sequence[Verdict],
) -> Path:
    """Write the page.

    Args:
        output: The file.
        sections: Title, tables and figures (.svg) of every experiment.
        verdicts: The judged claims.
    """
    parts = [_HEAD, "<h1>FedSDG Bench</h1>"]
    for title, tables, figures in sections:
        parts.append(f"<h2>{escape(title)}</h2>")
        for table in tables:
            shown = table.text.to_html(index=False, border=0).replace("**", "")
            parts.append(
                f"<details open><summary>{escape(table.caption)}</summary>{shown}</details>"
            )
        parts += [
            file.read_text(encoding="utf-8").partition("<svg")[2].join(("<svg", ""))
            for file in figures
        ]
    parts.append(
        "<h2>Claims</h2><table><thead><tr><th>claim<th>verdict<th>number</tr></thead><tbody>"
    )
    for v in verdicts:
        number = str(v).partition(" (")[0] if v.n else ""
        parts.append(
            f"<tr id={v.claim.id}><td>{escape(v.claim.claim)}<td class={v.word.split()[0]}>{v.word}<td>{number}"
        )
    output = Path(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("\n".join([*parts, "</table>"]), encoding="utf-8")
    return output
