"""Data sets as tensors: three that come with the package, four read from their publishers' files, and your own."""

from certibayes.data.augmentation import Augmentation, RandomCrop, RandomFlip, as_augmentations
from certibayes.data.catalog import is_available, is_regression, load, names
from certibayes.data.dataset import DataSet, Split
from certibayes.data.download import download
from certibayes.data.files import Reading, names_file, read_file
from certibayes.data.layout import data_directory

__all__ = [
    "Augmentation",
    "DataSet",
    "RandomCrop",
    "RandomFlip",
    "Reading",
    "Split",
    "as_augmentations",
    "data_directory",
    "download",
    "is_available",
    "is_regression",
    "load",
    "names",
    "names_file",
    "read_file",
]
