"""verify: unsat is never said where an unsafe input exists, and sat only with one."""

import importlib
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import certibayes as cb
from certibayes.errors import InvalidInput
from certibayes.networks import direct_sums, trace
from certibayes.verification import verify
from certibayes.vnnlib import Case, Constraint, Specification, decimal, parse_vnnlib

from ..strategies import ZOO, few_of, generator, input_shape, law, make, seeds

F = Fraction


def constraint(bound: object, **coefficients: object) -> Constraint:
    return Constraint(tuple(sorted((int(name[1:]), F(value)) for name, value in coefficients.items())), F(bound))


def around(x: torch.Tensor, eps: float, *unsafe: tuple[Constraint, ...], outputs: int = 3) -> Specification:
    """A specification about the box of radius eps around one input."""
    values = [F(value) for value in x.double().flatten().tolist()]
    lower, upper = (tuple(value + sign * F(eps) for value in values) for sign in (-1, 1))
    return Specification(len(values), outputs, (Case(lower, upper, unsafe),))


def outputs_of(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Outputs of the program that proofs are about, (B, C)."""
    network = trace(net)
    with torch.no_grad(), direct_sums():
        return network.graph.evaluate({**network.params, **network.buffers}, x)


def exact(values: torch.Tensor) -> list[Fraction]:
    return [F(value) for value in values.double().flatten().tolist()]


def points_in(case: Case, shape: tuple[int, ...], count: int, seed: int) -> torch.Tensor:
    """Floats inside a box, corners among them; where rounding left it they are moved inside by one float."""
    low, high = (torch.tensor([float(end) for end in ends], dtype=torch.float64) for ends in (case.lower, case.upper))
    noise = torch.rand(count, len(low), generator=generator(seed), dtype=torch.float64)
    noise[::2] = noise[::2].round()
    x = (low + noise * (high - low)).float()
    x = torch.where(x.double() > high, torch.nextafter(x, x - 1), x)
    x = torch.where(x.double() < low, torch.nextafter(x, x + 1), x)
    return x.view(count, *shape)


def assert_is_counterexample(net: nn.Module, specification: Specification, answer: cb.Verification) -> None:
    """Look at a counterexample independently: as tensors, and as it is printed."""
    assert answer.inputs is not None and answer.outputs is not None
    y = outputs_of(net, answer.inputs[None])[0]
    assert torch.equal(y, answer.outputs)
    pairs = answer.counterexample.strip("()").replace(")\n (", "\n").split("\n")
    values = dict(pair.split() for pair in pairs)
    printed = [F(values[f"X_{index}"]) for index in range(specification.inputs)]
    assert [float(values[f"Y_{index}"]) for index in range(specification.outputs)] == y.double().tolist()
    cases = [case for case in specification.cases if case.contains(printed)]
    assert any(case.is_unsafe(exact(y)) for case in cases)
    # What is printed reads as the input that was run.
    read = torch.tensor([float(value) for value in printed], dtype=torch.float64).to(answer.inputs.dtype)
    assert torch.equal(read, answer.inputs.flatten())


# Laws


coefficient = st.sampled_from(["1", "-1", "0.5", "-0.3", "0.1", "2"])


@st.composite
def unsafe_sets(draw):
    """One to three conjunctions of one to three constraints each."""
    one = st.builds(
        lambda pairs, bound: constraint(bound, **{f"y{i}": a for i, a in pairs.items()}),
        st.dictionaries(st.integers(0, 2), coefficient, min_size=1),
        st.sampled_from(["-0.7", "-0.2", "0", "0.05", "0.4"]),
    )
    return tuple(tuple(draw(st.lists(one, min_size=1, max_size=3))) for _ in range(draw(st.integers(1, 3))))


@law(40)
@given(seed=seeds, eps=st.sampled_from([0.0, 0.01, 0.1, 0.5]), unsafe=unsafe_sets())
def test_answers_hold(seed, eps, unsafe):
    net = make("relu", seed)
    x = torch.randn(1, 5, generator=generator(seed))
    specification = around(x, eps, *unsafe)
    answer = verify(net, specification, budget=1.0, seed=seed)
    if answer.answer == "sat":
        assert_is_counterexample(net, specification, answer)
    if answer.answer == "unsat":
        (case,) = specification.cases
        points = points_in(case, (5,), 300, seed)
        assert not any(case.is_unsafe(exact(y)) for y in outputs_of(net, points))
        assert answer.excluded == answer.conjunctions == len(unsafe)


@pytest.mark.parametrize("name", few_of(ZOO, ["leaky relu", "residual", "convolution, stride and padding"]))
def test_every_layer_is_verified(name):
    """The largest output stays the largest in a small box; in a large one, attack and proof never contradict."""
    net, shape = make(name, 1), input_shape(name)
    x = torch.randn(1, *shape, generator=generator(1))
    y = outputs_of(net, x)[0]
    best, worst = int(y.argmax()), int(y.argmin())
    rival = (constraint(0, **{f"y{best}": 1, f"y{worst}": -1}),)
    assert verify(net, around(x, 1e-6, rival), budget=5.0).answer == "unsat"
    wide = around(x, 0.5, rival)
    answer = verify(net, wide, budget=0.5)
    points = points_in(wide.cases[0], shape, 500, 3)
    if answer.answer == "unsat":
        assert not any(wide.cases[0].is_unsafe(exact(out)) for out in outputs_of(net, points))
    elif answer.answer == "sat":
        assert_is_counterexample(net, wide, answer)


def test_float64_networks_are_verified_in_their_precision():
    net = make("relu", 2, torch.float64)
    x = torch.randn(1, 5, generator=generator(2), dtype=torch.float64)
    y = outputs_of(net, x)[0]
    # Between the output and the next float64 there is room for float64 bounds alone.
    height = F(float(y[0]))
    assert verify(net, around(x, 0.0, (constraint(height - F(1, 10**9), y0=1),))).answer == "unsat"
    answer = verify(net, around(x, 0.0, (constraint(height, y0=1),)))
    assert answer.answer == "sat" and answer.inputs.dtype == torch.float64


# Cases whose answer is known


class Known(nn.Module):
    """y = (x, -x), exactly."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 2, bias=False)
        self.layer.weight.data = torch.tensor([[1.0], [-1.0]])

    def forward(self, x):
        return self.layer(x)


TEXT = "(declare-const X_0 Real) (declare-const Y_0 Real) (declare-const Y_1 Real)"


def ask(text: str, net: nn.Module | None = None, **settings) -> cb.Verification:
    return verify(net or Known(), parse_vnnlib(f"{TEXT} {text}"), **settings)


BETWEEN = "(assert (>= X_0 -0.5)) (assert (<= X_0 1))"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (f"{BETWEEN} (assert (>= Y_0 1))", "sat"),
        (f"{BETWEEN} (assert (>= Y_0 1.001))", "unsat"),
        (f"{BETWEEN} (assert (<= Y_0 -0.5))", "sat"),
        (f"{BETWEEN} (assert (<= (+ Y_0 Y_1) -0.001))", "unsat"),
        (f"{BETWEEN} (assert (>= Y_0 0.25)) (assert (>= Y_1 0.25))", "unsat"),
        (f"{BETWEEN} (assert (>= Y_0 0.25)) (assert (<= Y_0 0.250001))", "sat"),
        (f"{BETWEEN} (assert (or (>= Y_0 2) (>= Y_1 2)))", "unsat"),
        (f"{BETWEEN} (assert (or (>= Y_0 2) (>= Y_1 0.4)))", "sat"),
        (f"{BETWEEN}", "sat"),
        (f"{BETWEEN} (assert (>= X_0 2)) (assert (>= Y_0 0))", "unsat"),
        ("(assert (or (and (>= X_0 0) (<= X_0 1)) (and (>= X_0 4) (<= X_0 5)))) (assert (>= Y_0 2))", "sat"),
        (
            "(assert (or (and (>= X_0 0) (<= X_0 1)) (and (>= X_0 4) (<= X_0 5))))"
            "(assert (>= Y_0 2)) (assert (<= Y_0 3))",
            "unsat",
        ),
        ("(assert (>= X_0 0.1)) (assert (<= X_0 0.1)) (assert (>= Y_0 0.1))", "sat"),
        ("(assert (>= X_0 0.1)) (assert (<= X_0 0.1)) (assert (>= Y_0 0.2))", "unsat"),
    ],
)  # fmt: skip
def test_known_answers(text, answer):
    found = ask(text)
    assert found.answer == answer
    if answer == "sat":
        assert_is_counterexample(Known(), parse_vnnlib(f"{TEXT} {text}"), found)


