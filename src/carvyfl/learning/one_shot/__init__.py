"""One-shot learning: a fixed feature map, sums sent once, heads in closed form."""
