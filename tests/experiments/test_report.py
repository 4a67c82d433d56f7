"""Reports: what they find, what they say, and that they are safe to open."""

import base64
import hashlib
import json
import math
import re
import shlex
from dataclasses import replace

import pytest

from certibayes.errors import CorruptFile, InvalidInput
from certibayes.experiments import compare_runs, write_report
from certibayes.experiments._found import find
from certibayes.experiments._training_curves import HEIGHT, WIDTH, curves_of
from certibayes.experiments._views import without_digests
from certibayes.experiments.report import report_values

from ..pages import HOSTILE, Page
from .report_cases import made_grid, write_json, write_run

pytest.importorskip("jinja2")

SPEC = {"dataset": "digits", "algorithm": "vogn", "likelihood": "ibp", "eps": 0.1, "seed": 0, "settings": {"lr": 0.1}}


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    return made_grid(tmp_path_factory.mktemp("report") / "paper")


def page_of(path, out):
    return Page(write_report(path, out).read_text())


def cells(table, title):
    place = [column.title for column in table.columns].index(title)
    return [row[place].text for row in table.rows]


def test_a_grid_is_found(grid):
    found = find(grid)
    assert found.kind == "grid" and len(found.runs) == 18 and len(found.tables) == 1
    assert [file.name for file in found.tables[0].pictures] == ["fig1.svg"]
    assert {row["cell"] for row in found.tables[0].rows} == {run.name for run in found.runs}
    # The directory of the figure has the same runs.
    assert {run.name for run in find(grid / "fig1").runs} == {run.name for run in found.runs}


def test_ours_stand_beside_the_papers(grid):
    values = report_values(find(grid))
    table = values["figures"][0]["compared"]
    rows = {
        (row[0].text, row[1].text, row[2].text): [cell.text for cell in row[3:]] for row in table.rows
    }  # method, likelihood, figure
    assert [column.title for column in table.columns][:3] == ["method", "likelihood", "figure"]
    ours, seeds, paper, difference, verdict, reason = rows["swag", "ibp", "ibp"]
    assert ours == "70.1% ± 0.1%" and seeds == "3" and paper.startswith("75.0%") and difference == "−4.9%"
    assert verdict == "lower" and "Theorem 1" in reason
    assert rows["swag", "pgd", "pgd"][4] == "agrees" and rows["swag", "pgd", "pgd"][5] == ""
    assert rows["bbb", "ibp", "ibp"][2] == "not stated" and rows["bbb", "ibp", "ibp"][5] == ""
    claims = values["claims"]
    assert "largest of methods" in " ".join(cells(claims, "of")) and set(cells(claims, "figure")) == {"fig1"}
    for verdict, reason in zip(cells(claims, "verdict"), cells(claims, "reason"), strict=True):
        assert (verdict == "agrees") == (reason == "")


def test_a_trial_run_says_so(tmp_path):
    values = report_values(find(made_grid(tmp_path / "paper", quick=True)))
    assert values["trial"]
    reasons = set(cells(values["claims"], "reason"))
    assert len(reasons) == 2 and "" in reasons and "--quick" in max(reasons)


def test_every_row_leads_to_its_run(grid, tmp_path):
    page = page_of(grid, tmp_path / "page.html")
    anchors = {value for name, value in page.attributes if name == "id"}
    links = [value for name, value in page.attributes if name == "href"]
    # 18 posteriors and 18 runs, and the headings.
    assert len(links) >= 36 and all(link.startswith("#") and link[1:] in anchors for link in links)
    assert page.tags.count("polyline") == 36 and "certibayes reproduce fig1 --dataset mnist" in page.text


