"""Step 1: what a client tells about its data, and the type that is read from it."""
