"""Some parameters are inferred and the others fitted by MAP, by every algorithm, and the posterior says which."""

from functools import cache

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import certibayes as cb
from certibayes.errors import InvalidInput, RunExists
from certibayes.inference import Target
from certibayes.inference._partly import PartlyRandom, PartTarget, random_parameters
from certibayes.networks import trace

from ..strategies import in_turn
from .cases import (
    ALGORITHMS,
    BATCH_SIZE,
    EPOCHS,
    LIKELIHOODS,
    SIZE,
    STEPS,
    assert_same_posterior,
    batch_norm_net,
    data_for,
    differ,
    fit,
    inputs,
    network,
)

REFUSED = ("map-adam", "map-sgd", "ensemble")
SOME = {name: algorithm for name, algorithm in ALGORITHMS.items() if name not in REFUSED}
TRAINED = {name: algorithm for name, algorithm in SOME.items() if not algorithm.full_batch}
every_algorithm = pytest.mark.parametrize("algorithm", SOME.values(), ids=SOME)
every_trained = pytest.mark.parametrize("algorithm", TRAINED.values(), ids=TRAINED)
pairs = pytest.mark.parametrize(
    ("algorithm", "likelihood"),
    [
        *in_turn(SOME, ["standard", "ibp", "pgd", "regression"]),
        *((name, "ibp-margins") for name in ("vogn", "noisy-adam", "laplace", "laplace-last-layer")),
    ],
)

BODY, HEAD = ("1.weight", "1.bias"), ("3.weight", "3.bias")


@cache
def fitted(algorithm, likelihood):
    return fit(LIKELIHOODS[likelihood], algorithm=SOME[algorithm], stochastic="last", seed=4)


@pairs
class TestLastLayer:
    def test_the_others_are_constants_of_the_posterior(self, algorithm, likelihood):
        posterior = fitted(algorithm, likelihood)
        drawn = posterior.sample(2, torch.Generator().manual_seed(0))
        assert posterior.graph.parameters == HEAD and posterior.graph.fitted == BODY
        assert all(torch.equal(drawn[name], drawn[name][:1].expand_as(drawn[name])) for name in BODY)
        assert not any(torch.equal(drawn[name][0], drawn[name][1]) for name in HEAD)

    def test_they_are_trained_but_by_hmc_which_samples_one_density(self, algorithm, likelihood):
        posterior, start = fitted(algorithm, likelihood), dict(network().named_parameters())
        moved = [not torch.equal(posterior.buffers[name], start[name]) for name in BODY]
        assert not any(moved) if SOME[algorithm].full_batch else all(moved)

    def test_the_posterior_says_which(self, algorithm, likelihood):
        posterior = fitted(algorithm, likelihood)
        others = {"constant": list(BODY)} if SOME[algorithm].full_batch else {"map": list(BODY), "map_lr": 0.003}
        assert posterior.metadata["stochastic"] == {"random": list(HEAD), **others}
        assert posterior.metadata["algorithm"]["name"] == type(SOME[algorithm]).__name__
        assert "2 more not random" in repr(posterior)

    def test_it_survives_the_disk(self, algorithm, likelihood, tmp_path):
        posterior = fitted(algorithm, likelihood)
        posterior.save(tmp_path)
        loaded = cb.load(tmp_path)
        assert_same_posterior(loaded, posterior)
        assert loaded.metadata == posterior.metadata and loaded.graph == posterior.graph
        assert loaded.predictor(2).digest == posterior.predictor(2).digest

    def test_a_run_is_resumed_to_the_same_bits(self, algorithm, likelihood, tmp_path):
        def break_off(record):
            if record["epoch"] == EPOCHS - 1:
                raise RuntimeError("power cut")

        settings = {"algorithm": SOME[algorithm], "seed": 4, "checkpoint": tmp_path}
        with pytest.raises(RuntimeError, match="power cut"):
            fit(LIKELIHOODS[likelihood], callbacks=[break_off], stochastic="last", **settings)
        with pytest.raises(RunExists, match="it differs in"):
            fit(LIKELIHOODS[likelihood], resume=True, **settings)
        resumed = fit(LIKELIHOODS[likelihood], resume=True, stochastic="last", **settings)
        assert_same_posterior(resumed, fitted(algorithm, likelihood))


