"""What Airflow loads besides tasks."""
