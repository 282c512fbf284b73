"""A run on disk: configuration, record and audit."""
