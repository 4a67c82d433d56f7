"""Networks whose layers CROWN narrows, all at once as on a GPU: what is proved is what is proved one by one."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import certibayes as cb
from certibayes.bounds import outward_box
from certibayes.bounds.slopes import CHOSEN, WORDS
from certibayes.certification import network_bounds
from certibayes.certification._prospects import ALIKE, from_all_over, in_turns
from certibayes.certification.clock import Clock
from certibayes.certification.network_bounds import batch_for, logit_bounds, margin_bounds
from certibayes.certification.stages import LogitBounds, MarginBounds, margins
from certibayes.certification.state import State

from ..strategies import few_of, inputs, make
from .cases import mapped, problem_of
from .test_intermediates import SHAPE, convolutional, points, predictor_of

AUTO = cb.Auto(intermediates="crown")
KINDS = ["relu", "tanh", "residual images", "batch norm on images", "max pool, padded, ceil", "windows", "leaky relu"]


def case(kind, networks, dtype=torch.float32):
    if kind == "windows":
        return predictor_of(*(convolutional(3.0, seed).to(dtype) for seed in range(networks))), points(4).to(dtype)
    nets = [make(kind, seed).to(dtype) for seed in range(networks)]
    return cb.Samples.from_modules(nets).predictor(networks), inputs(kind, 4, 0).to(dtype)


@pytest.mark.parametrize("networks", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", few_of(KINDS, fast=["relu", "tanh", "residual images", "windows"]))
def test_margins_and_logits_are_those_of_one_by_one(kind, dtype, networks, monkeypatch):
    predictor, x = case(kind, networks, dtype)
    eps = torch.tensor([0.0, 0.02, 0.05, 0.1], dtype=torch.float64)
    box, labels = outward_box(x, eps), predictor.predict(x)
    rivals = torch.arange(predictor.classes).expand(4, -1)
    settings = {"bounds": "crown", "intermediates": "crown", "slopes": (*WORDS, CHOSEN)}

    def found():
        margins = margin_bounds(predictor, box, labels, rivals, **settings)
        return margins, *logit_bounds(predictor, box, **settings)

    expected = found()
    mapped(monkeypatch)
    for one, other in zip(found(), expected, strict=True):
        assert one.shape == other.shape and one.dtype == torch.float64
        # The sign of a derivative may turn with a last bit, which chooses another slope.
        tolerance = 1e-4 if dtype == torch.float32 else 1e-9
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    if networks > 1:
        # Also of some, in another order.
        some = logit_bounds(predictor, box, networks=[2, 0], **settings)
        for one, other in zip(some, expected[1:], strict=True):
            torch.testing.assert_close(one, other[[2, 0]], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(("bounds", "intermediates"), [("ibp", "ibp"), ("crown", "ibp"), ("crown", "crown")])
def test_some_networks_are_those_that_are_named(bounds, intermediates, together, monkeypatch):
    """In their order, and twice where they are named twice."""
    predictor, x = case("relu", 4)
    box, labels, rivals = outward_box(x, 0.02), predictor.predict(x), torch.arange(predictor.classes).expand(4, -1)
    if together:
        mapped(monkeypatch)

    def found(networks):
        margins = margin_bounds(predictor, box, labels, rivals, "outward", bounds, intermediates, networks=networks)
        return margins, *logit_bounds(predictor, box, "outward", bounds, intermediates, networks=networks)

    every = found(None)
    for networks in ([3, 0], [1], [2, 1, 2]):
        for some, one in zip(found(networks), every, strict=True):
            torch.testing.assert_close(some, one[networks], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", [AUTO, cb.Elided("crown", "crown"), cb.Best("alpha-crown", "crown")], ids=str)
def test_the_same_points_are_certified(method, monkeypatch):
    predictor, x = predictor_of(*(convolutional(3.0, seed // 3) for seed in range(9))), points(12)
    alone = cb.certify(predictor, x, eps=0.04, method=method)
    mapped(monkeypatch)
    together = cb.certify(predictor, x, eps=0.04, method=method)
    assert torch.equal(alone.certified, together.certified)
    assert 0 < int(alone.certified.sum()) < len(x)
    certified = together.certified
    assert cb.attack(predictor, x[certified], together.labels[certified], eps=0.04).robust_accuracy == 1.0


def test_turns_take_every_network_once():
    for networks in (1, 2, ALIKE, ALIKE + 1, 10, 35):
        order = from_all_over(networks)
        turns = in_turns(order)
        assert [network for turn in turns for network in turn] == order and all(turns)
    assert [len(turn) for turn in in_turns(order)] == [4, 16, 15]


def test_points_that_are_decided_have_no_further_turn(monkeypatch):
    predictor, x = predictor_of(*[convolutional(3.0)] * 9), points(40)
    mapped(monkeypatch)
    seen = []

    def watched(graph, stack, box, *others, **settings):
        seen.append((stack.count, len(box.center)))
        return narrowed(graph, stack, box, *others, **settings)

    narrowed = network_bounds.narrowed_boxes
    monkeypatch.setattr(network_bounds, "narrowed_boxes", watched)
    problem = problem_of(predictor, x, 0.02, intermediates="crown")
    before = LogitBounds("ibp")(problem, State.start(problem), Clock())
    stage = MarginBounds("crown", until_decided=True, gives_up=True)
    full = replace(stage, until_decided=False)(problem, before, Clock())
    assert seen == [(9, int(before.open.any(-1).sum()))]
    seen.clear()
    after = stage(problem, before, Clock())
    assert [count for count, _ in seen] == [4, 3, 2] and seen[0][1] > seen[2][1]
    assert torch.equal(full.proved, after.proved)
    # Of those that are far out of reach the first four tell.
    far = problem_of(predictor, x, 0.5, intermediates="crown")
    seen.clear()
    stage(far, LogitBounds("ibp")(far, State.start(far), Clock()), Clock())
    assert [count for count, _ in seen] == [4]


def test_what_is_narrowed_together_is_kept_for_each(monkeypatch):
    predictor, x = predictor_of(*(convolutional(3.0, seed) for seed in range(3))), points(5)
    mapped(monkeypatch)
    problem = problem_of(predictor, x, 0.04, intermediates="crown").sharing(2**24)
    settings = predictor, problem.box, "outward", "crown", "crown"
    expected = logit_bounds(*settings)
    logit_bounds(*settings, share=problem.share)
    for network in range(3):
        assert problem.share.of_network(network).known("crown") is not None
    monkeypatch.setattr("certibayes.certification._layers.crown_boxes_of_all", None)
    again = logit_bounds(*settings, share=problem.share)
    some = logit_bounds(*settings, share=problem.share, networks=[1])
    for one, few, other in zip(again, some, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(few, other[1:2], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_where_only_some_networks_are_kept_all_have_their_own(kept, monkeypatch):
    """Boxes of some would do for others by their shape: of two networks and two points as of four and one."""
    predictor, x = predictor_of(*(convolutional(3.0, seed) for seed in range(4))), points(2)
    mapped(monkeypatch)
    problem = problem_of(predictor, x, 0.04, intermediates="crown").sharing(2**24)
    settings = predictor, problem.box, "outward", "crown", "crown"
    expected = logit_bounds(*settings)
    for network in [3, 1, 0][:kept]:
        logit_bounds(*settings, share=problem.share, networks=[network])
    for _ in range(2):
        for one, other in zip(logit_bounds(*settings, share=problem.share), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("together", [False, True])
def test_points_that_are_open_share_their_own_boxes(together, monkeypatch):
    """Those of points before them would be handed on if what is kept were not of the same points."""
    predictor, x = predictor_of(*(convolutional(3.0, seed) for seed in range(3))), points(6)
    if together:
        mapped(monkeypatch)
    problem = problem_of(predictor, x, 0.04, intermediates="crown")
    state = State.start(problem)
    state = replace(state, broken=torch.tensor([True, False, True, True, False, False]))
    stage = MarginBounds("crown", with_logits=True)
    expected, shared = stage(problem, state, Clock()), problem.sharing(2**24)
    others = replace(state, broken=torch.tensor([False, False, True, False, False, True]))
    for before in (state, others, state):
        stage(shared, before, Clock())
    again = stage(shared, state, Clock())
    for name in ("margins", "lower", "upper"):
        torch.testing.assert_close(getattr(again, name), getattr(expected, name), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("together", [False, True])
def test_networks_that_were_bounded_tell_what_is_hopeless(together, monkeypatch):
    predictor, x = predictor_of(*(convolutional(3.0, seed % 3) for seed in range(9))), points(20)
    if together:
        mapped(monkeypatch)
    problem = problem_of(predictor, x, 0.05, intermediates="crown")
    before = LogitBounds("ibp")(problem, State.start(problem), Clock())
    cheap, real, seen = before.values[:, before.open].amax(), margins.is_hopeless, []

    def watched(values, networks):
        seen.append(len(values))
        assert bool((values.amax(1) > cheap).all())
        return real(values, networks)

    monkeypatch.setattr(margins, "is_hopeless", watched)
    MarginBounds("crown", until_decided=True, gives_up=True)(problem, before, Clock())
    assert seen == ([4, 7, 9] if together else list(range(1, 10)))


def test_inputs_with_a_ball_have_one_network_after_the_other(monkeypatch):
    predictor, x = predictor_of(*(convolutional(3.0, seed) for seed in range(2))), points(3)
    box = outward_box(x, 0.2, norm="l2")
    expected = logit_bounds(predictor, box, bounds="crown", intermediates="crown")
    mapped(monkeypatch)
    for one, other in zip(logit_bounds(predictor, box, bounds="crown", intermediates="crown"), expected, strict=True):
        assert torch.equal(one, other)


def test_where_memory_is_short_half_of_them_are_taken(monkeypatch):
    predictor, x = predictor_of(*(convolutional(3.0, seed) for seed in range(5))), points(2)
    box, seen = outward_box(x, 0.02), []
    expected = logit_bounds(predictor, box, bounds="crown", intermediates="crown")
    narrowed = network_bounds.narrowed_boxes

    def short(graph, stack, *others, **settings):
        seen.append(stack.count)
        if stack.count > 2:
            raise torch.cuda.OutOfMemoryError
        return narrowed(graph, stack, *others, **settings)

    mapped(monkeypatch)
    monkeypatch.setattr(network_bounds, "narrowed_boxes", short)
    found = logit_bounds(predictor, box, bounds="crown", intermediates="crown")
    assert seen == [5, 2, 3, 1, 2]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_points_at_once_are_fewer_the_more_networks_go_together(monkeypatch):
    predictor, _ = case("relu", 4)
    one_by_one = batch_for(predictor, 2, 2**20)
    mapped(monkeypatch)
    found = [batch_for(predictor, 2, 2**20, networks=networks) for networks in ([3], [0, 2], None)]
    assert found == [one_by_one, one_by_one // 2, one_by_one // 4]


class Operations(TorchDispatchMode):
    """Counts operations of torch, about as many as a GPU would have launches."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def test_many_networks_take_about_as_many_operations_as_one(monkeypatch):
    net = convolutional(3.0)
    params = {name: value.detach() for name, value in net.named_parameters()}
    std = {name: torch.full_like(value, 0.005) for name, value in params.items()}
    posterior = cb.DiagonalGaussian(net, params, std, input_shape=SHAPE)
    x, counts = points(4), []
    mapped(monkeypatch)
    for networks in (1, 20):
        predictor = posterior.predictor(networks, seed=0)
        rivals = torch.arange(3).expand(4, -1)
        with Operations() as operations:
            margin_bounds(
                predictor, outward_box(x, 0.02), predictor.predict(x), rivals, intermediates="crown",
                slopes=(*WORDS, CHOSEN),
            )  # fmt: skip
        counts.append(operations.count)
    assert counts[1] < 2 * counts[0]
