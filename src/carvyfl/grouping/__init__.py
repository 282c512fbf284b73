"""Step 2: from the clients' types, or their ids alone, to groups."""

from carvyfl.grouping.anticluster import anticluster
from carvyfl.grouping.grouping import Grouping
from carvyfl.grouping.hashing import client_ids, hash_groups
from carvyfl.grouping.methods import GROUPINGS, form_groups

__all__ = [
    "GROUPINGS",
    "Grouping",
    "anticluster",
    "client_ids",
    "form_groups",
    "hash_groups",
]
