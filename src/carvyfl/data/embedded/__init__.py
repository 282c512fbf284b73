"""The data file that comes with the package."""
