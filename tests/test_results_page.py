"""docs/results.md says what the tables in results/ say."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "results.md").read_text()
SUMMARY, TABLES = PAGE.split("## How a claim is decided")
LINK = re.compile(r"\]\(\.\./(results/[^)]+)\)")
NUMBER = re.compile(r"(?<![\w./-])\d+\.\d+")


@pytest.fixture(scope="module")
def maker():
    """What fills in the page."""
    spec = importlib.util.spec_from_file_location("results_page", ROOT / "docs" / "results_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_made_from_the_tables(maker):
    assert maker.filled(PAGE) == PAGE, "run: python docs/results_page.py"


def test_every_claim_is_on_the_page(maker):
    for claim in maker.read_claims():
        assert TABLES.count(f"“{claim.says}”") >= len(maker._datasets(claim))


@pytest.mark.parametrize("item", re.findall(r"^- (.*(?:\n  .*)*)", SUMMARY, re.MULTILINE), ids=lambda item: item[:40])
def test_every_number_of_the_summary_stands_in_its_tables(item):
    """In a table that the item leads to, or in those of the page itself."""
    text = "\n".join([TABLES, *((ROOT / path).read_text() for path in LINK.findall(item))])
    known = set(NUMBER.findall(text))
    # The radius that everything is about.
    assert set(NUMBER.findall(item)) - known <= {"0.1"}


def test_what_has_no_table_is_not_decided(maker, monkeypatch):
    """A claim without rows is not run, and never agrees."""
    monkeypatch.setattr(maker, "all_rows", list)
    verdicts = [line.split(" | ")[-1] for line in maker.claims_in_markdown().splitlines() if line.startswith("| “")]
    assert len(verdicts) > 40 and set(verdicts) == {"not run yet |"}


def test_a_table_of_a_figure_decides_claims(maker, monkeypatch, tmp_path):
    """Where results/paper has one, beside what the studies say."""
    folder = tmp_path / "paper" / "fig1"
    folder.mkdir(parents=True)
    (folder / "results.csv").write_text(
        "dataset,method,likelihood,recipe,network,variation,seed,accuracy,pgd,ibp,lbp\n"
        "mnist,swag,pgd,paper,mlp,,0,0.98,0.81,0.0,0.002\nmnist,swag,pgd,paper,mlp,,1,0.98,0.83,0.0,0.0\n"
    )
    (folder / "mnist.json").write_text('{"figure": "fig1", "rows": []}')
    studies = maker.all_rows()
    monkeypatch.setattr(maker, "RESULTS", tmp_path)
    for study in ("_inference", "_certification", "_deep", "_honest"):
        monkeypatch.setattr(maker, study, list)
    monkeypatch.setattr(maker, "_uncertainty", lambda dataset: [])
    rows = maker.all_rows()
    assert len(rows) == 2 and len(studies) > 50
    lines = [line for line in maker.claims_in_markdown().splitlines() if "now around 80%" in line]
    assert "*reproduced*: SWAG 82.0% |" in lines[0]
    assert lines[0].endswith("| agrees (NA, VOGN, BBB, HMC not run yet) |")
