"""Pages and cards from templates, in which everything that is filled into HTML is escaped."""

from __future__ import annotations

from typing import Any

from certibayes.support.optional import require_package

EXTRA = "figures"
"""The extra that brings Jinja."""

HTML = "html.j2"
"""What templates of HTML end in. Jinja knows ``.html`` alone, and would escape nothing in ``page.html.j2``."""


def require_jinja() -> Any:
    """Return the package that fills in templates, or raise unless it is installed."""
    return require_package("jinja2", EXTRA)


def filled(package: str, name: str, values: dict[str, Any]) -> str:
    """Fill in a template of a package, from its folder ``templates``; a name that it uses must have a value.

    Args:
        package: such as ``"certibayes.experiments"``.
        name: of the file. Where it ends in ``.html.j2``, values are escaped.
        values: by name.
    """
    jinja = require_jinja()
    environment = jinja.Environment(
        loader=jinja.PackageLoader(package),
        autoescape=jinja.select_autoescape(enabled_extensions=(HTML,)),
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return str(environment.get_template(name).render(values))
