"""Shards that several processes certify, and a cluster: the certificate is that of one process."""

import importlib.util

import pytest
import torch

import certibayes as cb
from certibayes.certification import certify_in_shards
from certibayes.errors import InvalidInput, RunExists
from certibayes.experiments import certify_with
from certibayes.experiments.engines import Local, Ray

SETTINGS = {"eps": 0.05, "method": "theorem1", "shard": 20}
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason='Ray is not installed: pip install "certibayes[cluster]"'
)


@pytest.fixture(scope="module")
def case():
    x, y = cb.data.load("digits").test
    return cb.zoo.load("digits-swag").predictor(3, seed=0), x[:90], y[:90]


@pytest.fixture(scope="module")
def expected(case, tmp_path_factory):
    return certify_in_shards(*case, tmp_path_factory.mktemp("one") / "shards", **SETTINGS)


def same(found, expected):
    assert torch.equal(found.certified, expected.certified) and found.statement == expected.statement
    assert torch.equal(found.lower, expected.lower) and torch.equal(found.upper, expected.upper)
    assert found.provenance == expected.provenance and 0 < int(found.certified.sum()) < len(found)


@pytest.mark.parametrize(
    ("engine", "workers"),
    [
        (Local(threads=1), 1),
        (Local(threads=1), 3),
        pytest.param(Local(2, threads=1), 2, marks=pytest.mark.slow, id="processes"),
        pytest.param(Ray(2), 2, marks=[pytest.mark.slow, needs_ray], id="ray"),
    ],
)
def test_the_certificate_is_that_of_one_process(engine, workers, case, expected, tmp_path):
    found = certify_with(engine, *case, tmp_path / "shards", workers=workers, **SETTINGS)
    same(found, expected)
    assert len(list((tmp_path / "shards").glob("shard-*.safetensors"))) == 5


def test_what_is_finished_is_read(case, expected, tmp_path, monkeypatch):
    certify_with(Local(threads=1), *case, tmp_path, workers=2, **SETTINGS)
    (tmp_path / "shard-00003.safetensors").unlink()
    points = []
    real = cb.certify

    def counted(predictor, x, y, **settings):
        points.append(len(x))
        return real(predictor, x, y, **settings)

    monkeypatch.setattr("certibayes.certification.shards.certify", counted)
    same(certify_with(Local(threads=1), *case, tmp_path, workers=2, **SETTINGS), expected)
    assert points == [20]


def test_what_cannot_be_shared_is_refused(case, tmp_path):
    with pytest.raises(InvalidInput, match="budget"):
        certify_with(
            Local(threads=1), *case, tmp_path, workers=2, **{**SETTINGS, "method": cb.Best(bounds="crown", budget=5)}
        )
    certify_with(Local(threads=1), *case, tmp_path, workers=2, **SETTINGS)
    with pytest.raises(RunExists, match="another certificate"):
        certify_with(Local(threads=1), *case, tmp_path, workers=2, **{**SETTINGS, "eps": 0.1})
