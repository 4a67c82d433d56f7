"""The demo from end to end, in its quick form."""

import json

import pytest

from certibayes.errors import InvalidInput, RunExists
from certibayes.experiments import TrainSpec, run_demo
from certibayes.experiments.demo import SPEC

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    return run_demo(tmp_path_factory.mktemp("demo"), quick=True, progress=False)


def test_results_have_the_promised_shape(demo):
    results = json.loads((demo.out / "results.json").read_text())
    assert set(results) == {"standard", "robust"}
    for figures in results.values():
        assert 0 <= figures["certified"] <= figures["pgd"] <= figures["accuracy"] <= 1
        assert figures["mutual_information"] >= 0
        assert figures["temperature"] > 0


def test_the_robust_network_is_certified_and_the_standard_one_is_not(demo):
    summary = demo.summary()
    assert summary["standard"]["certified"] == 0
    assert summary["robust"]["certified"] > 0


def test_the_report_is_self_contained_and_states_what_was_proved(demo):
    page = (demo.out / "report.html").read_text()
    assert "data:image/png;base64," in page
    assert 'src="http' not in page and 'href="http' not in page
    assert demo.evaluations["robust"].certificate.digest[:16] in page


def test_every_setting_is_spelled_out():
    """The figures in the documentation stay what they are when defaults change."""
    given, complete = SPEC.to_json(), SPEC.resolved().to_json()
    # The multiplier stays the same all the way, and there is no start.
    assert {name for name in given if given[name] != complete[name]} == {"first_multiplier", "start_epochs"}
    assert (SPEC.algorithm, SPEC.architecture, SPEC.channels, SPEC.temperature) == ("swag", "cnn5", 4, 1.0)


def test_only_the_likelihood_differs(demo):
    standard, robust = (demo.specs[name].to_json() for name in ("standard", "robust"))
    assert {name for name in robust if standard[name] != robust[name]} == {"likelihood"}


def test_the_report_says_how_it_was_proved(demo):
    page = (demo.out / "report.html").read_text()
    assert "SWAG" in page and "<code>elided</code>" in page
    assert demo.evaluations["robust"].certificate.method == "elided"


def test_the_figure_is_a_picture(demo):
    assert (demo.out / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_an_earlier_demo_is_kept_on_request(demo):
    with pytest.raises(RunExists, match="already holds"):
        run_demo(demo.out, quick=True)


def test_a_spec_survives_json():
    spec = TrainSpec(hidden=(3, 4), lr=0.1, likelihood="pgd")
    assert TrainSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    with pytest.raises(InvalidInput, match="color"):
        TrainSpec.from_json({"color": "red"})
