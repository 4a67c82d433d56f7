r"""Formulas as MathML, made when the site is built: browsers draw it by themselves, without a script or a network.

arithmatex marks formulas, ``\(...\)`` in a span and ``\[...\]`` in a div. What cannot be converted in full ends the
build. What latex2mathml leaves to TeX's typesetting is added here: limits below min and max, spaces after names of
functions, none inside bars, and equation numbers at the right.
"""

import html
import re
from xml.etree import ElementTree

from latex2mathml.converter import convert_to_element

MARKED = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\(?P<kind>[(\[])(?P<tex>.*?)\\[)\]]</(?P=tag)>'
    r"(?P<after>[.,;:)]*)",
    re.DOTALL,
)
NUMBER = re.compile(r"\\tag\{(.*?)\}")
LIMITS = {"msub": "munder", "msubsup": "munderover"}
UNDER = {"min", "max", "sup", "inf", "lim", "arg min", "arg max"}
BARS = {"|", "‖"}
CLOSE = {"(", "[", ")", "]", ","}
"""What follows the name of a function without a space."""
ROWS = {"math", "mrow", "mstyle", "mtd"}


def on_page_content(content: str, **_: object) -> str:
    """Replace the formulas of a page."""
    return MARKED.sub(_replaced, content)


def _replaced(found: re.Match[str]) -> str:
    formula = mathml(html.unescape(found["tex"]).strip(), found["kind"] == "[")
    # A line must not begin with the comma behind a formula.
    return f'<span class="kept">{formula}{found["after"]}</span>' if found["after"] else formula


def mathml(tex: str, block: bool) -> str:
    """Convert a formula; one that stands by itself gets a box in which it can be scrolled on a phone."""
    number = NUMBER.search(tex)
    tree = convert_to_element(NUMBER.sub("", tex), display="block" if block else "inline")
    for element in list(tree.iter()):
        # Characters come as entities, and \_ as it is.
        element.text = html.unescape(element.text or "").replace(r"\_", "_")
        if "\\" in element.text:
            raise ValueError(f"this formula has a command that latex2mathml does not know, {element.text}: {tex}")
    for element in list(tree.iter()):
        _typeset(element, block)
    found = ElementTree.tostring(tree, encoding="unicode")
    label = f'<span class="number">({html.escape(number[1])})</span>' if number else ""
    return f'<div class="formula">{found}{label}</div>' if block else found


def _typeset(element: ElementTree.Element, block: bool) -> None:
    """Space what is inside an element as TeX does."""
    for index in reversed(range(len(element))):
        child, following = element[index], element[index + 1] if index + 1 < len(element) else None
        if child.tag == "mo" and child.text in BARS:
            child.attrib |= {"lspace": "0", "rspace": "0", "stretchy": child.get("stretchy", "false")}
        base = child[0] if child.tag in {*LIMITS, *LIMITS.values()} else child
        if base.tag not in ("mi", "mo") or len(base.text or "") < 2 or not (base.text or "").isalpha():
            continue
        if base.tag == "mo":
            base.attrib |= {"lspace": "0.167em", "rspace": "0"}
        if following is not None and following.text not in CLOSE and element.tag in ROWS:
            element.insert(index + 1, ElementTree.Element("mspace", width="0.167em"))
    if block and element.tag in LIMITS and (element[0].text or "") in UNDER:
        element.tag = LIMITS[element.tag]
