"""What malicious clients do, where they sit, and what it does to the vote."""
