"""Steps as CUDA graphs: the same posteriors as without, again and again, and after a resume. Needs a GPU."""

import pytest
import torch

import certibayes as cb
from certibayes.inference import _capture, _meanfield, bbb, loop

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

ALGORITHMS = {
    "map": cb.MAP(),
    "swag": cb.SWAG(start=0.2, every=3),
    "vogn": cb.VOGN(),
    "bbb": cb.BBB(),
    "ensemble": cb.DeepEnsemble(members=2),
    "snapshot": cb.SnapshotEnsemble(members=3, start=0.2),
}
DETERMINISTIC = ("map", "swag", "snapshot")
"""Their steps draw nothing; one vector of all weights draws its normal numbers in another order than tensors apart."""


MANY = {
    **{name: algorithm for name, algorithm in ALGORITHMS.items() if name != "ensemble"},
    "noisy-adam": cb.NoisyAdam(initial_std=0.1),
    "ivon": cb.IVON(initial_std=0.1),
    "sghmc": cb.SGHMC(cycles=1, samples=4, exploration=0.5),
}


class Uncaptured:
    def __init__(self, algorithm, generator, order=None):
        self.algorithm, self.generator = algorithm, generator

    def __call__(self, target, state, steps):
        return _capture.made(self.algorithm, target, state, steps, self.generator)


