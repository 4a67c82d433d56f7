"""--norm on certify and radius."""

import json

import pytest

from .cases import certified, invoke


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_a_certificate_in_another_norm_is_stored_resumed_and_checked(certifiable_run, tmp_path, norm):
    run = certifiable_run
    for _ in range(2):
        result = certified(run, tmp_path / "out", "--norm", norm, "--json")
        assert result.exit_code == 0, result.output
        record = json.loads(result.stdout)
        assert record["norm"] == norm and f"{norm} distance" in record["statement"] and record["certified"] > 0
    checked = json.loads(invoke("check", run, tmp_path / "out", "--json").stdout)
    assert checked["holds"] and checked["norm"] == norm and checked["confirmed"] > 0
    other = certified(run, tmp_path / "out")
    assert other.exit_code != 0 and "norm" in other.output


def test_radii_and_words(certifiable_run):
    run = certifiable_run
    result = invoke("radius", run, "--limit", 10, "--samples", 2, "--norm", "l2", "--largest", 2, "--tolerance", 0.5)
    assert result.exit_code == 0 and "in l2" in result.output and "l2 distance radius" in result.output
    for command in ("certify", "radius"):
        assert "--norm" in invoke(command, "--help").output
        refused = invoke(command, run, "--limit", 5, "--norm", "l7")
        assert refused.exit_code != 0 and "linf, l2, l1" in refused.output