def test_inputs_that_are_no_floats_are_reported_as_they_are_written():
    """0.1 is no float: the nearest is run, and 0.1 itself is printed, which lies in the box."""
    found = ask("(assert (>= X_0 0.1)) (assert (<= X_0 0.1)) (assert (>= Y_0 0.1))")
    assert found.counterexample.startswith("((X_0 0.1)\n (Y_0 0.10000000149")
    assert str(found).startswith("sat\n((X_0 0.1)")


def test_a_float_beyond_the_box_is_no_counterexample():
    """The float nearest to 0.3 lies above it, and alone has an unsafe output: no float of the box has one.

    Nor is it excluded: a program that reads 0.3 gets that float.
    """
    nearest = F(float(torch.tensor(0.3)))
    assert nearest > F("0.3")
    text = f"(assert (>= X_0 0)) (assert (<= X_0 {{}})) (assert (>= Y_0 {decimal(nearest)}))"
    assert ask(text.format("0.3"), budget=0.5).answer == "unknown"
    assert ask(text.format(decimal(nearest))).answer == "sat"


class Constant(nn.Module):
    """y = (2^20, 0), whatever the input."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 2)
        self.layer.weight.data.zero_()
        self.layer.bias.data = torch.tensor([2.0**20, 0.0])

    def forward(self, x):
        return self.layer(x)


def test_coefficients_that_are_no_floats_are_rounded_to_the_safe_side():
    """0.1 y = 104857.6 exactly; with float32's 0.1, which is larger, it would seem to be more."""
    text = f"{BETWEEN} (assert (<= (* 0.1 Y_0) {{}}))"
    assert ask(text.format("104857.6"), Constant()).answer == "sat"
    assert ask(text.format("104850"), Constant()).answer == "unsat"
    # And from the other side: 0.3 in float32 is larger, so -0.3 y seems to be less than it is.
    text = f"{BETWEEN} (assert (<= (* -0.3 Y_0) {{}}))"
    assert ask(text.format("-314572.8"), Constant()).answer == "sat"
    assert ask(text.format("-314590"), Constant()).answer == "unsat"


