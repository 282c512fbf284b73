"""Step 3: groups to group models, with SCAFFOLD, each group alone."""
