"""The paper's evaluation: its measurements as records, and everything shown from them."""
