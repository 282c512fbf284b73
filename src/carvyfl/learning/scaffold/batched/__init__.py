"""The engine for a GPU: all clients of all pending groups train together."""
