"""The volumes of a pod that are about data: places for copies, mounted buckets, the cache.

Cloud Storage FUSE: https://cloud.google.com/kubernetes-engine/docs/how-to/cloud-storage-fuse-csi-driver-ephemeral
"""

from __future__ import annotations

from typing import Any

from kinetic_core.model.job import BucketMount, JobSpec

CACHE_DIR = "/kinetic-cache"
"""Where the cache volume is, if the job has one."""

_DRIVER = "gcsfuse.csi.storage.gke.io"
_SIDECAR = "gke-gcsfuse/volumes"
"""The annotation by which GKE puts the FUSE sidecar into a pod."""

Volume = tuple[dict[str, Any], dict[str, Any]]
"""A container's mount, and the pod's volume of the same name."""


def data_volumes(spec: JobSpec) -> list[Volume]:
    """An emptyDir for each volume that is copied, a CSI volume for each mounted bucket, the cache's claim."""
    mounted = {bucket.path for bucket in spec.buckets}
    copied = [path for path in spec.mounts if path not in mounted]
    volumes: list[Volume] = [
        ({"name": f"volume-{i}", "mountPath": path}, {"name": f"volume-{i}", "emptyDir": {}})
        for i, path in enumerate(copied)
    ]
    volumes += [_bucket(f"bucket-{i}", bucket) for i, bucket in enumerate(spec.buckets)]
    if spec.pod.cache_volume is not None:
        claim = {"claimName": spec.pod.cache_volume}
        volumes.append((
            {"name": "cache", "mountPath": CACHE_DIR},
            {"name": "cache", "persistentVolumeClaim": claim},
        ))  # fmt: skip
    return volumes


def pod_annotations(spec: JobSpec) -> dict[str, str]:
    """What a pod must say for its mounts to work."""
    return {_SIDECAR: "true"} if spec.buckets else {}


def _bucket(name: str, bucket: BucketMount) -> Volume:
    """Objects may have no directory objects above them, hence `implicit-dirs`."""
    options = ["implicit-dirs", *([f"only-dir={bucket.folder}"] if bucket.folder else [])]
    csi = {
        "driver": _DRIVER,
        "readOnly": True,
        "volumeAttributes": {"bucketName": bucket.bucket, "mountOptions": ",".join(options)},
    }
    return {"name": name, "mountPath": bucket.path, "readOnly": True}, {"name": name, "csi": csi}
