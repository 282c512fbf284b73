"""Step 2: from profiles, types or ids to groups."""
