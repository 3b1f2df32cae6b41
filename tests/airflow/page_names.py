"""Names that the page's server, its seed and its tests share."""

SILENT_BUCKET = "silent-bucket"
"""The bucket of a connection whose cluster and store never answer."""
UNREACHABLE = "unreachable"
"""A DAG whose first job runs there, and whose second one has left a log there."""
VAST = "vast"
"""A DAG of five thousand mapped tasks."""
