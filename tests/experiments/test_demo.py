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


def test_every_setting_of_the_algorithm_is_spelled_out():
    """The figures in the README stay what they are when defaults change."""
    complete = SPEC.resolved()
    assert (SPEC.lr, SPEC.ramp, SPEC.temperature) == (0.003, 0.5, 0.001)
    assert SPEC.settings == complete.settings
    assert (SPEC.schedule, SPEC.warmup) == (complete.schedule, complete.warmup) == ("cosine", 0.05)


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
