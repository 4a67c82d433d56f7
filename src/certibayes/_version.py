"""The version, kept apart so that building the package needs no torch."""

__version__ = "0.1.0"
