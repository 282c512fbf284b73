"""What clients hold: data sets, partitions over clients, a user's own data."""
