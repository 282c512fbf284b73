"""A run on disk: executing a configuration, and the self-describing folder it leaves."""
