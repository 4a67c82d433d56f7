"""Posteriors of other packages predict here what they predict there. The packages are optional, and so are the tests.

pip install laplace-torch posteriors
"""

import copy
import re
import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import vector_to_parameters

import certibayes as cb

from ..test_guides import GUIDES, run

pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages


def package(name, install):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, reason=f"tests posteriors of another package: pip install {install}")


@pytest.fixture(scope="module")
def trained():
    """A small classifier with batch norm, in eval mode, and its data."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
        x = torch.rand(90, 4)
        y = (3 * x[:, 0]).long()
        optimizer = torch.optim.Adam(net.parameters(), 0.05)
        for _ in range(60):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
    return net.eval(), x, y


def mean_of(net, samples, x, parameters=lambda net: net.parameters()):
    """What torch itself predicts with each vector of parameters, averaged."""
    net, found = copy.deepcopy(net), []
    for vector in samples:
        vector_to_parameters(vector, parameters(net))
        found.append(torch.softmax(net(x).double(), -1))
    return torch.stack(found).mean(0).detach()


class TestLaplaceTorch:
    def fitted(self, trained, **settings):
        laplace = package("laplace", "laplace-torch")
        net, x, y = trained
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 30)
        la = laplace.Laplace(copy.deepcopy(net), "classification", **settings)
        la.fit(data)
        return la

    @pytest.mark.parametrize("structure", ["diag", "full"])
    def test_samples_of_all_weights(self, trained, structure):
        net, x, _ = trained
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            la = self.fitted(trained, subset_of_weights="all", hessian_structure=structure)
            samples = la.sample(20)
            made = cb.Samples.from_vectors(net, samples)
            torch.testing.assert_close(
                made.predictor().probabilities(x).double(), mean_of(net, samples, x), rtol=0, atol=1e-5
            )
            # And what laplace-torch predicts itself, from the same random numbers.
            torch.manual_seed(7)
            drawn = cb.Samples.from_vectors(net, la.sample(50))
            torch.manual_seed(7)
            own = la(x, pred_type="nn", link_approx="mc", n_samples=50)
        torch.testing.assert_close(drawn.predictor().probabilities(x), own.detach(), rtol=0, atol=1e-5)
        assert len(cb.certify(made.predictor(), x[:3], eps=0.001)) == 3

    def test_samples_of_the_last_layer(self, trained):
        net, x, _ = trained
        la = self.fitted(trained, subset_of_weights="last_layer", hessian_structure="full")
        samples = la.sample(20)
        made = cb.Samples.from_vectors(net, samples, names=["3.weight", "3.bias"])
        expected = mean_of(net, samples, x, lambda net: net[3].parameters())
        torch.testing.assert_close(made.predictor().probabilities(x).double(), expected, rtol=0, atol=1e-5)
        with pytest.raises(ValueError, match=r"names=\['3\.weight', '3\.bias'\]"):
            cb.Samples.from_vectors(net, samples)

    def test_a_diagonal_gaussian(self, trained):
        net, *_ = trained
        la = self.fitted(trained, subset_of_weights="all", hessian_structure="diag")
        made = cb.DiagonalGaussian.from_vectors(net, la.mean, la.posterior_variance.sqrt())
        drawn = made.sample(4000, torch.Generator().manual_seed(0))
        flat = torch.cat([drawn[name].flatten(1) for name in made.graph.parameters], 1)
        theirs = la.sample(4000)
        torch.testing.assert_close(flat.std(0), theirs.std(0), rtol=0.1, atol=1e-6)
        error = (flat.var(0) / 2000).sqrt()
        assert bool(((flat.mean(0) - theirs.mean(0)).abs() < 5 * error).all())

    def test_the_code_of_the_guide(self, tmp_path, monkeypatch):
        package("laplace", "laplace-torch")
        monkeypatch.chdir(tmp_path)
        space = run("your-model.md")
        data = torch.utils.data.TensorDataset(space["x_train"][:500], space["y_train"][:500])
        space["train_loader"] = torch.utils.data.DataLoader(data, 100)
        code = re.search(r"^```py\n(.*?)^```", (GUIDES / "your-model.md").read_text(), re.DOTALL | re.MULTILINE)
        exec(code.group(1), space)
        net, x = space["net"], space["x"]
        made = cb.Samples.from_vectors(net, space["vectors"], ["head.weight", "head.bias"], input_shape=(1, 28, 28))
        expected = mean_of(net, space["vectors"], x, lambda net: net.head.parameters())
        torch.testing.assert_close(made.predictor().probabilities(x).double(), expected, rtol=0, atol=1e-5)


class TestPosteriors:
    def log_posterior(self, net):
        def log_posterior(params, batch):
            buffers = dict(net.named_buffers())
            outputs = functional_call(net, (params, buffers), batch[0])
            return -nn.functional.cross_entropy(outputs, batch[1]), outputs

        return log_posterior

    def expected(self, net, samples, x):
        buffers = dict(net.named_buffers())
        each = [torch.softmax(functional_call(net, (own, buffers), x).double(), -1) for own in samples]
        return torch.stack(each).mean(0).detach()

    def test_a_chain(self, trained):
        posteriors = package("posteriors", "posteriors")
        net, x, y = trained
        transform = posteriors.sgmcmc.sgld.build(self.log_posterior(net), lr=1e-3, temperature=1 / 90)
        state, samples = transform.init(dict(net.named_parameters())), []
        for _ in range(5):
            state, _ = transform.update(state, (x, y))
            samples.append(state.params)
        made = cb.Samples(net, samples).predictor()
        torch.testing.assert_close(made.probabilities(x).double(), self.expected(net, samples, x), rtol=0, atol=1e-5)

    def test_variational_inference(self, trained):
        posteriors = package("posteriors", "posteriors")
        torchopt = package("torchopt", "posteriors")
        net, x, y = trained
        transform = posteriors.vi.diag.build(self.log_posterior(net), torchopt.adam(1e-2), temperature=1 / 90)
        state = transform.init(dict(net.named_parameters()))
        state, _ = transform.update(state, (x, y))
        stacked = posteriors.vi.diag.sample(state, torch.Size([6]))
        each = [{name: tensor[i] for name, tensor in stacked.items()} for i in range(6)]
        made = cb.Samples(net, stacked).predictor()
        torch.testing.assert_close(made.probabilities(x).double(), self.expected(net, each, x), rtol=0, atol=1e-5)
        std = {name: log.exp() for name, log in state.log_sd_diag.items()}
        gaussian = cb.DiagonalGaussian(net, state.params, std)
        assert gaussian.predictor(3, data=x).size == 3
