"""Reading results back from the files that ``save`` wrote."""

from __future__ import annotations

from pathlib import Path

from certibayes.certificates import reading
from certibayes.certificates.abstention import Abstention
from certibayes.certificates.certificate import Certificate
from certibayes.certificates.radius import Radius
from certibayes.certificates.regression import RegressionCertificate

KINDS = {kind.kind: kind for kind in (Certificate, Radius, RegressionCertificate, Abstention)}


def load_certificate(path: Path | str) -> Certificate | Radius | RegressionCertificate | Abstention:
    """Read a result that ``save`` wrote: a certificate, radii, a regression certificate, or certified uncertainty.

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
    return KINDS[reading.choice(record.get("kind"), KINDS, "the kind of this record")].from_json(record)
