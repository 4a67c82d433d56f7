"""Checks certificates with arithmetic of its own; imports neither bounds nor what proves with them."""

from certibayes.checker.check import Check, check_certificate

__all__ = ["Check", "check_certificate"]
