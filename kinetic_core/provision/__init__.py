"""From an empty project to a running cluster and back: a plan of idempotent steps, and its application."""
