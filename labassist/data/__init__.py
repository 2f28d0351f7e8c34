"""Training data: read strictly, described before anything is trained on it."""
