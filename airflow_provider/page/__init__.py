"""The page in Airflow's UI: what it asks, and what it shows."""
