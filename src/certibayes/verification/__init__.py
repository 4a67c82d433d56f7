"""A network and a VNN-LIB specification in, ``unsat``, ``sat`` or ``unknown`` out; and files for other verifiers."""

from certibayes.verification.export import Exported, export_onnx
from certibayes.verification.verification import ANSWERS, Verification
from certibayes.verification.verify import verify

__all__ = ["ANSWERS", "Exported", "Verification", "export_onnx", "verify"]
