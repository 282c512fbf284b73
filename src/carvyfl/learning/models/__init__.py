"""Models: the built-in ones, what is asked of a user's own, and their weights."""
