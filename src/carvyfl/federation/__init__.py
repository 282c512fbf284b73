"""Who the clients are: data sets, partitions over clients, models."""
