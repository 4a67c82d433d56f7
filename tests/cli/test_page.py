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


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A table of one's own, a run on it, and its certificates of the rows it left out and of another file."""
    where = tmp_path_factory.mktemp("table")
    for name, shift in (("own", 0.0), ("other", 0.25)):
        rows = [f"{k % 7 + shift},{-k % 5},{'large' if k % 7 > 3 else 'small'}" for k in range(40)]
        (where / f"{name}.csv").write_text("\n".join(["mass,height,answer", *rows]) + "\n")
    own = ("--data", where / "own.csv", "--target", "answer")
    settings = ("--algorithm", "map", "--hidden", 4, "--epochs", 2, "--batch-size", 10, "--eps", 0.05)
    assert invoke("train", *own, *settings, "--out", where / "run").exit_code == 0
    assert invoke("certify", where / "run", "--out", where / "own").exit_code == 0
    other = ("--data", where / "other.csv")
    assert invoke("certify", where / "run", *other, "--out", where / "other").exit_code == 0
    return where


@pytest.mark.parametrize("name", ["own", "other"])
def test_points_of_a_file_are_shown_with_its_columns_and_classes(table, name, tmp_path):
    out = tmp_path / "page.html"
    result = invoke("page", table / name, "--data", table / f"{name}.csv", "--target", "answer", "--out", out)
    assert result.exit_code == 0, result.output
    assert all(word in out.read_text() for word in ("mass", "height", "large", "small"))


def test_points_of_another_file_are_refused(table, tmp_path):
    out = tmp_path / "page.html"
    result = invoke("page", table / "own", "--data", table / "other.csv", "--target", "answer", "--out", out)
    assert result.exit_code == 1 and "not what this certificate is about" in result.stderr and not out.exists()


@pytest.mark.parametrize("others", [("--dataset", "digits", "--data", "own.csv"), ("--target", "answer")])
def test_what_says_two_things_or_says_them_of_no_file_is_refused(table, others):
    result = invoke("page", table / "own", *others)
    assert result.exit_code == 1 and "--data" in result.stderr


def test_another_number_of_classes_is_another_data_set(table):
    result = invoke("page", table / "own", "--dataset", "digits")
    assert result.exit_code == 1 and "not what this certificate is about" in result.stderr
