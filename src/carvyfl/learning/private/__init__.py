"""The private learner: one noisy message per client, and heads by nearest class mean."""
