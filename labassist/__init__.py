"""labassist: learn to train language models with real runs that can be replayed and audited."""

__version__ = "0.1.0"