@every_algorithm
def test_with_everything_random_it_is_the_run_without_it(algorithm):
    likelihood = LIKELIHOODS["ibp"]
    every = fit(likelihood, algorithm=algorithm, stochastic="*")
    assert_same_posterior(every, fit(likelihood, algorithm=algorithm))
    assert "stochastic" not in every.metadata and not every.graph.fitted


class TestAgainstMAP:
    """Where the sample is the mean to the bit, all others see what MAP would show them."""

    def test_with_the_random_part_at_rest_the_others_are_those_of_map_with_it_frozen(self):
        still = cb.BBB(lr=0.0, initial_std=1e-12)
        frozen = network()
        frozen[3].requires_grad_(False)
        for likelihood in (LIKELIHOODS["standard"], LIKELIHOODS["ibp"]):
            found = fit(likelihood, algorithm=still, stochastic="last", map_lr=0.02)
            expected = fit(likelihood, frozen, algorithm=cb.MAP(lr=0.02))
            assert all(torch.equal(found.buffers[name], expected.params[name]) for name in BODY)

    @pytest.mark.parametrize("clip", [None, 0.05])
    def test_laplace_is_around_the_point_that_map_finds(self, clip):
        """Its random part is trained by Adam too: with one rate, one norm and one prior both parts are one run."""
        settings = {
            "prior": cb.GaussianPrior(variance_scale=5.0, l1=0.01),
            "clip": clip,
            "likelihood": LIKELIHOODS["ibp"],
        }
        algorithm = cb.Laplace(lr=0.02, structure="diagonal")
        found = fit(algorithm=algorithm, stochastic="last", map_lr=0.02, **settings)
        expected = fit(algorithm=cb.MAP(lr=0.02), **settings)
        for name, own in {**found.buffers, **found.mean}.items():
            assert torch.equal(own, expected.params[name]), name

    def test_its_rate_follows_the_schedule(self):
        schedule = cb.Schedule("cosine", warmup=0.3)
        found = fit(algorithm=cb.Laplace(lr=0.02), stochastic="last", map_lr=0.02, schedule=schedule)
        expected = fit(algorithm=cb.MAP(lr=0.02), schedule=schedule)
        for name in BODY:
            torch.testing.assert_close(found.buffers[name], expected.params[name], rtol=1e-5, atol=1e-7)

    def test_a_rate_of_zero_is_a_frozen_body(self):
        frozen = network()
        frozen[1].requires_grad_(False)
        for algorithm in TRAINED.values():
            found = fit(algorithm=algorithm, stochastic="last", map_lr=0.0)
            expected = fit(net=frozen, algorithm=algorithm)
            assert all(torch.equal(found.buffers[name], expected.buffers[name]) for name in BODY)
            for name, tensor in expected.tensors().items():
                torch.testing.assert_close(found.tensors()[name], tensor)


