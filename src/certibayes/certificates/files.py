"""Reading results back from the files that ``save`` wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from certibayes.certificates import reading
from certibayes.certificates.abstention import Abstention
from certibayes.certificates.certificate import Certificate
from certibayes.certificates.radius import Radius
from certibayes.certificates.regression import RegressionCertificate

KINDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    kind.kind: kind.from_json for kind in (Certificate, Radius, RegressionCertificate, Abstention)
}
"""What reads a record, by its kind; rooms below this one add theirs."""


def load_certificate(path: Path | str) -> Any:
    """Read a result that ``save`` wrote, of any kind; its class says which.

    Kinds are certificates, radii, regression certificates, certified uncertainty, and the statistical certificates.

    Everything that the record alone can tell is checked: keys, names, shapes, that nothing in it contradicts anything
    else, and that the statement is the one that the record gives. Whether it is *true* is for
    ``certibayes.checker.check_certificate`` to find out, with the predictor and the points.

    Args:
        path: the file, or a directory that holds ``certificate.json``.

    Raises:
        FileNotFoundError: there is no such file.
        CorruptFile: it is not such a record, is incomplete, or was changed after it was written.
    """
    record = reading.read_record(path)
    return KINDS[reading.choice(record.get("kind"), KINDS, "the kind of this record")](record)
