"""certibayes page."""

import pytest

from .cases import LIMIT, certified, invoke


@pytest.fixture(scope="module")
def folder(certifiable_run, tmp_path_factory):
    out = tmp_path_factory.mktemp("page") / "certified"
    assert certified(certifiable_run, out).exit_code == 0
    return out


def test_a_page_is_written_beside_the_certificate(folder):
    result = invoke("page", folder)
    assert result.exit_code == 0 and "certificate.html" in result.output
    assert "What is proved" in (folder / "certificate.html").read_text()


def test_points_of_the_data_set_are_shown(folder, tmp_path):
    out = tmp_path / "own.html"
    settings = ("--dataset", "digits", "--points", "0,7", "--title", "<b>Ours</b>", "--out", out)
    result = invoke("page", folder / "certificate.json", *settings)
    assert result.exit_code == 0, result.output
    page = out.read_text()
    assert page.count("<img ") == 2 and f"2 of the {LIMIT} points" in page and "&lt;b&gt;Ours" in page


def test_other_points_are_refused(folder, tmp_path):
    out = tmp_path / "page.html"
    result = invoke("page", folder, "--dataset", "diabetes", "--out", out)
    assert result.exit_code == 1 and "not what this certificate is about" in result.stderr and not out.exists()


def test_points_that_are_no_numbers_are_refused(folder):
    result = invoke("page", folder, "--points", "first")
    assert result.exit_code == 1 and "such as 0,3,17" in result.stderr


def test_a_file_that_is_no_certificate_is_refused(tmp_path):
    (tmp_path / "certificate.json").write_text("{}")
    result = invoke("page", tmp_path)
    assert result.exit_code == 1 and not (tmp_path / "certificate.html").exists()
