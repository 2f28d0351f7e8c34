"""One screen a file, with its layout in the `.tcss` beside it."""
