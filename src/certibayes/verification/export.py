"""``export_onnx``: a predictor and its points as files, so that another verifier can check what we say of them.

Every weight sample is written as a network of its own, which returns logits. The whole predictor is one network more,

    p(x) = 1/N Σ_i softmax(f^{w_i}(x)),

which returns mean probabilities. Each point is a VNN-LIB specification: the box around it inside the domain, and as
unsafe outputs any rival that reaches the label. It serves the samples and the predictor alike; what is proved when it
is ``unsat`` for the predictor is what a certificate says of the point. ``instances.csv`` lists all pairs of files as
VNN-COMP does.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.networks.onnx_export import RESULT, OnnxWriter, write_model
from certibayes.prediction import Predictor
from certibayes.regions import Domain, InputRegion, require_radius_within, resolve_domain
from certibayes.support.checks import inputs_of, labels_of
from certibayes.support.files import write_atomically
from certibayes.support.stacks import pick
from certibayes.support.tensors import as_tensor
from certibayes.vnnlib import Case, Constraint, Specification, format_vnnlib

SECONDS = 60
"""The time limit that ``instances.csv`` asks for."""


class Exported(NamedTuple):
    """The files that were written.

    Attributes:
        predictor: the whole predictor.
        samples: every weight sample.
        specifications: every point.
        instances: all pairs of a network and a specification, if there are points.
    """

    predictor: Path
    samples: tuple[Path, ...]
    specifications: tuple[Path, ...] = ()
    instances: Path | None = None


def export_onnx(
    predictor: Predictor,
    directory: str | Path,
    x: Tensor | None = None,
    y: Tensor | None = None,
    *,
    eps: float | Tensor | None = None,
    domain: Domain | Literal["predictor"] = "predictor",
) -> Exported:
    """Write a predictor as ONNX files, and points as VNN-LIB specifications.

    Args:
        predictor: of a classifier.
        directory: where the files go; it is made if need be.
        x: points (B, ...), inside the domain.
        y: labels (B,); by default the predicted classes.
        eps: l-infinity radius; see ``certify``.
        domain: see ``certify``.

    Returns:
        The paths of all files.

    Raises:
        MissingPackage: onnx is not installed.
        UnsupportedLayer: an operation cannot be written as ONNX.
        InvalidInput: the points, labels or radii cannot be used.
    """
    if not isinstance(predictor, Predictor) or predictor.task != "classification":
        raise InvalidInput(
            f"export_onnx takes the predictor of a classifier, not {type(predictor).__name__}. Draw one first: "
            "posterior.predictor(samples=35, seed=0). For a single network there is certibayes.networks.to_onnx."
        )
    if (x is None) != (eps is None):
        raise InvalidInput("points and their radius belong together: pass both x and eps, or neither.")
    folder = Path(directory)
    # Before anything is written: points that cannot be used leave no files behind.
    texts = [] if x is None else _specifications(predictor, x, y, eps, domain)
    networks = [_sample(predictor, index) for index in range(predictor.size)]
    whole = write_model(_mean(predictor), folder / "predictor.onnx")
    samples = _written(folder, "sample", "onnx", [network.SerializeToString() for network in networks])
    if x is None:
        return Exported(whole, samples)
    points = _written(folder, "point", "vnnlib", [text.encode() for text in texts])
    rows = [f"{network.name},{point.name},{SECONDS}\n" for network in (whole, *samples) for point in points]
    write_atomically(folder / "instances.csv", "".join(rows).encode())
    return Exported(whole, samples, points, folder / "instances.csv")


def _written(folder: Path, kind: str, suffix: str, contents: list[bytes]) -> tuple[Path, ...]:
    """Write numbered files."""
    digits = len(str(max(0, len(contents) - 1)))
    paths = tuple(folder / f"{kind}-{index:0{digits}d}.{suffix}" for index in range(len(contents)))
    for path, content in zip(paths, contents, strict=True):
        write_atomically(path, content)
    return paths


def _sample(predictor: Predictor, index: int) -> Any:
    """Return one weight sample as an ``onnx.ModelProto``."""
    writer = OnnxWriter(predictor.graph.input_shape, predictor.dtype)
    writer.network(predictor.graph, pick(predictor.samples, index), name=RESULT)
    return writer.model(predictor.classes)


def _mean(predictor: Predictor) -> Any:
    """Return the whole predictor as an ``onnx.ModelProto``; sums and a quotient are what most tools can bound."""
    writer, total = OnnxWriter(predictor.graph.input_shape, predictor.dtype), ""
    for index in range(predictor.size):
        logits = writer.network(predictor.graph, pick(predictor.samples, index), prefix=f"sample{index}.")
        probabilities = writer.add("Softmax", logits, axis=1)
        total = writer.add("Add", total, probabilities) if total else probabilities
    writer.add("Div", total, writer.constant(float(predictor.size)), name=RESULT)
    return writer.model(predictor.classes)


def _specifications(
    predictor: Predictor, x: Tensor, y: Tensor | None, eps: float | Tensor | None, domain: object
) -> list[str]:
    """Return the text of every point's specification."""
    known = resolve_domain(domain, predictor)
    given = inputs_of(as_tensor(x, "the points").to(predictor.device), "the points")
    read = given.to(predictor.dtype)
    predictor.graph.require_input(read)
    region = InputRegion.around(read, eps, "linf", known)
    require_radius_within(known, eps)
    labels = predictor.predict(read) if y is None else labels_of(y, predictor.classes, len(read))
    radii = region.radius.double().expand(read.shape)
    lows, highs = _domain_ends(region.domain, read)
    texts = []
    for index, label in enumerate(labels.tolist()):
        center, radius, low, high = (
            [Fraction(value) for value in part[index].flatten().tolist()]
            for part in (given.double(), radii, lows, highs)
        )
        case = Case(
            tuple(max(c - r, end) for c, r, end in zip(center, radius, low, strict=True)),
            tuple(min(c + r, end) for c, r, end in zip(center, radius, high, strict=True)),
            tuple((_reaches(rival, label),) for rival in range(predictor.classes) if rival != label),
        )
        comment = (
            f"Point {index} of a certibayes predictor, digest {predictor.digest}.\n"
            f"Its label is {label}; the box is the l-infinity ball of radius {max(map(float, radius)):g}, inside the "
            "domain.\nUnsafe is any output that reaches the label's."
        )
        texts.append(format_vnnlib(Specification(len(center), predictor.classes, (case,)), comment))
    return texts


def _domain_ends(domain: Domain, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return both ends of the domain for every value, (B, ...) in float64: the outer one of how it is read.

    A point may be the domain's end, rounded to the network's precision.
    """
    low, high = (-1e30, 1e30) if domain is None else domain
    ends = [torch.as_tensor(end, dtype=torch.float64, device=x.device).expand(x.shape) for end in (low, high)]
    rounded = [end.to(x.dtype).double() for end in ends]
    return torch.minimum(ends[0], rounded[0]), torch.maximum(ends[1], rounded[1])


def _reaches(rival: int, label: int) -> Constraint:
    """Y_label <= Y_rival."""
    return Constraint(tuple(sorted([(label, Fraction(1)), (rival, Fraction(-1))])), Fraction(0))
