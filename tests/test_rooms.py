"""The house: which modules are private, and who may open them."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "certibayes"
FILES = {path.relative_to(PACKAGE): path for path in sorted(PACKAGE.rglob("*.py"))}
DOCUMENTED = "\n".join(path.read_text() for path in (ROOT / "docs" / "api").glob("*.md"))
OPEN = ("cli", "support")
"""The command line is nobody's library, and what is in support is there for every room."""


def imports(path: Path) -> set[str]:
    """Dotted names below ``certibayes`` that a file imports, each with what it takes from there."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("certibayes."):
            module = node.module.removeprefix("certibayes.")
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


IMPORTS = {relative: imports(path) for relative, path in FILES.items()}


@pytest.mark.parametrize("relative", FILES, ids=str)
def test_no_room_opens_what_is_private_to_another(relative):
    for name in IMPORTS[relative]:
        room, *rest = name.split(".")
        private = [part for part in rest if part.startswith("_") and not part.startswith("__")]
        assert room == relative.parts[0] or not private, f"{relative} imports {name}"


@pytest.mark.parametrize(
    "relative", [r for r in FILES if len(r.parts) == 2 and r.parts[0] not in OPEN and r.name[0] != "_"], ids=str
)
def test_what_only_its_own_room_uses_is_marked_private(relative):
    """A module without an underscore is exported by its room, used by another, or part of the documented reference."""
    module = ".".join(relative.with_suffix("").parts)
    users = {other for other, names in IMPORTS.items() if module in names}
    exported = Path(relative.parts[0]) / "__init__.py" in users
    elsewhere = any(other.parts[0] != relative.parts[0] for other in users)
    documented = f"certibayes.{module}" in DOCUMENTED
    assert exported or elsewhere or documented, f"rename {relative} to _{relative.name}"


def test_no_package_is_hidden_by_a_function_of_its_name():
    import certibayes

    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    hidden = [room for room in rooms if callable(getattr(certibayes, room, None))]
    assert not hidden


WORDS = re.compile(
    r"""\b(centre|finalise|optimise|normalise|standardise|colour|behaviour|neighbour|inflation|whence|further\ ado
    |in\ vain|doubt\w*|foreign|told|judge\w*|judging|travel\w*|arriv\w+|unpaid|paid|patience|vanish\w*|fallen|spread
    |planes|close\ looks|closely|way\ back)\b""",
    re.VERBOSE,
)
QUOTATIONS = {
    'derived_seed(self.seed, "finalise")',  # part of a seed
    'derived_seed(0, "foreign", name)',
}


@pytest.mark.parametrize("folder", ["src", "docs", "benchmarks", "tests", "README.md", "CONTRIBUTING.md"])
def test_words_are_those_of_the_field(folder):
    """Words of our own for what the field has a word for, and British spelling; see CONTRIBUTING.md."""
    start = ROOT / folder
    for path in [start] if start.is_file() else sorted(start.rglob("*")):
        if path.suffix not in (".py", ".md", ".html", ".toml") or path == Path(__file__) or "egg-info" in str(path):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if any(quotation in line for quotation in QUOTATIONS):
                continue
            found = WORDS.search(line)
            assert found is None, f"{path.relative_to(ROOT)}:{number} says {found.group()!r}: {line.strip()}"
