"""The page as one file: template, style, script, the library of charts, and the data, each once."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import altair as alt
import jinja2
import vl_convert

ASSETS = Path(__file__).parent / "assets"
#: The script is these files, one after the other.
SCRIPTS = (
    "core.js",
    "tables.js",
    "charts.js",
    "runs.js",
    "start.js",
)


def document(facts: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """The HTML of the page.

    Args:
        facts: What the template shows; texts are escaped.
        data: What the script reads.
    """
    room = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ASSETS),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return room.get_template("page.html").render(
        facts,
        style=(ASSETS / "page.css").read_text(encoding="utf-8"),
        script="\n".join((ASSETS / name).read_text(encoding="utf-8") for name in SCRIPTS),
        library=library(),
        data=embedded(data),
    )


def embedded(data: Mapping[str, Any]) -> str:
    """JSON, compressed (zlib) and in base64; NaN and infinities are refused."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


@cache
def library() -> str:
    """Vega, Vega-Lite of Altair's version, and Vega-Embed, as one script."""
    version = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    # Its stub asks for a snippet, which nobody needs who takes the whole.
    code = vl_convert.javascript_bundle(vl_version=version)  # type: ignore[call-arg]
    return str(code).replace("</script", "<\\/script")
