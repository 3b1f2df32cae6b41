"""Container images: what a project depends on, and the image that has it."""
