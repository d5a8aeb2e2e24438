"""Pictures as SVG and PNG without a browser, and as charts of a page that makes no requests.

A page holds each chart twice. The static SVG is visible at once, without a script and on paper.
draw.js replaces it by the live chart when a reader reaches it.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import resources
from typing import Any

import altair as alt
import vl_convert

from mugrpo.report.charts import Picture, color
from mugrpo.report.markup import Markup, tag

# Liberation Sans has the metrics of Arial and Helvetica: text is as wide here as in a browser.
_FONT = "Helvetica, Arial, Liberation Sans, sans-serif"
_TEXT = {"labelFontSize": 11, "labelColor": color("muted"), "titleColor": color("muted")}

THEME: dict[str, Any] = {
    "aria": False,  # the figure has a name; labels for all points would bury it
    "background": "transparent",
    "font": _FONT,
    "padding": 2,
    "view": {"stroke": None},
    "title": {"anchor": "start", "color": color("ink"), "fontSize": 13, "offset": 12},
    "line": {"invalid": "break-paths-show-domains", "strokeCap": "round", "strokeJoin": "round"},
    "area": {"invalid": "break-paths-show-domains", "line": False},
    "text": {"fontSize": 11, "color": color("ink")},
    "axis": {
        **_TEXT,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "gridColor": color("grid"),
        "domainColor": color("axis"),
        "tickColor": color("axis"),
        "tickSize": 4,
        "labelPadding": 5,
        "labelFlush": False,
    },
    "axisX": {"titleAnchor": "end", "titlePadding": 4, "tickCount": 6},
    "axisY": {
        "domain": False,
        "ticks": False,
        "tickCount": 5,
        "titleAngle": 0,
        "titleAlign": "left",
        "titleAnchor": "end",
        "titleBaseline": "bottom",
        "titleX": -34,
        "titleY": -9,
    },
    "legend": {
        **_TEXT,
        "labelColor": color("ink"),
        "orient": "bottom",
        "layout": {"bottom": {"direction": "vertical", "anchor": "start", "margin": 4}},
        "symbolStrokeWidth": 2,
        "rowPadding": 3,
        "columnPadding": 14,
        "unselectedOpacity": 0.3,
        "offset": 8,
    },
}

_VARIABLE = re.compile(r"var\(--([\w-]+)\)")
_POINT = re.compile(r"(\.\d)\d+")  # of a coordinate: a tenth of a pixel is enough
_NOTHING = re.compile(
    r'<path class="(?:fore|back)ground"[^>]*/>| (?:class|pointer-events|aria-\w+|role)="[^"]*"'
)

Chart = alt.Chart | alt.LayerChart | alt.HConcatChart | alt.FacetChart


def chart_markup(name: str, picture: Picture) -> Markup:
    """Return the picture as a chart of a page. Screen readers read its `name`."""
    live = alt.layer(*picture.layers, *picture.hover)
    spec = vega_lite(live.properties(width="container", height=picture.height))
    still = {**spec, "layer": spec["layer"][: len(picture.layers)], "width": picture.width}
    return tag(
        "div",
        tag("div", Markup(_inline(svg(still))), class_="static", role="img", aria_label=name),
        tag("script", Markup(_as_script(spec)), type="application/json"),
        class_="chart",
    )


def vega_lite(chart: Chart) -> dict[str, Any]:
    """Return the chart's Vega-Lite with the theme, but without its schema, which is a URL."""
    spec: dict[str, Any] = {**chart.to_dict(validate=False), "config": THEME}
    del spec["$schema"]
    return spec


def svg(spec: dict[str, Any]) -> str:
    """Return Vega-Lite as compact SVG. Its colors are variables of a style sheet."""
    image = _NOTHING.sub("", vl_convert.vegalite_to_svg(spec))
    return re.sub(r' d="[^"]*"', lambda match: _POINT.sub(r"\1", match[0]), image)


def svg_file(chart: Chart) -> str:
    """Return the chart as an SVG file for light and dark pages."""
    head, rest = svg(vega_lite(chart)).split(">", 1)
    paper = f'<rect width="100%" height="100%" fill="{color("page")}"/>'
    return f"{head}><style>{sheet('colors.css')}</style>{paper}{rest}\n"


def png(chart: Chart, scale: float = 2.0) -> bytes:
    """Return the chart as PNG, in light colors."""
    light = dict(re.findall(r"--([\w-]+): ([^;]+);", sheet("colors.css").split("@media")[0]))
    text = json.dumps({**vega_lite(chart), "background": light["page"]})
    spec = _VARIABLE.sub(lambda match: light[match[1]], text)
    image: bytes = vl_convert.vegalite_to_png(spec, scale=scale)
    return image


@cache
def script() -> str:
    """Return the only script of a page: Vega with its license, and draw.js."""
    bundle: str = vl_convert.javascript_bundle(sheet("draw.js"))
    return f"/*!\n{sheet('VEGA_LICENSE')}*/\n{bundle}"


@cache
def sheet(file: str) -> str:
    """Return one of the text files beside this module."""
    return resources.files("mugrpo.report").joinpath(file).read_text(encoding="utf-8")


def _as_script(spec: dict[str, Any]) -> str:
    """Return JSON that cannot end the element around it, whatever strings `spec` has."""
    text = json.dumps(spec, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _inline(image: str) -> str:
    """Return an SVG for use inside a page: without namespaces, which are URLs."""
    head, rest = image.split(">", 1)
    size = re.findall(r'(?:width|height|viewBox)="[^"]*"', head)
    return f"<svg {' '.join(size)}>{rest}"
