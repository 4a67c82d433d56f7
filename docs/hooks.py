"""Put the table of supported layers into the page that asks for it, so that it is always the registry's own."""

from certibayes.bounds import support_table

MARKER = "<!-- supported layers -->"


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace the marker."""
    return markdown.replace(MARKER, support_table()) if MARKER in markdown else markdown
