"""A run on disk: configuration, record, audit and signature."""
