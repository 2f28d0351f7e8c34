"""The terminal app: draws what files say, never trains, and can be killed at any moment."""
