"""Which pixels matter: the figure of a learned prior."""

import pytest
import torch

import certibayes as cb
from certibayes.errors import InvalidInput
from certibayes.experiments.figures import _input_deviations, relevance_figure


def fitted(shape=(1, 4, 4), **settings):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(40, *shape, generator=generator)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(x[0].numel(), 2))
    settings = {"prior": cb.LearnedPrior(), "epochs": 1, "progress": False, **settings}
    return cb.fit(net, (x, torch.arange(40) % 2), algorithm=cb.BBB(), **settings)


@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 4, 5)])
def test_every_pixel_has_the_deviation_of_its_weights(shape, tmp_path):
    posterior = fitted(shape)
    found = _input_deviations(posterior)
    squares = posterior.mean["1.weight"].double().square() + posterior.std["1.weight"].double().square()
    torch.testing.assert_close(found.flatten().square(), squares.mean(0), rtol=1e-5, atol=0.0)
    assert found.shape == shape
    relevance_figure(posterior, tmp_path / "pixels.png")
    assert (tmp_path / "pixels.png").read_bytes().startswith(b"\x89PNG")


def test_what_has_no_variance_for_every_pixel_is_refused(tmp_path):
    for posterior, words in [
        (fitted(prior=None), "learned"),
        (fitted(prior=cb.LearnedPrior(groups="layers")), "every pixel"),
        (fitted((16,)), "images"),
    ]:
        with pytest.raises(InvalidInput, match=words):
            relevance_figure(posterior, tmp_path / "pixels.png")