@pytest.mark.parametrize("algorithm", ["vogn", "bbb"])
def test_the_others_descend_the_gradient_at_the_sample(algorithm):
    """In double precision, against autograd of the whole loss; one step of Adam is its sign."""
    target, params, batch = _target(LIKELIHOODS["ibp"])
    partly, generator = PartlyRandom(SOME[algorithm], 0.01), torch.Generator()
    state = partly.init(target, params, generator)
    seen = {}

    class Watched(Target):
        def mean_loss_and_gradient(self, params, batch, noise):
            seen.update(params)
            return super().mean_loss_and_gradient(params, batch, noise)

    watched = Watched(**vars(target))
    noise = target.likelihood.draw(1.0, batch, generator)
    after, _ = partly.update(watched, state, batch, noise, generator)
    sample = {name: p.clone().requires_grad_() for name, p in seen.items()}
    (-target.log_likelihood(sample, batch, noise).mean()).backward()
    for name in BODY:
        slope = sample[name].grad + target.prior[name] * params[name]
        torch.testing.assert_close(after.moments.first[name], 0.1 * slope, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(after.others[name], params[name] - 0.01 * slope / (slope.abs() + 1e-8))


def _target(likelihood):
    """Everything in double precision, with the last layer random."""
    batch, net = data_for(likelihood, torch.float64), network().double()
    traced = trace(net, batch.inputs)
    precision = cb.GaussianPrior(variance_scale=10.0).precisions(traced.graph, traced.params)
    graph = traced.with_random(HEAD).graph
    return Target(graph, traced.buffers, likelihood, precision, SIZE, 1.0, STEPS, EPOCHS * STEPS), traced.params, batch


@every_trained
class TestUpdate:
    """The contract of algorithms."""

    def start(self, algorithm):
        target, params, batch = _target(LIKELIHOODS["ibp"])
        noise = target.likelihood.draw(0.5, batch, torch.Generator().manual_seed(0))
        partly = PartlyRandom(algorithm)
        return partly, target, partly.init(target, params, torch.Generator().manual_seed(0)), batch, noise

    def test_it_is_pure_and_keeps_its_structure(self, algorithm):
        partly, target, state, batch, noise = self.start(algorithm)
        state, _ = partly.update(target, state, batch, noise, torch.Generator().manual_seed(1))
        before = [leaf.clone() for leaf in pytree.tree_leaves(state)]
        one, info = partly.update(target, state, batch, noise, torch.Generator().manual_seed(2))
        same, _ = partly.update(target, state, batch, noise, torch.Generator().manual_seed(2))
        assert all(torch.equal(a, b) for a, b in zip(before, pytree.tree_leaves(state), strict=True))
        assert all(torch.equal(a, b) for a, b in zip(*map(pytree.tree_leaves, (one, same)), strict=True))
        assert pytree.tree_structure(one) == pytree.tree_structure(state)
        for old, new in zip(before, pytree.tree_leaves(one), strict=True):
            assert (old.shape, old.dtype) == (new.shape, new.dtype) and not new.requires_grad
        assert float(one.step) == float(one.inner.step) == 2 and info["loss"].shape == ()
        assert partly.describe() == algorithm.describe() and partly.lr == algorithm.lr

    def test_no_rate_means_no_move(self, algorithm):
        partly, target, state, batch, noise = self.start(algorithm)
        still = state._replace(lr=torch.zeros_like(state.lr))
        after, _ = partly.update(target, still, batch, noise, torch.Generator())
        assert all(torch.equal(p, partly.mean_params(after)[name]) for name, p in partly.mean_params(state).items())


@pytest.mark.parametrize("name", ["swag", "sghmc", "snapshot"])
def test_iterates_that_are_collected_belong_to_one_body(name):
    target, params, batch = _target(LIKELIHOODS["standard"])
    partly, bodies = PartlyRandom(SOME[name], 0.01), []
    state = partly.init(target, params, torch.Generator().manual_seed(0))
    noise = target.likelihood.draw(1.0, batch, None)
    for step in range(1, target.total_steps + 1):
        state, _ = partly.update(target, state, batch, noise, torch.Generator().manual_seed(step))
        if partly.collects(target, step):
            state = partly.collect(target, state)
            bodies.append(state.others)
        elif not bodies:
            assert not torch.equal(state.others["1.weight"], params["1.weight"])
    assert len(bodies) >= 2
    assert all(torch.equal(body[name], bodies[0][name]) for body in bodies for name in BODY)


@every_trained
def test_nothing_is_kept_aside_beside_the_steps(algorithm, monkeypatch):
    """Laplace goes over all data at the end, and gradients of the others would fill the memory."""
    real, made = PartTarget.of, []
    monkeypatch.setattr(PartTarget, "of", lambda *arguments: made.append(real(*arguments)) or made[-1])
    fit(algorithm=algorithm, stochastic="last")
    assert [len(each.aside) for each in made] == [1] * EPOCHS * STEPS


class TestBatchNorm:
    """Statistics follow the data unless a layer is frozen, random or not."""

    @every_algorithm
    def test_with_the_last_layer_random_they_are_those_of_the_fitted_body(self, algorithm):
        posterior = fit(net=batch_norm_net(), algorithm=algorithm, stochastic="last")
        assert not posterior.statistics_vary
        drawn = posterior.predictor(2).samples
        body = {name: posterior.buffers[name] for name in ("0.weight", "0.bias")}
        hidden = inputs() @ body["0.weight"].T + body["0.bias"]
        for name in ("running_mean", "running_var"):
            assert torch.equal(drawn[f"1.{name}"][0], drawn[f"1.{name}"][1])
        torch.testing.assert_close(drawn["1.running_mean"][0], hidden.mean(0), rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(drawn["1.running_var"][0], hidden.var(0, correction=0), rtol=1e-3, atol=1e-3)

    @pytest.mark.parametrize("algorithm", ["noisy-adam", "vogn", "sghmc", "hmc"])
    def test_with_all_but_batch_norm_random_every_sample_has_its_own(self, algorithm, tmp_path):
        posterior = fit(net=batch_norm_net(), algorithm=SOME[algorithm], stochastic=["0", "3"])
        assert posterior.graph.fitted == ("1.weight", "1.bias")
        predictor = posterior.predictor(2)
        if not SOME[algorithm].full_batch:
            assert not torch.equal(*predictor.samples["1.running_mean"])
        posterior.save(tmp_path)
        assert cb.load(tmp_path).predictor(2).digest == predictor.digest


def test_certificates_hold_for_the_result():
    posterior = fit(LIKELIHOODS["ibp"], algorithm=cb.NoisyAdam(), epochs=20, temperature=1.0, stochastic="last")
    predictor, x = posterior.predictor(5), inputs()
    with torch.no_grad():
        y = predictor(x).argmax(-1)
    result = cb.certify(predictor, x, y, eps=0.02, domain=(0.0, 1.0), method="theorem1")
    assert bool(result.certified.any())
    attacked = cb.attack(predictor, x, y, eps=0.02, domain=(0.0, 1.0), progress=False)
    assert not bool((result.certified & attacked.success).any())


class TestAround:
    def test_a_temperature_is_chosen(self):
        for algorithm in (cb.NoisyAdam(lr=0.05), cb.Laplace(lr=0.01)):
            posterior = fit(algorithm=algorithm, stochastic="last", temperature=[1.0, 0.1], validation=0.25)
            assert [point["temperature"] for point in posterior.metadata["temperature_curve"]] == [1.0, 0.1]
            assert posterior.metadata["stochastic"]["random"] == list(HEAD)

    def test_many_runs_are_those_that_fit_would_give(self):
        runs = [{"seed": 0}, {"seed": 1, "stochastic": "1"}, {"seed": 2, "map_lr": 0.01}]
        common = {"algorithm": cb.NoisyAdam(lr=0.05), "epochs": EPOCHS, "batch_size": BATCH_SIZE, "progress": False}
        many = cb.fit_many(network(), data_for(cb.Categorical()), runs, stochastic="last", **common)
        for run, posterior in zip(runs, many, strict=True):
            alone = cb.fit(network(), data_for(cb.Categorical()), **{"stochastic": "last", **run}, **common)
            assert_same_posterior(posterior, alone)

    def test_posteriors_with_bodies_of_their_own_are_joined(self):
        each = [fit(net=network(seed), algorithm=cb.SGHMC(cycles=1, samples=2), stochastic="last") for seed in (0, 1)]
        joined = cb.Samples.join(*each).predictor(None).samples
        assert torch.equal(joined["1.weight"][0], each[0].buffers["1.weight"])
        assert torch.equal(joined["1.weight"][-1], each[1].buffers["1.weight"])

    @pytest.mark.parametrize("algorithm", ["noisy-adam", "laplace-last-layer"])
    def test_the_center_is_a_network_that_can_be_trained_on(self, algorithm):
        posterior = fit(net=batch_norm_net(), algorithm=SOME[algorithm], stochastic="last")
        center = posterior.center()
        assert center.graph.parameters == ("0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias")
        assert not center.graph.fitted and torch.equal(center.params["0.weight"], posterior.buffers["0.weight"])
        assert torch.equal(center.predictor().samples["1.running_var"][0], posterior.buffers["1.running_var"])
        further = fit(net=center.network)
        assert all(not torch.equal(p, center.params[name]) for name, p in further.params.items())

    def test_frozen_parameters_stay_frozen(self):
        net = network()
        net[1].bias.requires_grad_(False)
        posterior = fit(net=net, algorithm="noisy-adam", stochastic="last")
        assert posterior.metadata["frozen"] == ["1.bias"] and posterior.graph.fitted == ("1.weight",)
        assert torch.equal(posterior.buffers["1.bias"], net[1].bias)
        assert "1 more not random, 1 more frozen" in repr(posterior)

    def test_laplace_around_a_trained_network_leaves_all_as_it_is(self):
        posterior = fit(algorithm=cb.Laplace(), stochastic="last", epochs=0)
        assert torch.equal(posterior.buffers["1.weight"], network()[1].weight)

    def test_another_seed_gives_another_posterior(self):
        one, other = (fit(algorithm="ivon", stochastic="*.weight", seed=seed) for seed in (0, 1))
        assert one.graph.parameters == ("1.weight", "3.weight") and differ(one, other)


class TestNames:
    GRAPH = trace(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3), nn.ReLU()), inputs()).graph

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            (None, ("0.weight", "0.bias", "2.weight", "2.bias")),
            ("last", ("2.weight", "2.bias")),
            ("0", ("0.weight", "0.bias")),
            ("*.weight", ("0.weight", "2.weight")),
            (["last", "0.bias"], ("0.bias", "2.weight", "2.bias")),
            ("last, 0.bias", ("0.bias", "2.weight", "2.bias")),
            (("0", "0.*"), ("0.weight", "0.bias")),
        ],
    )
    def test_of_what_is_random(self, given, expected):
        assert random_parameters(given, self.GRAPH) == expected

    def test_a_name_is_not_a_part_of_another(self):
        net = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(2, 2), nn.ReLU())])
        graph = trace(net, torch.rand(1, 2)).graph
        assert random_parameters("1*,0", graph) == ("0.weight", "0.bias", "10.weight", "10.bias")
        with pytest.raises(InvalidInput, match="no parameter matches '1'"):
            random_parameters("1", graph)


