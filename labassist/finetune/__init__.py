"""From a base model to served answers: which model is meant, the adapter's merge, and what a recipe is as a script."""
