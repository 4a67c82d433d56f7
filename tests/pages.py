"""Pages of HTML as tests read them, and a name that is up to no good."""

from html.parser import HTMLParser

HOSTILE = "</title><script>alert(1)</script>\"'><img src=x onerror=alert(2)> & {{ 7 * 7 }} <!-- "


class Page(HTMLParser):
    """Tags, attributes and text of a page; raises where a tag is closed that was not open."""

    EMPTY = ("meta", "img", "br")

    def __init__(self, source):
        super().__init__()
        self.tags, self.attributes, self.text, self.open = [], [], "", []
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += data
