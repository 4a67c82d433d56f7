"""What was proved: the records, their words, and their files. This room knows no bounds."""

from certibayes.certificates._page import page_values
from certibayes.certificates.abstention import Abstention
from certibayes.certificates.certificate import Certificate
from certibayes.certificates.files import load_certificate
from certibayes.certificates.provenance import Provenance
from certibayes.certificates.radius import Radius
from certibayes.certificates.reading import read_record
from certibayes.certificates.regression import RegressionCertificate

__all__ = [
    "Abstention",
    "Certificate",
    "Provenance",
    "Radius",
    "RegressionCertificate",
    "load_certificate",
    "page_values",
    "read_record",
]
