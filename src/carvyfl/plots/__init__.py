"""Figures as values, and the one place that draws them."""
