"""The same steps over a real network, on Flower; ``carvy flower init`` writes such an app."""
