"""Data sets as tensors: two that come with the package, and four read from their publishers' files."""

from certibayes.data.augmentation import Augmentation, RandomCrop, RandomFlip, as_augmentations
from certibayes.data.catalog import is_available, is_regression, load, names
from certibayes.data.dataset import DataSet, Split
from certibayes.data.download import download
from certibayes.data.layout import data_directory

__all__ = [
    "Augmentation",
    "DataSet",
    "RandomCrop",
    "RandomFlip",
    "Split",
    "as_augmentations",
    "data_directory",
    "download",
    "is_available",
    "is_regression",
    "load",
    "names",
]