class TestRefused:
    @pytest.mark.parametrize("nothing", ["", [], (), " , "])
    def test_an_empty_subset(self, nothing):
        with pytest.raises(InvalidInput, match="stochastic is empty, so nothing would be random"):
            fit(algorithm="vogn", stochastic=nothing)

    def test_what_matches_nothing(self):
        with pytest.raises(InvalidInput, match=r"no parameter matches '3.weigth'; perhaps you mean 3.weight"):
            fit(algorithm="vogn", stochastic="3.weigth")
        with pytest.raises(InvalidInput, match=r"perhaps you mean last.*1\.weight, 1\.bias, 3\.weight, 3\.bias"):
            fit(algorithm="vogn", stochastic=["3", "Last"])

    @pytest.mark.parametrize("wrong", [3, [3], True, nn.Linear(1, 1)])
    def test_what_is_no_name(self, wrong):
        with pytest.raises(InvalidInput, match="stochastic names the parameters that are random"):
            fit(algorithm="vogn", stochastic=wrong)

    def test_frozen_parameters(self):
        net = network()
        net[1].requires_grad_(False)
        with pytest.raises(InvalidInput, match="'1' is frozen"):
            fit(net=net, algorithm="vogn", stochastic="1")

    @pytest.mark.parametrize("algorithm", REFUSED)
    def test_algorithms_without_random_parameters(self, algorithm):
        words = "with MAP nothing is" if algorithm.startswith("map") else "they would share the other parameters"
        with pytest.raises(InvalidInput, match=words):
            fit(algorithm=ALGORITHMS[algorithm], stochastic="last")

    @pytest.mark.parametrize("rate", [-0.1, float("nan"), float("inf"), "fast", True])
    def test_rates(self, rate):
        with pytest.raises(InvalidInput, match="map_lr is the learning rate"):
            fit(algorithm="vogn", stochastic="last", map_lr=rate)

    def test_an_algorithm_that_takes_its_gradients_elsewhere(self):
        class Aside(cb.BBB):
            def update(self, target, state, batch, noise, generator):
                return state, {"loss": target.log_likelihood(state.mean, batch, noise).mean()}

        with pytest.raises(InvalidInput, match="cannot be trained along with it"):
            fit(algorithm=Aside(), stochastic="last")


def test_a_learned_prior_is_of_networks_that_are_random_as_a_whole():
    with pytest.raises(InvalidInput, match="random as a whole"):
        fit(LIKELIHOODS["ibp"], algorithm=cb.VOGN(), prior=cb.LearnedPrior(), stochastic="last")
