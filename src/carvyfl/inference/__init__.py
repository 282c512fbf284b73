"""Step 1: one-epoch updates become a distribution type for every client."""

from carvyfl.inference.bias_profile import bias_profile_types, label_histograms
from carvyfl.inference.infer import TYPE_METHODS, infer_types
from carvyfl.inference.reports import OutputLayer, Updates, collect
from carvyfl.inference.types import WITHOUT_UPDATES, ClientTypes, given_types
from carvyfl.inference.xmeans import xmeans_types

__all__ = [
    "TYPE_METHODS",
    "WITHOUT_UPDATES",
    "ClientTypes",
    "OutputLayer",
    "Updates",
    "bias_profile_types",
    "collect",
    "given_types",
    "infer_types",
    "label_histograms",
    "xmeans_types",
]
