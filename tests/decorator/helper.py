"""Imported inside a job, from the shipped project."""
