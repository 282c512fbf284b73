"""Make a drawing that matplotlib wrote as SVG fit for the inside of an HTML page."""

from __future__ import annotations

import re
from html import escape
from xml.etree import ElementTree

CLASS = "class:"
"""An artist whose id begins so gets the rest as the class of its ``g`` element."""

_LINK = "{http://www.w3.org/1999/xlink}href"


def minified(svg: str) -> str:
    """Return the content of a drawing without what a page does not need.

    Ids stay where something is defined; all other elements lose theirs. Numbers are rounded
    to a tenth of a unit. Text loses its font and alignment, which the page's style sheet
    gives it. Every ``defs`` element holds one definition, so that equal ones can be
    told by their text.
    """
    return "".join(map(_minified, ElementTree.fromstring(svg)))


def _minified(element: ElementTree.Element) -> str:
    name = _name(element)
    if name in ("metadata", "style"):
        return ""
    inside = [_minified(child) for child in element]
    if name == "defs":
        return "".join(f"<defs>{child}</defs>" for child in inside if child)
    kept = dict(element.attrib)
    own = kept.pop("id", "")
    if name == "g":
        if own.startswith(CLASS):
            kept["class"] = own.removeprefix(CLASS)
        # The marks of a line have one style; it stands once, around them.
        style = next((child.get("style") for child in element if _name(child) == "use"), None)
        if style is not None:
            kept["style"] = style
    elif own:
        kept["id"] = own
    if name == "use":
        kept = {"href": kept[_LINK], "x": kept["x"], "y": kept["y"]}
    elif name == "text":
        kept = {"x": kept["x"], "y": kept["y"]}
    content = "".join(inside) + escape((element.text or "").strip())
    if name == "g" and (not kept or not content):
        return content
    attributes = "".join(f' {key}="{_short(key, value)}"' for key, value in kept.items())
    return f"<{name}{attributes}>{content}</{name}>" if content else f"<{name}{attributes}/>"


def _name(element: ElementTree.Element) -> str:
    return str(element.tag).rpartition("}")[2]


def _short(key: str, value: str) -> str:
    if key in ("d", "x", "y"):
        value = re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.1f}", value)
        value = re.sub(r"\.0(?!\d)", "", value)
        return re.sub(r"\s*([A-Za-z])\s*", r"\1", value).strip()
    return escape(value.replace("; ", ";").replace(": ", ":"))
