"""Step 4: from group models to votes, and from votes to a certificate."""
