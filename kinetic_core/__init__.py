"""Run any Python function on a cloud TPU or GPU, from a plain script or an Airflow DAG."""

__version__ = "0.1.0"
