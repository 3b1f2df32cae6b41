"""What becomes of a task and its job when somebody or something interferes: every action in every phase."""
