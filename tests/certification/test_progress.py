"""Progress of certificates: a bar, nothing, or a function that is called up to the end."""

import pytest
import torch

import certibayes as cb
from certibayes.certification import certify_in_shards
from certibayes.errors import InvalidInput

from ..linear_cases import BALL, POSTERIOR, PREDICTOR, REGRESSOR

X = torch.rand(7, 3, generator=torch.Generator().manual_seed(0))
Y = PREDICTOR.predict(X)

CALLS = {
    "certify": (7, lambda path, **p: cb.certify(PREDICTOR, X, batch_size=3, **BALL, **p)),
    "shards": (7, lambda path, **p: certify_in_shards(PREDICTOR, X, Y, path, shard=4, batch_size=3, **BALL, **p)),
    "radius": (35, lambda path, **p: cb.certified_radius(PREDICTOR, X, largest=0.4, tolerance=0.05, **p)),
    "regression": (7, lambda path, **p: cb.certify_regression(REGRESSOR, X, batch_size=3, **BALL, **p)),
    "robust": (4, lambda path, **p: cb.robust_probability(POSTERIOR, X, Y, samples=4, **BALL, **p)),
    "predictive": (4, lambda path, **p: cb.posterior_predictive_bounds(POSTERIOR, X, Y, samples=4, **BALL, **p)),
    "check": (7, lambda path, **p: cb.check_certificate(CERTIFICATE, PREDICTOR, X, batch_size=3, **p)),
}
CERTIFICATE = cb.certify(PREDICTOR, X, **BALL)


@pytest.mark.parametrize("name", CALLS)
def test_a_function_is_called_up_to_the_end(name, tmp_path):
    total, call = CALLS[name]
    seen: list[tuple[int, int]] = []
    call(tmp_path, progress=lambda done, of: seen.append((done, of)))
    assert seen[-1] == (total, total) and {of for _, of in seen} == {total}
    assert len(seen) > 2 and seen == sorted(seen)


@pytest.mark.parametrize("name", CALLS)
def test_a_bar_is_shown_on_request_and_not_by_default(name, tmp_path, capsys):
    total, call = CALLS[name]
    call(tmp_path / "silent")
    call(tmp_path / "silent too", progress=False)
    silent = capsys.readouterr()
    assert silent.out == silent.err == ""
    call(tmp_path / "shown", progress=True)
    shown = capsys.readouterr()
    assert f"{total}/{total}" in shown.err and shown.out == ""


@pytest.mark.parametrize("name", CALLS)
def test_nothing_else_is_taken_for_progress(name, tmp_path):
    with pytest.raises(InvalidInput, match="progress must be True"):
        CALLS[name][1](tmp_path, progress=None)
