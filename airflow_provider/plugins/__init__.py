"""Plugins that Airflow loads besides tasks."""