def test_the_page_stands_alone_and_allows_its_own_script_only(grid, tmp_path):
    source = write_report(grid, tmp_path / "page.html").read_text()
    page = Page(source)
    assert page.tags.count("script") == 1 and "link" not in page.tags
    script = re.search(r"<script>(.*?)</script>", source, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(value for name, value in page.attributes if name == "content" and "default-src" in value)
    assert policy.startswith("default-src 'none';") and f"script-src 'sha256-{digest}'" in policy
    assert "script-src 'unsafe" not in policy and "innerHTML" not in script
    for name, value in page.attributes:
        assert not name.startswith("on") and (name != "src" or value.startswith("data:image/"))
    # A drawing is an image, whatever is in it.
    assert "data:image/svg+xml;base64," in source and "rect" not in page.tags
    assert re.search(r"(?:https?:)?//(?!www\.w3\.org)\w", re.sub(r"^\s*//.*$", "", source, flags=re.M)) is None


def test_whatever_is_hostile_is_escaped(tmp_path):
    folder = tmp_path / "<img src=x onerror=alert(3)>"
    out = made_grid(folder, title=HOSTILE, command=HOSTILE)
    record = json.loads((out / "fig1" / "mnist.json").read_text())
    for row in record["rows"]:
        row["method"] = row["network"] = HOSTILE
    write_json(out / "fig1" / "mnist.json", record)
    rows = (out / "fig1" / "results.csv").read_text()
    (out / "fig1" / "results.csv").write_text(rows.replace("swag", '"' + HOSTILE.replace('"', '""') + '"'))
    metrics = [{"epoch": 1.0, HOSTILE: 1.0}, {"epoch": 2.0, HOSTILE: 2.0}]
    figures = {HOSTILE: {HOSTILE: HOSTILE}}
    write_run(out / "<b>run", {**SPEC, "dataset": HOSTILE, HOSTILE: HOSTILE}, metrics, **figures)
    (out / "<b>run" / "spec.toml").write_text(f"# {HOSTILE}")
    (out / "<b>run" / "certificate.json").write_text(json.dumps({"kind": HOSTILE}))
    clean, page = page_of(made_grid(tmp_path / "clean"), tmp_path / "clean.html"), page_of(out, tmp_path / "page.html")
    assert page.tags.count("script") == clean.tags.count("script") == 1 and "b" not in page.tags
    assert page.tags.count("img") == clean.tags.count("img") and page.tags.count("title") == 1
    assert all(not name.startswith("on") for name, _ in page.attributes)
    assert page.text.count(HOSTILE.strip()) >= 8


def test_a_run(tmp_path):
    path = tmp_path / "my runs" / "a"
    write_run(path, SPEC, [{"epoch": 1.0, "loss": 1.5}], evaluation={"accuracy": 0.9, "inside": {"x": 2}, "all": [1]})
    target = write_report(path)
    page = Page(target.read_text())
    assert target == path / "report.html" and find(path).kind == "run"
    command = f"certibayes train --config {shlex.quote(str(path / 'spec.toml'))} --out OTHER"
    assert command in page.text and "90.0%" in page.text and "inside.x" in page.text
    # Again: it is ours.
    assert write_report(path) == target


@pytest.mark.parametrize(
    ("state", "words"), [("started.json", "--resume"), ("diverged.json", "left the finite numbers")]
)
def test_runs_that_are_not_finished(state, words, tmp_path):
    write_run(tmp_path / "a", SPEC, state=state, diverged="the loss left the finite numbers")
    assert words in page_of(tmp_path / "a", tmp_path / "page.html").text


def test_another_page_is_not_replaced(tmp_path):
    write_run(tmp_path, SPEC)
    (tmp_path / "report.html").write_text("<h1>mine</h1>")
    with pytest.raises(InvalidInput, match="--out"):
        write_report(tmp_path)
    assert (tmp_path / "report.html").read_text() == "<h1>mine</h1>"


def test_a_study_is_shown_as_it_is(tmp_path):
    (tmp_path / "results.csv").write_text("method,proved\nswag,0.25\nbbb,nan\n")
    (tmp_path / "rules.png").write_bytes(b"\x89PNG")
    page = page_of(tmp_path, tmp_path / "page.html")
    assert "0.25" in page.text and page.tags.count("img") == 1 and ("data-key", "0.25") in page.attributes


def test_numbered_figures_come_before_the_others(tmp_path):
    for name in ("eta", "fig2", "fig1", "regression"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.csv").write_text("method,certified\nmap,0.5\n")
    assert [table.name for table in find(tmp_path).tables] == ["fig1", "fig2", "eta", "regression"]


def test_nothing_and_nonsense_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no directory"):
        write_report(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match="holds no run"):
        write_report(tmp_path)
    for content in ("{", "[]", "{}"):
        (tmp_path / "run.json").write_text(content)
        with pytest.raises(CorruptFile):
            write_report(tmp_path)


def test_cells_of_a_table_do_not_lead_out_of_the_grid(tmp_path):
    out = made_grid(tmp_path / "paper")
    write_run(tmp_path / "secret", SPEC)
    record = json.loads((out / "fig1" / "mnist.json").read_text())
    record["rows"][0]["cell"] = "../../secret"
    write_json(out / "fig1" / "mnist.json", record)
    assert len(find(out / "fig1").runs) == 17


def test_curves_stay_on_their_plane_and_stop_where_values_are_not_finite():
    records = [
        {"epoch": float(epoch), "loss": loss}
        for epoch, loss in enumerate([3.0, 1.0, math.nan, -1e308, 1e308, math.inf])
    ]
    (curve,) = curves_of([*records, {"epoch": 6.0}])
    assert len(curve.lines) == 2 and (curve.low, curve.high, curve.last) == (-1e308, 1e308, [math.inf])
    for x, y in re.findall(r"(\S+),(\S+)", " ".join(line.points for line in curve.lines)):
        assert 0 <= float(x) <= WIDTH and 0 <= float(y) <= HEIGHT
    assert curves_of([{"epoch": 1.0, "loss": math.nan}]) == [] and curves_of([]) == []
    (flat,) = curves_of([{"epoch": 1.0, "loss": 2.0}])
    assert len(flat.lines[0].points.split()) == 2


def test_curves_of_two_runs_have_one_scale():
    short, long = ([{"epoch": float(e), "loss": scale * e} for e in range(1, n)] for scale, n in ((2.0, 3), (1.0, 6)))
    (curve,) = curves_of(short, long)
    assert [line.run for line in curve.lines] == [0, 1] and curve.last == [4.0, 5.0]
    assert (curve.low, curve.high, curve.first_epoch, curve.last_epoch) == (1.0, 5.0, 1.0, 5.0)
    assert curve.lines[0].points == "0.0,60.0 60.0,20.0" and curve.lines[1].points.endswith("240.0,0.0")


def test_two_runs_side_by_side(tmp_path):
    write_run(tmp_path / "a", SPEC, [{"epoch": 1.0, "loss": 2.0}], evaluation={"accuracy": 0.9, "pgd": 0.5})
    other = {**SPEC, "seed": 1, "settings": {"lr": 0.2}}
    write_run(tmp_path / "b", other, [{"epoch": 1.0, "loss": 1.0}], evaluation={"accuracy": 0.95})
    found = compare_runs(tmp_path / "a", tmp_path / "b")
    assert found.settings == {"seed": ("0", "1"), "lr": ("0.1", "0.2")}
    assert found.figures["evaluation.accuracy"] == (0.9, 0.95) and found.figures["evaluation.pgd"] == (0.5, None)
    assert found.figures["last epoch: loss"] == (2.0, 1.0)
    assert json.loads(json.dumps(found.summary(), allow_nan=False))["figures"]["evaluation.pgd"] == [0.5, None]
    assert replace(found, figures={"loss": (math.nan, 1.0)}).summary()["figures"]["loss"] == ["nan", 1.0]
    found.page(tmp_path / "page.html")
    page = Page((tmp_path / "page.html").read_text())
    assert "95.0%" in page.text and "Settings that differ" in page.text and page.tags.count("polyline") == 2
    assert compare_runs(tmp_path / "a", tmp_path / "a").settings == {}
    with pytest.raises(FileNotFoundError, match="holds no run"):
        compare_runs(tmp_path / "a", tmp_path)


def test_evaluations_are_named_by_their_kind_where_that_says_which():
    plain, other = "robustness-0123456789ab", "robustness-ba9876543210"
    assert without_digests(["evaluation", plain, "radius-0123456789ab"]) == {
        "evaluation": "evaluation", plain: "robustness", "radius-0123456789ab": "radius",
    }  # fmt: skip
    # Measured in two ways, they stay apart.
    assert without_digests([plain, other]) == {plain: plain, other: other}


def test_two_runs_that_were_measured_alike_have_the_same_names(tmp_path):
    same, other = "robustness-0123456789ab", "robustness-ba9876543210"
    for name, key, accuracy in (("a", same, 0.9), ("b", same, 0.8), ("c", other, 0.7)):
        write_run(tmp_path / name, SPEC, **{key: {"accuracy": accuracy}})
    assert compare_runs(tmp_path / "a", tmp_path / "b").figures["robustness.accuracy"] == (0.9, 0.8)
    # Measured otherwise, it is another figure.
    assert compare_runs(tmp_path / "a", tmp_path / "c").figures[f"{same}.accuracy"] == (0.9, None)
