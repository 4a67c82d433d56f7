"""The page of a report in a browser: no errors, no network, tables that sort and filter, a phone, and the dark."""

import pytest

from certibayes.experiments import write_report

from ..chromium import Browser, chromium
from ..pages import HOSTILE
from .report_cases import made_grid

pytest.importorskip("jinja2")
pytestmark = pytest.mark.skipif(chromium() is None, reason="there is no Chromium: apt-get install chromium")

# The claims, then ours beside the paper's, then every posterior, then the runs.
COMPARED = "document.querySelectorAll('table.data')[1]"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    return write_report(made_grid(folder / "paper", title=HOSTILE), folder / "page.html")


@pytest.fixture(scope="module")
def browser():
    found = Browser(chromium())
    yield found
    found.close()


@pytest.fixture
def opened(browser, page):
    browser.resize(1200)
    browser.prefer("light")
    browser.complaints.clear()
    browser.addresses.clear()
    browser.open(page)
    return browser


def column(browser, table, title):
    """Text of a column's visible cells, from top to bottom."""
    return browser.value(
        f"(() => {{ const table = {table}; const place = [...table.tHead.rows[0].cells].findIndex("
        f"(head) => head.textContent === {title!r}); return [...table.tBodies[0].rows].filter((row) => !row.hidden)"
        ".map((row) => row.cells[place].textContent); })()"
    )


def click(browser, table, title):
    browser.value(f"[...{table}.querySelectorAll('th button')].find((b) => b.textContent === {title!r}).click()")


def test_it_loads_without_a_complaint_and_without_a_network(opened, page):
    assert opened.value("document.readyState") == "complete"
    assert opened.value("document.images.length") == 1 and opened.value("document.images[0].naturalWidth") > 0
    assert opened.complaints == []
    assert all(address == page.as_uri() or address.startswith("data:") for address in opened.addresses)


def test_scripts_but_its_own_do_not_run(opened):
    opened.value(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.intruder = 1';"
        " document.body.append(s); })()"
    )
    assert opened.value("window.intruder") is None
    assert any("Content Security Policy" in str(complaint) for complaint in opened.complaints)


def test_a_click_sorts_and_another_one_reverses(opened):
    before = column(opened, COMPARED, "ours")
    click(opened, COMPARED, "ours")
    up = [float(text.split("%")[0]) for text in column(opened, COMPARED, "ours")]
    assert up == sorted(up) and len(up) == len(before) and column(opened, COMPARED, "ours") != before
    click(opened, COMPARED, "ours")
    down = [float(text.split("%")[0]) for text in column(opened, COMPARED, "ours")]
    assert down == up[::-1] and opened.value(f"{COMPARED}.querySelectorAll('[aria-sort]').length") == 1
    # What the paper does not state comes last, both ways.
    for _ in range(2):
        click(opened, COMPARED, "difference")
        words = [bool(text) for text in column(opened, COMPARED, "difference")]
        assert words == sorted(words, reverse=True) and not all(words)
    click(opened, COMPARED, "method")
    assert column(opened, COMPARED, "method") == sorted(column(opened, COMPARED, "method"))
    assert opened.complaints == []


def test_words_and_choices_filter(opened):
    tools = f"{COMPARED}.parentElement.previousElementSibling"
    every = column(opened, COMPARED, "method")
    assert set(every) == {"swag", "bbb"}
    opened.value(
        f"(() => {{ const box = {tools}.querySelector('input'); box.value = 'SWAG ibp';"
        " box.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )
    left = column(opened, COMPARED, "method")
    assert set(left) == {"swag"} and 0 < len(left) < len(every)
    assert opened.value(f"{tools}.querySelector('[role=status]').textContent") == f"{len(left)} of {len(every)} rows"
    opened.value(
        f"(() => {{ const list = {tools}.querySelector('select[aria-label=verdict]'); list.value = [...list.options]"
        ".find((o) => o.text === 'lower').value; list.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )
    assert column(opened, COMPARED, "verdict") == ["lower"] and column(opened, COMPARED, "figure") == ["ibp"]
    # A row that is hidden stays so when the table is sorted.
    click(opened, COMPARED, "ours")
    assert column(opened, COMPARED, "figure") == ["ibp"] and opened.complaints == []


def test_a_link_opens_its_run(opened):
    assert opened.value("document.querySelectorAll('details[open]').length") == 0
    opened.value("document.querySelector('a[href=\"#run-3\"]').click()")
    assert opened.value("new Promise((done) => setTimeout(done, 100))") is not False
    assert opened.value("document.getElementById('run-3').open") is True


@pytest.mark.parametrize("width", [360, 800, 1200])
def test_it_fits_the_window(width, opened):
    opened.resize(width)
    opened.value("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert opened.value("document.documentElement.scrollWidth") <= width
    assert opened.value("parseFloat(getComputedStyle(document.body).fontSize)") >= 14


CONTRAST = """(() => {
  const light = (color) => { const [r, g, b] = color.match(/[\\d.]+/g).map((v) => { v /= 255;
    return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const page = light(getComputedStyle(document.body).backgroundColor);
  return [...document.querySelectorAll('h1, p, td, th, a, .faint, .proved, .broken')].map((part) => {
    const own = light(getComputedStyle(part).color);
    return (Math.max(own, page) + 0.05) / (Math.min(own, page) + 0.05); }).reduce((a, b) => Math.min(a, b));
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_in_the_light_and_in_the_dark(scheme, opened):
    opened.prefer(scheme)
    background = opened.value("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
    # What the guidelines for accessible pages ask of text (WCAG 2, AA).
    assert opened.value(CONTRAST) >= 4.5


def test_it_prints_in_black_on_white_without_tools(opened):
    opened.prefer("dark", media="print")
    assert opened.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert opened.value("getComputedStyle(document.querySelector('.tools')).display") == "none"
    opened.prefer("light")
