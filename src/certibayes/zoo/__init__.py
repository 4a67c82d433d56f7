"""Posteriors that come with the package, by name: ``zoo.load("digits-swag")``."""

from certibayes.zoo.catalog import DIRECTORY, Entry, card, list, load

__all__ = ["DIRECTORY", "Entry", "card", "list", "load"]
