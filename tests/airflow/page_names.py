"""Names that the page's server, its seed and its tests share."""

HTML = "<img src=x onerror='document.title=\"owned\"'>"
"""What a name or a message may have in it, and no browser may run."""
SILENT_BUCKET = "silent-bucket"
"""The bucket of a connection whose cluster and store never answer."""
UNREACHABLE = "unreachable"
"""A DAG whose first job runs there, and whose second one has left a log there."""
VAST = "vast"
"""A DAG of five thousand mapped tasks."""
CORPUS = "corpus"
"""A DAG of one task with ten thousand inputs."""
INPUTS = 10_000
