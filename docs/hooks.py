"""Put into pages what is known elsewhere, so that it is said in one place: layers, settings, measured figures."""

import re
from pathlib import Path

from mkdocs.structure.files import File

from certibayes.bounds import support_table
from certibayes.experiments.settings import as_text, settings_of
from certibayes.experiments.spec import ALGORITHMS
from certibayes.zoo import list as zoo_entries

RESULTS = Path(__file__).parent.parent / "results" / "inference-mnist"
MARKERS = re.compile(
    r"<!-- (?P<what>supported layers|zoo|settings|mnist|mnist chains|file)(?: of (?P<method>[a-z0-9./-]+))? -->"
)


def on_files(files, config):
    """Serve the studies' figures and tables from where the studies have put them."""
    folder = RESULTS.parent
    for path in sorted([*folder.rglob("*.png"), *folder.rglob("*.csv"), *folder.glob("*/*.md")]):
        address = f"results/{path.relative_to(folder).as_posix()}"
        files.append(File.generated(config, address, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace the markers, and paths into the repository by paths into the site."""
    filled = MARKERS.sub(_filled, markdown)
    return filled.replace("](../results/", "](results/").replace("](../../results/", "](../results/")


def _filled(marker: re.Match[str]) -> str:
    method = marker["method"]
    if marker["what"] == "supported layers":
        return support_table()
    if marker["what"] == "zoo":
        return _zoo()
    if marker["what"] == "settings":
        return _settings(method)
    if marker["what"] == "file":
        return (RESULTS.parent / method).read_text()
    return _rows(method, chains=marker["what"] == "mnist chains")


def _zoo() -> str:
    """The entries of the zoo."""
    lines = ["| name | | data | radius | certified | accuracy | samples |", "| --- |" + " --- |" * 6]
    for entry in zoo_entries():
        lines.append(
            f"| `{entry.name}` | {entry.description} | {entry.dataset} | {entry.eps:.4g} | {entry.certified:.1%} "
            f"| {entry.accuracy:.1%} | {entry.samples} |"
        )
    return "\n".join(lines)


def _settings(method: str) -> str:
    """The hyperparameters of an algorithm, as its docstring has them."""
    lines = ["| setting | default | meaning |", "| --- | --- | --- |"]
    for setting in settings_of(ALGORITHMS[method]).values():
        meaning = setting.help.replace("``", "`").replace("|", "\\|").rstrip(".")
        lines.append(f"| `{setting.name}` | `{as_text(setting.default)}` | {meaning} |")
    return "\n".join(lines)


def _rows(method: str, chains: bool) -> str:
    """The lines of the study's table that belong to a method, of its first or its second part."""
    lines = (RESULTS / "table.md").read_text().split("\n\n")[int(chains)].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    own = [row for row in cells[2:] if (row[0].startswith(f"{method}-") if chains else row[1] == method)]
    if not own:
        raise ValueError(f"{RESULTS / 'table.md'} has no line of {method}.")
    shown = cells[:2] + own
    if not chains:
        shown = [[row[0], *row[2:]] for row in shown]
    return "\n".join("| " + " | ".join(row) + " |" for row in shown)