@pytest.mark.parametrize("stage", ["_in_parts", "_branching"])
def test_each_kind_of_splitting_proves_by_itself(stage, monkeypatch):
    """A random network, and a threshold just below the smallest output: bounds of one pass are far from it."""
    verifying = importlib.import_module("certibayes.verification.verify")
    others = {"_in_parts", "_branching", "_attack_a_little", "_attack_more", "_costly_bounds"} - {stage}
    for other in others:
        monkeypatch.setattr(verifying._Verifying, other, lambda self: None)
    net, x = make("relu", 4), torch.zeros(1, 5)
    case = around(x, 1.0, ()).cases[0]
    smallest = float(outputs_of(net, points_in(case, (5,), 20_000, 0))[:, 0].min())
    margin = F(str(round(smallest - 0.02, 4)))
    monkeypatch.setattr(verifying, "CHEAP", ())
    answer = verify(net, around(x, 1.0, (constraint(margin, y0=1),)), budget=20.0)
    assert answer.answer == "unsat", answer.reason
    # One conjunction that is excluded says nothing about another, which here has inputs that a reference denies.
    impossible, possible = (constraint(-100, y0=1),), (constraint(F(str(round(smallest + 0.02, 4))), y0=1),)
    answer = verify(
        net, around(x, 1.0, impossible, possible), budget=1.0, reference=lambda x: torch.zeros(len(x), 3) + 9
    )
    assert answer.answer == "unknown"


# Borders


def test_a_reference_that_disagrees_leaves_the_answer_open():
    text = f"{BETWEEN} (assert (>= Y_0 0.9))"
    assert ask(text).answer == "sat"
    assert ask(text, reference=lambda x: torch.zeros(len(x), 2), budget=0.3).answer == "unknown"


def test_without_a_budget_the_cheapest_bounds_are_tried():
    assert ask(f"{BETWEEN} (assert (>= Y_0 1.001))", budget=0).answer == "unsat"
    open_ = ask(f"{BETWEEN} (assert (>= Y_0 0.9))", budget=0)
    assert open_.answer == "unknown" and "budget is spent" in open_.reason and "0 of 1" in open_.statement
    for bad in (-1.0, float("nan"), "soon"):
        with pytest.raises(InvalidInput, match="budget"):
            ask(BETWEEN, budget=bad)


def test_bounds_that_overflow_are_a_reason():
    torch.manual_seed(0)
    net = nn.Sequential(*[part for _ in range(6) for part in (nn.Linear(2, 2), nn.ReLU())], nn.Linear(2, 2))
    with torch.no_grad():
        for layer in net[::2]:
            layer.weight.fill_(1e8)
    text = "".join(f"(declare-const X_{i} Real)(assert (>= X_{i} 0))(assert (<= X_{i} 1))" for i in range(2))
    text += "(declare-const Y_0 Real)(declare-const Y_1 Real)(assert (<= Y_0 -1))"
    answer = verify(net, parse_vnnlib(text), budget=1.0)
    assert answer.answer == "unknown" and "overflow" in answer.reason


def test_what_does_not_belong_together_is_refused():
    with pytest.raises(InvalidInput, match="1 inputs and 2 outputs, the network 5 and 3"):
        verify(make("relu"), parse_vnnlib(f"{TEXT} {BETWEEN}"))
    with pytest.raises(InvalidInput, match="beyond 2\\^30"):
        ask("(assert (>= X_0 0)) (assert (<= X_0 1e10))")
    with pytest.raises(InvalidInput, match="coefficient beyond"):
        ask(f"{BETWEEN} (assert (<= (* 1e12 Y_0) 0))")


def test_the_same_seed_gives_the_same_answer():
    net, x = make("relu", 5), torch.randn(1, 5, generator=generator(5))
    specification = around(x, 1.0, (constraint("0", y0=1, y1=-1),), (constraint("0", y1=1, y0=-1),))
    one, other = (verify(net, specification, seed=3) for _ in range(2))
    assert one.answer == other.answer == "sat" and torch.equal(one.inputs, other.inputs)
