"""Files for other verifiers: they compute what the predictor computes, and ask what a certificate answers."""

from fractions import Fraction

import pytest
import torch

import certibayes as cb
from certibayes.errors import InvalidInput
from certibayes.networks import from_onnx, onnx_reference
from certibayes.vnnlib import read_vnnlib

from ..strategies import generator, make

pytest.importorskip("onnx", reason='ONNX files need the extra: pip install "certibayes[onnx]"')

RADIUS = 0.1


@pytest.fixture(scope="module")
def predictor():
    """Three networks, for inputs in [0, 1]."""
    nets = []
    for seed in range(3):
        torch.manual_seed(seed)
        net = cb.networks.mlp(6, [12, 8], 4)
        for weight in net.parameters():
            weight.data *= 3  # fresh networks are all but constant
        nets.append(net)
    return cb.Samples.from_modules(nets, domain=(0.0, 1.0)).predictor(3)


@pytest.fixture(scope="module")
def x():
    points = torch.rand(8, 6, generator=generator(1))
    points[0, 0], points[1, 1] = 0.0, 1.0
    return points


@pytest.fixture(scope="module")
def exported(predictor, x, tmp_path_factory):
    return cb.export_onnx(predictor, tmp_path_factory.mktemp("files") / "new", x, eps=RADIUS)


def test_files_compute_what_the_predictor_computes(predictor, x, exported):
    with torch.no_grad():
        expected = predictor.sample_outputs(x)
        for path, outputs in zip(exported.samples, expected, strict=True):
            torch.testing.assert_close(from_onnx(path)(x), outputs, rtol=0.0, atol=1e-6)
            torch.testing.assert_close(onnx_reference(path)(x), outputs, rtol=0.0, atol=1e-6)
        probabilities = onnx_reference(exported.predictor)(x)
        torch.testing.assert_close(probabilities, predictor.probabilities(x), rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("name", ["batch norm on images", "normalize", "residual images"])
def test_every_sample_keeps_its_own_statistics(name, tmp_path):
    predictor = cb.Samples.from_modules([make(name, seed) for seed in range(2)]).predictor(2)
    inputs = torch.randn(3, 2, 6, 6, generator=generator(2))
    exported = cb.export_onnx(predictor, tmp_path)
    assert exported.specifications == () and exported.instances is None
    for path, outputs in zip(exported.samples, predictor.sample_outputs(inputs), strict=True):
        torch.testing.assert_close(from_onnx(path)(inputs), outputs, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        onnx_reference(exported.predictor)(inputs), predictor.probabilities(inputs), rtol=0.0, atol=1e-6
    )


def test_specifications_are_the_ball_inside_the_domain(predictor, x, exported):
    labels = predictor.predict(x)
    for path, point, label in zip(exported.specifications, x, labels.tolist(), strict=True):
        (case,) = read_vnnlib(path).cases
        for value, low, high in zip(point.tolist(), case.lower, case.upper, strict=True):
            assert low == max(Fraction(value) - Fraction(RADIUS), 0)
            assert high == min(Fraction(value) + Fraction(RADIUS), 1)
        # Unsafe is what is not classified as the label, ties included.
        for outputs in ([0, 0, 0, 0], [3, 1, 1, 1], [1, 3, 1, 1], [1, 1, 3, 1], [1, 1, 1, 3], [0, 1, 2, 3]):
            rivals = [value for index, value in enumerate(outputs) if index != label]
            assert case.is_unsafe([Fraction(value) for value in outputs]) == (max(rivals) >= outputs[label])


def test_instances_list_every_pair(exported):
    rows = [line.split(",") for line in exported.instances.read_text().splitlines()]
    assert len(rows) == (1 + 3) * 8 and {row[2] for row in rows} == {"60"}
    folder = exported.predictor.parent
    assert all((folder / network).is_file() and (folder / point).is_file() for network, point, _ in rows)


def test_verify_agrees_with_certify_on_single_samples(predictor, x, exported):
    """Both decide everything here: what is certified is unsat, and what is attacked is sat."""
    labels, seen = predictor.predict(x), set()
    for index, network in enumerate(exported.samples):
        single = cb.Point(from_onnx(network), domain=(0.0, 1.0)).predictor()
        result = cb.certify(single, x, labels, eps=RADIUS, method=cb.Best(budget=10))
        for number, specification in enumerate(exported.specifications[: 8 if index == 0 else 3]):
            answer = cb.verify(network, specification, budget=20).answer
            seen.add(answer)
            assert answer == ("unsat" if result.certified[number] else "sat" if result.attacked[number] else answer)
            assert answer != "unknown"
    assert seen == {"sat", "unsat"}


def test_labels_radii_and_domains_may_differ_by_point(predictor, x, tmp_path):
    labels, radii = torch.arange(8) % 4, torch.linspace(0.0, 0.1, 8)
    exported = cb.export_onnx(predictor, tmp_path, x, labels, eps=radii, domain=None)
    for path, point, radius, label in zip(exported.specifications, x, radii, labels.tolist(), strict=True):
        (case,) = read_vnnlib(path).cases
        assert case.lower[0] == Fraction(float(point[0])) - Fraction(float(radius))
        assert not case.is_unsafe([Fraction(int(index == label)) for index in range(4)])


def test_a_point_on_the_border_of_a_domain_that_is_no_float_has_a_box(predictor, tmp_path):
    """float32(0.6) is more than 0.6, and still the domain's end."""
    x = torch.full((1, 6), 0.6)
    exported = cb.export_onnx(predictor, tmp_path, x, eps=0.0, domain=(0.1, 0.6))
    (case,) = read_vnnlib(exported.specifications[0]).cases
    assert case.contains([Fraction(float(x[0, 0]))] * 6)


def test_what_cannot_be_exported_is_refused_before_anything_is_written(predictor, x, tmp_path):
    for bad, words in (
        ({"x": x}, "both x and eps"),
        ({"eps": 0.1}, "both x and eps"),
        ({"x": x + 1, "eps": 0.1}, "outside the domain"),
        ({"x": x[:, :3], "eps": 0.1}, "shape"),
        ({"x": x, "y": torch.full((8,), 7), "eps": 0.1}, "labels"),
    ):
        with pytest.raises(InvalidInput, match=words):
            cb.export_onnx(predictor, tmp_path, **bad)
    with pytest.raises(InvalidInput, match="to_onnx"):
        cb.export_onnx(make("relu"), tmp_path)
    assert not list(tmp_path.iterdir())
