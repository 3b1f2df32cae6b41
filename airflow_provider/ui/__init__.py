"""Page in Airflow's UI: its queries and its rows."""
