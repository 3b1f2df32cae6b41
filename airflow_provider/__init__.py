"""Kinetic as Airflow tasks."""
