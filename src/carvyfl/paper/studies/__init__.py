"""The studies behind docs/results; ``python -m carvyfl.paper.studies NAME`` runs one."""