def data(dtype):
    """Examples for eleven steps: ten at once, and one that is left over."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(352, 1, 8, 8, generator=generator, dtype=dtype)
    return x, torch.randint(0, 4, (352,), generator=generator)


def fitted(name, dtype=torch.float64, net=None, **settings):
    net = cb.networks.mlp(64, [16], 4, seed=0) if net is None else net
    settings = {"epochs": 2, "batch_size": 32, "likelihood": cb.RobustCategorical(eps=0.05), **settings}
    return cb.fit(net.to("cuda", dtype), data(dtype), algorithm=ALGORITHMS[name], seed=0, progress=False, **settings)


def assert_same(one, another, rtol=0.0):
    for key, tensor in one.tensors().items():
        torch.testing.assert_close(tensor, another.tensors()[key], rtol=rtol, atol=0.0)


@pytest.mark.parametrize("adversary", [cb.IBP(), cb.IBP(margins=True), cb.PGD(steps=2)], ids=repr)
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_the_captured_path_agrees_with_the_uncaptured_one(name, adversary, monkeypatch):
    likelihood = cb.RobustCategorical(eps=0.05, adversary=adversary)
    for dtype, rtol in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        captured = fitted(name, dtype, likelihood=likelihood)
        with monkeypatch.context() as patch:
            patch.setattr(loop, "CapturedUpdate", Uncaptured)
            assert_same(captured, fitted(name, dtype, likelihood=likelihood), rtol)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_same_seed_gives_the_same_bits(name):
    assert_same(fitted(name), fitted(name))


@pytest.mark.parametrize("name", ["swag", "vogn", "bbb", "snapshot"])
def test_partly_random_networks_are_captured_too(name, monkeypatch):
    """Their weights are drawn tensor by tensor in both ways."""
    captured = fitted(name, stochastic="last")
    assert_same(captured, fitted(name, stochastic="last"))
    monkeypatch.setattr(loop, "CapturedUpdate", Uncaptured)
    apart = fitted(name, stochastic="last")
    assert_same(captured, apart, 1e-10)
    for key, tensor in captured.buffers.items():
        torch.testing.assert_close(tensor, apart.buffers[key], rtol=1e-10, atol=0.0)


def test_statistics_of_batch_norm_follow_the_data(monkeypatch):
    def net():
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 4)
        )

    captured = fitted("map", net=net())
    monkeypatch.setattr(loop, "CapturedUpdate", Uncaptured)
    apart = fitted("map", net=net())
    assert_same(captured, apart, 1e-10)
    for key, tensor in captured.buffers.items():
        torch.testing.assert_close(tensor, apart.buffers[key])


@pytest.mark.parametrize("name", ["map", "swag", "vogn"])
def test_a_resumed_run_ends_with_the_same_bits(name, tmp_path):
    whole = fitted(name, epochs=4)

    def stop(record):
        if record["epoch"] == 2:
            raise RuntimeError("stopped here")

    with pytest.raises(RuntimeError, match="stopped here"):
        fitted(name, epochs=4, checkpoint=tmp_path, checkpoint_every=0.0, callbacks=[stop])
    assert_same(fitted(name, epochs=4, checkpoint=tmp_path, resume=True), whole)


def test_a_step_that_cannot_be_captured_is_made_all_the_same(monkeypatch):
    class Looks(cb.MAP):
        """Reads its loss on the host, which a graph cannot."""

        def update(self, target, state, batch, noise, generator):
            state, info = super().update(target, state, batch, noise, generator)
            assert float(info["loss"]) > 0
            return state, info

    monkeypatch.setitem(ALGORITHMS, "looks", Looks())
    with pytest.warns(UserWarning, match="a step of Looks cannot be captured into a CUDA graph"):
        found = fitted("looks")
    assert_same(found, fitted("map"), 1e-10)


def test_graphs_of_ten_steps_and_of_one_are_replayed(monkeypatch):
    made = []
    real = _capture.CapturedUpdate._make

    def counted(self, target, state, steps):
        result = real(self, target, state, steps)
        made.append(len(steps))
        assert len(steps) in self.recordings
        return result

    monkeypatch.setattr(_capture.CapturedUpdate, "_make", counted)
    fitted("map")
    assert made == [_capture.TOGETHER, 1] * 2


def test_batches_of_another_shape_are_made_as_they_stand(monkeypatch):
    x, y = data(torch.float64)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 33)
    net = cb.networks.mlp(64, [16], 4, seed=0).to("cuda", torch.float64)

    def found():
        return cb.fit(net, loader, algorithm=cb.MAP(), epochs=2, progress=False)

    captured = found()
    monkeypatch.setattr(loop, "CapturedUpdate", Uncaptured)
    assert_same(captured, found(), 1e-10)


class TestMany:
    """Several models as one graph."""

    @staticmethod
    def runs(name, dtype):
        temperatures = (1.0, 0.5, 0.1)
        nets = [cb.networks.mlp(64, [16], 4, seed=seed).to("cuda", dtype) for seed in range(3)]
        settings = zip(nets, temperatures, strict=True)
        return [{"net": net, "seed": seed, "temperature": t} for seed, (net, t) in enumerate(settings)]

    def fitted(self, name, dtype=torch.float64, runs=None, **settings):
        settings = {"epochs": 2, "batch_size": 32, "likelihood": cb.RobustCategorical(eps=0.05), **settings}
        runs = self.runs(name, dtype) if runs is None else runs
        return cb.fit_many(None, data(dtype), runs, algorithm=MANY[name], progress=False, **settings)

    @pytest.mark.parametrize("name", MANY)
    def test_each_is_what_fit_gives(self, name):
        for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
            found = self.fitted(name, dtype)
            for posterior, run in zip(found, self.runs(name, dtype), strict=True):
                alone = cb.fit(
                    run.pop("net"), data(dtype), algorithm=MANY[name], epochs=2, batch_size=32, progress=False,
                    likelihood=cb.RobustCategorical(eps=0.05), **run,
                )  # fmt: skip
                for key, tensor in alone.tensors().items():
                    # SWAG's variance is a difference of numbers that are nearly the same.
                    if dtype is torch.float64 or name != "swag" or key.startswith("mean:"):
                        difference = float((posterior.tensors()[key] - tensor).abs().max())
                        assert difference <= tolerance * float(tensor.abs().max()), (dtype, key)

    @pytest.mark.parametrize("adversary", [cb.IBP(margins=True), cb.PGD(steps=2)], ids=repr)
    def test_with_other_adversaries(self, adversary):
        likelihood = cb.RobustCategorical(eps=0.05, adversary=adversary)
        found = self.fitted("map", likelihood=likelihood)
        alone = fitted("map", likelihood=likelihood)
        assert_same(found[0], alone, 1e-8)

    @pytest.mark.parametrize("name", MANY)
    def test_the_same_call_gives_the_same_bits(self, name):
        for one, another in zip(self.fitted(name), self.fitted(name), strict=True):
            assert_same(one, another)

    @pytest.mark.parametrize("name", MANY)
    def test_a_resumed_group_ends_with_the_same_bits(self, name, tmp_path):
        whole = self.fitted(name, epochs=4)

        def stop(record):
            if record["epoch"] == 2:
                raise RuntimeError("stopped here")

        with pytest.raises(RuntimeError, match="stopped here"):
            self.fitted(name, epochs=4, checkpoint=tmp_path, checkpoint_every=0.0, callbacks=[stop])
        for one, another in zip(self.fitted(name, epochs=4, checkpoint=tmp_path, resume=True), whole, strict=True):
            assert_same(one, another)

    def test_the_graph_is_replayed_once_for_all(self, monkeypatch):
        made = []
        real = _capture.CapturedUpdate._make

        def counted(self, target, state, steps):
            result = real(self, target, state, steps)
            made.append(len(steps))
            assert len(steps) in self.recordings
            return result

        monkeypatch.setattr(_capture.CapturedUpdate, "_make", counted)
        self.fitted("vogn")
        assert made == [_capture.TOGETHER, 1] * 2

    def test_candidates_of_a_temperature_are_one_group(self):
        settings = {"temperature": (1.0, 0.1), "validation": 0.1}
        chosen = fitted("vogn", **settings)
        alone = fitted("vogn", temperature=chosen.metadata["temperature"], validation=0.1)
        assert_same(chosen, alone, 1e-8)


@pytest.mark.parametrize("name", ["vogn", "bbb", "noisy-adam", "ivon"])
def test_captured_steps_see_the_prior_as_it_is_learned(name, monkeypatch):
    """Without noise in the weights, so that both ways make the same steps."""
    for module in (_meanfield, bbb):
        monkeypatch.setattr(module, "normal_like", lambda mean, generator: torch.zeros_like(mean))
    settings = {"prior": cb.LearnedPrior(every=2), "epochs": 3}
    net = cb.networks.mlp(64, [16], 4, seed=0).to("cuda", torch.float64)

    def trained():
        likelihood = cb.RobustCategorical(eps=0.05)
        common = {"likelihood": likelihood, "batch_size": 32, "seed": 0, "progress": False, **settings}
        return cb.fit(net, data(torch.float64), algorithm=MANY[name], **common)

    captured = trained()
    monkeypatch.setattr(loop, "CapturedUpdate", Uncaptured)
    apart = trained()
    assert_same(captured, apart, 1e-8)
    for parameter, variances in apart.prior_variances.items():
        torch.testing.assert_close(captured.prior_variances[parameter], variances, rtol=1e-8, atol=0.0)
