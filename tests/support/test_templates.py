"""Templates of HTML escape, those of Markdown do not, and names without a value are errors."""

import jinja2
import pytest

from certibayes.support import templates


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "paper" / "templates"
    folder.mkdir(parents=True)
    (tmp_path / "paper" / "__init__.py").touch()
    for name in ("page.html.j2", "card.md.j2"):
        (folder / name).write_text("{{ words }}")
    monkeypatch.syspath_prepend(tmp_path)
    return "paper"


def test_html_is_escaped_and_markdown_is_not(package):
    values = {"words": "<b> & \"'"}
    assert templates.filled(package, "page.html.j2", values) == "&lt;b&gt; &amp; &#34;&#39;"
    assert templates.filled(package, "card.md.j2", values) == values["words"]


def test_a_name_without_a_value_is_an_error(package):
    with pytest.raises(jinja2.UndefinedError, match="words"):
        templates.filled(package, "page.html.j2", {})
