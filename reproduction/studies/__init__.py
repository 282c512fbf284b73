"""The studies behind docs/results; ``python -m reproduction.studies NAME`` runs one."""
