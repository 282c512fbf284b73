"""A federation with a certificate."""
