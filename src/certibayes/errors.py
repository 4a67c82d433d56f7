"""What can go wrong at the borders of the library, each with its own name.

Every error says what was wrong and what to do about it. They also derive from the built-in exception that
a careful caller would expect, so ``except ValueError`` and ``except FileNotFoundError`` keep working.
"""

from typing import Any


class CertibayesError(Exception):
    """Base of every error that certibayes raises on purpose."""


class InvalidInput(CertibayesError, ValueError):
    """An argument or a tensor that cannot be used: NaN, wrong shape, outside the domain."""


class UnsupportedLayer(CertibayesError, NotImplementedError):
    """A network holds a layer for which no bounds are known."""


class MissingData(CertibayesError, FileNotFoundError):
    """A data set is not where it was looked for; the message names the command that gets it."""


class MissingPackage(CertibayesError, ImportError):
    """An optional package is not installed; the message says how to install it."""


class DownloadFailed(CertibayesError, OSError):
    """A download broke off or its checksum is wrong; nothing was left under a final name."""


class CorruptFile(CertibayesError, ValueError):
    """A file is truncated, was tampered with or was not written by certibayes."""


class RunExists(CertibayesError, FileExistsError):
    """A directory already holds another run, which is never overwritten silently."""


class UnsoundBounds(CertibayesError, ArithmeticError):
    """Bounds came out NaN, infinite or inverted, so nothing may be concluded from them."""


class Diverged(CertibayesError, ArithmeticError):
    """Training left the finite numbers; the last checkpoint is still good.

    Attributes:
        posteriors: where several were trained, those that did not diverge, with None for those that did.
    """

    posteriors: tuple[Any, ...] = ()


class Interrupted(KeyboardInterrupt):
    """A long call was stopped by the user; the message says how to resume.

    Like any Ctrl-C it is no ``Exception``, so that code which handles errors and goes on does not swallow it.
    """
