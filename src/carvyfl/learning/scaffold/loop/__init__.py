"""The engine for CPU cores: one client after another, a group per worker process."""
