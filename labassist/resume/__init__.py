"""Resume diagnostics: is a checkpoint whole, and does going on from it give what an unbroken run gives."""
