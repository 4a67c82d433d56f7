"""Certificates in shards: the same as at once, kept when stopped, and never mixed with another's."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.certification import certify_in_shards, shards
from certibayes.errors import CorruptFile, InvalidInput, RunExists

SPLITTING = cb.Best("crown", budget=23.0)
SETTINGS = {"eps": 0.05, "method": "theorem1", "rounding": "outward", "domain": (0.0, 1.0)}


@pytest.fixture(scope="module")
def case():
    torch.manual_seed(0)
    predictor = cb.Point(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4))).predictor()
    x = torch.rand(23, 3)
    return predictor, x, predictor.predict(x)


def test_shards_make_the_same_certificate(case, tmp_path):
    expected = cb.certify(*case, **SETTINGS)
    found = certify_in_shards(*case, tmp_path / "out", shard=5, **SETTINGS)
    assert torch.equal(found.certified, expected.certified) and found.certified.any()
    torch.testing.assert_close(found.lower, expected.lower, atol=1e-6, rtol=1e-4)
    for name in ("labels", "predicted"):
        assert torch.equal(getattr(found, name), getattr(expected, name))
    for name in ("statement", "digest", "inputs_digest", "domain", "eps", "samples"):
        assert getattr(found, name) == getattr(expected, name)
    assert len(list((tmp_path / "out").glob("shard-*"))) == 5


class Stopped(KeyboardInterrupt):
    pass


def _stop_after(count, monkeypatch):
    """Let certify be interrupted after so many shards; return the number of calls so far."""
    calls, certify = [], cb.certify

    def stopping(*arguments, **settings):
        if len(calls) == count:
            raise Stopped
        calls.append(len(arguments[1]))
        return certify(*arguments, **settings)

    monkeypatch.setattr(shards, "certify", stopping)
    return calls


def test_what_was_finished_is_not_done_again(case, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        _stop_after(3, patch)
        certify_in_shards(*case, tmp_path, shard=5, **SETTINGS)
    assert sorted(path.name for path in tmp_path.glob("shard-*")) == [f"shard-{i:05d}.safetensors" for i in range(3)]
    seen = []
    calls = _stop_after(100, monkeypatch)
    found = certify_in_shards(
        *case, tmp_path, shard=5, progress=lambda done, total: seen.append((done, total)), **SETTINGS
    )
    assert calls == [5, 3]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen) and seen[-1] == (23, 23)
    assert torch.equal(found.certified, cb.certify(*case, **SETTINGS).certified)
    certify_in_shards(*case, tmp_path, shard=5, **SETTINGS)
    assert calls == [5, 3]


def test_without_labels_the_predicted_classes_are_certified(case, tmp_path):
    predictor, x, _ = case
    found = certify_in_shards(predictor, x, None, tmp_path, shard=10, **SETTINGS)
    assert torch.equal(found.labels, found.predicted)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"eps": 0.06}, "eps is 0.05 there and 0.06 here"),
        ({"method": "pairwise"}, "method is 'theorem1' there and 'pairwise' here"),
        ({"method": cb.Theorem1("crown")}, "bounds is 'ibp' there and 'crown' here"),
        ({"rounding": "ideal"}, "rounding"),
        ({"domain": None}, "domain"),
        ({"shard": 6}, "shard is 5 there and 6 here"),
        ({"x": torch.full((23, 3), 0.5)}, "points"),
        ({"y": torch.zeros(23, dtype=torch.int64)}, "labels"),
        ({"predictor": cb.Point(nn.Linear(3, 4)).predictor()}, "predictor"),
    ],
)
def test_another_certificates_directory_is_refused(case, tmp_path, change, words):
    arguments = {**dict(zip(("predictor", "x", "y"), case, strict=True)), "shard": 5, **SETTINGS}
    certify_in_shards(directory=tmp_path, **arguments)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(RunExists, match=words):
        certify_in_shards(directory=tmp_path, **{**arguments, **change})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_another_version_is_refused(case, tmp_path, monkeypatch):
    certify_in_shards(*case, tmp_path, shard=5, **SETTINGS)
    monkeypatch.setattr(shards, "__version__", "99.0")
    with pytest.raises(RunExists, match="version"):
        certify_in_shards(*case, tmp_path, shard=5, **SETTINGS)


def test_a_directory_of_other_files_is_refused(case, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(RunExists, match="other files"):
        certify_in_shards(*case, tmp_path, **SETTINGS)


def test_wrong_settings_do_not_claim_a_directory(case, tmp_path):
    with pytest.raises(InvalidInput, match="method must be"):
        certify_in_shards(*case, tmp_path / "out", **{**SETTINGS, "method": "majority"})
    certify_in_shards(*case, tmp_path / "out", **SETTINGS)


def test_a_changed_shard_is_noticed(case, tmp_path):
    certify_in_shards(*case, tmp_path, shard=5, **SETTINGS)
    file = tmp_path / "shard-00001.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    with pytest.raises(CorruptFile, match="checksum"):
        certify_in_shards(*case, tmp_path, shard=5, **SETTINGS)


def test_a_shard_from_elsewhere_is_noticed(case, tmp_path):
    predictor, x, y = case
    certify_in_shards(predictor, x, y, tmp_path / "a", shard=5, **SETTINGS)
    certify_in_shards(predictor, x.flip(0), y.flip(0), tmp_path / "b", shard=5, **SETTINGS)
    (tmp_path / "b" / "shard-00001.safetensors").replace(tmp_path / "a" / "shard-00001.safetensors")
    with pytest.raises(RunExists, match="points"):
        certify_in_shards(predictor, x, y, tmp_path / "a", shard=5, **SETTINGS)
    file = tmp_path / "a" / "shard-00001.safetensors"
    file.write_bytes((tmp_path / "a" / "shard-00002.safetensors").read_bytes())
    with pytest.raises(CorruptFile, match="another shard"):
        certify_in_shards(predictor, x, y, tmp_path / "a", shard=5, **SETTINGS)


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_broken_description_is_reported(case, tmp_path, content):
    (tmp_path / "shards.json").write_text(content)
    with pytest.raises(CorruptFile):
        certify_in_shards(*case, tmp_path, **SETTINGS)


def test_there_must_be_points_and_shards(case, tmp_path):
    predictor, x, y = case
    with pytest.raises(InvalidInput, match="no points"):
        certify_in_shards(predictor, x[:0], y[:0], tmp_path, **SETTINGS)
    with pytest.raises(InvalidInput, match="shard"):
        certify_in_shards(predictor, x, y, tmp_path, shard=0, **SETTINGS)
    assert not any(tmp_path.iterdir())


def test_a_posterior_gets_advice(case, tmp_path):
    _, x, y = case
    with pytest.raises(InvalidInput, match="Draw them first"):
        certify_in_shards(cb.Point(nn.Linear(3, 4)), x, y, tmp_path, **SETTINGS)
    assert not any(tmp_path.iterdir())


def test_reasons_keep_their_points(case, tmp_path, monkeypatch):
    """Of a point that nothing could be concluded about, also when the shards are read again."""
    certify = cb.certify

    def partly(*arguments, **settings):
        return replace(certify(*arguments, **settings), reasons={1: f"{len(arguments[1])} points"})

    monkeypatch.setattr(shards, "certify", partly)
    expected = {1: "10 points", 11: "10 points", 21: "3 points"}
    for _ in range(2):
        assert certify_in_shards(*case, tmp_path, shard=10, **SETTINGS).reasons == expected


def test_certificates_of_two_predictors_are_not_joined(case):
    predictor, x, y = case
    other = cb.Point(nn.Linear(3, 4)).predictor()
    parts = [cb.certify(one, x, y, **SETTINGS) for one in (predictor, other)]
    with pytest.raises(InvalidInput, match="provenance"):
        shards.join(parts, "0" * 64)


class TestBudget:
    def test_shards_divide_what_earlier_ones_left(self, case, tmp_path, monkeypatch):
        seconds, stops, certify = [], [3], cb.certify

        def taking(*arguments, method, **settings):
            """Say that every shard took two seconds; be interrupted once, after three of them."""
            if len(seconds) in stops:
                stops.clear()
                raise Stopped
            seconds.append(method.seconds)
            return replace(certify(*arguments, method=method.with_seconds(0.01), **settings), spent=2.0)

        monkeypatch.setattr(shards, "certify", taking)
        with pytest.raises(Stopped):
            certify_in_shards(*case, tmp_path, shard=5, eps=0.2, method=SPLITTING)
        found = certify_in_shards(*case, tmp_path, shard=5, eps=0.2, method=SPLITTING)
        assert seconds == pytest.approx([5.0, 21 * 5 / 18, 19 * 5 / 13, 17 * 5 / 8, 15.0])
        assert found.spent == 10.0

    def test_what_would_try_harder_is_said_of_the_whole_budget(self, case, tmp_path):
        """Not of the seconds, which differ."""
        method = cb.Best("crown", budget=0.5)
        found = certify_in_shards(*case, tmp_path, shard=5, eps=0.2, domain=(-9.0, 9.0), method=method)
        assert found.harder == method.harder and "more than 0.5 seconds" in found.harder

    def test_a_budget_that_is_used_up_leaves_three_answers(self, case, tmp_path):
        found = certify_in_shards(*case, tmp_path, shard=5, eps=0.2, method=SPLITTING.with_seconds(1e-6))
        assert len(found.attacked) == len(found.counterexamples) == 23
        assert bool((found.certified.int() + found.attacked.int() + found.unknown.int() == 1).all())
        predictor, _, y = case
        assert bool(found.attacked.any())
        assert bool((predictor.predict(found.counterexamples) != y)[found.attacked].all())
        again = certify_in_shards(*case, tmp_path, shard=5, eps=0.2, method=SPLITTING.with_seconds(1e-6))
        assert torch.equal(again.counterexamples, found.counterexamples) and again.spent == found.spent

    def test_another_budget_is_another_certificate(self, case, tmp_path):
        certify_in_shards(*case, tmp_path, shard=5, eps=0.2, method=SPLITTING.with_seconds(1e-6))
        for other in (SPLITTING, cb.Best("crown")):
            with pytest.raises(RunExists, match="budget is 1e-06 there"):
                certify_in_shards(*case, tmp_path, shard=5, eps=0.2, method=other)


@pytest.mark.parametrize(
    ("change", "name", "value"),
    [({"norm": "l2"}, "norm", "l2"), ({"method": cb.Theorem1("crown", "crown")}, "intermediates", "crown")],
)
def test_how_it_was_proved_is_described_and_kept(case, tmp_path, change, name, value):
    settings = {**SETTINGS, **change}
    found = certify_in_shards(*case, tmp_path, **settings)
    assert json.loads((tmp_path / "shards.json").read_text())[name] == value == getattr(found, name)
    again = certify_in_shards(*case, tmp_path, **settings)
    assert again.statement == found.statement and value in again.statement
    with pytest.raises(RunExists, match=f"{name} is '{value}' there"):
        certify_in_shards(*case, tmp_path, **{**settings, **SETTINGS, "norm": "linf"})


def test_the_description_is_readable(case, tmp_path):
    certify_in_shards(*case, tmp_path, **SETTINGS)
    about = json.loads((tmp_path / "shards.json").read_text())
    assert about["eps"] == 0.05 and about["predictor"] == case[0].digest and about["version"] == cb.__version__
