"""Runs in the shapes that other tools read: tables, a page, a research object, MLflow."""
