"""Certificates in a report: what is proved, in words, and a few points with their bounds and pictures."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from certibayes import data
from certibayes.certificates import (
    Abstention,
    Certificate,
    Radius,
    RegressionCertificate,
    load_certificate,
    page_values,
)
from certibayes.data import DataSet
from certibayes.errors import CertibayesError, CorruptFile, InvalidInput
from certibayes.experiments._views import CERTIFICATES
from certibayes.support.templates import filled

EACH = 6
"""So many points that are certified are shown, and as many of the others."""

EMBEDDED = "digits"
"""What certificates may be about where nothing says so."""


def certificate_view(file: Path, path: Path, sets: Sequence[DataSet], alone: bool) -> dict[str, Any]:
    """Return what a report says of a certificate.

    Args:
        file: the certificate's.
        path: what the report is about.
        sets: data sets that it may be about.
        alone: whether the report is about nothing else, so that a file that cannot be read is an error.
    """
    name = file.name if file == path else file.relative_to(path).as_posix()
    try:
        result = load_certificate(file)
        if not isinstance(result, (Certificate, Radius, RegressionCertificate, Abstention)):
            raise CorruptFile(f"a certificate of the kind {type(result).__name__} has no page yet.")
    except CorruptFile as error:
        if alone:
            raise
        return {"name": name, "error": f"This certificate cannot be shown: {error}"}
    shown = _examples(result)
    values = page_values(result, None, (), (), shown, "")
    for each in sets:
        try:
            values = page_values(result, each.test.inputs[: len(result)], each.classes, (), shown, "")
        except InvalidInput:
            # Other points, as their digest says.
            continue
        break
    return {
        "name": name,
        "error": "",
        "lead": values["lead"],
        "figures": [(row.name, row.value) for row in values["figures"]],
        "statement": values["statement"],
        "points": filled(CERTIFICATES, "points.html.j2", values),
        "record": values["record"],
    }


def _examples(result: Any) -> list[int]:
    """Choose points: the first that are certified and the first that are not, half of these with counterexamples."""
    certified = result.certified
    if not isinstance(certified, Tensor):
        return list(range(min(2 * EACH, len(result))))
    broken: list[int] = []
    if isinstance(result, Certificate) and result.attacked is not None:
        # A point that is misclassified as it is has itself for a counterexample.
        broken = (result.attacked & (result.predicted == result.labels)).nonzero().flatten().tolist()[: EACH // 2]
    others = [point for point in (~certified).nonzero().flatten().tolist()[: 2 * EACH] if point not in broken]
    proved = certified.nonzero().flatten().tolist()[:EACH]
    return sorted([*proved, *[*broken, *others][:EACH]])


def known_sets(asked: str | None, names: Sequence[Any], data_dir: str | Path | None) -> list[DataSet]:
    """Return data sets whose first test points certificates may be about, those that are here.

    Args:
        asked: one that was asked for, which must be here.
        names: others, which need not.
        data_dir: where data sets lie.
    """
    if asked is not None:
        return [data.load(asked, data_dir)]
    found = []
    for name in dict.fromkeys(name for name in [*names, EMBEDDED] if isinstance(name, str)):
        with contextlib.suppress(CertibayesError, OSError):
            found.append(data.load(name, data_dir))
    return found
