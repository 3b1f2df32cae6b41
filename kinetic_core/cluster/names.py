"""Names that Kubernetes objects of jobs carry. Constants only: the local agent starts with these."""

SPEC_DIGEST = "kinetic.dev/spec-digest"
JOB_ID = "kinetic.dev/job-id"
GROUP_ID = "kinetic.dev/group-id"
FUNCTION = "kinetic.dev/function"
CONTAINER = "kinetic-worker"
SERVICE_ACCOUNT = "kinetic"

FAILED_COUNT = "batch.kubernetes.io/job-index-failure-count"
"""How often the index failed before this pod; the Job controller sets it on pods of indexed Jobs."""
IGNORED_COUNT = "batch.kubernetes.io/job-index-ignored-failure-count"
"""How often it failed in ways the pod failure policy ignores."""
