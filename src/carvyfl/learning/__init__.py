"""Step 3: from groups to group models, each group alone."""
