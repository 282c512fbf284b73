"""Pictures of results, and the HTML page of a run."""
