"""One-shot learning: fixed features, one message per client, a group's head in closed form."""
