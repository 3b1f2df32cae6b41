"""Where the API server has the objects of a kind."""

from __future__ import annotations

from urllib.parse import quote

_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"
_PATHS = {
    "APIGroup": "/apis{}",
    "APIService": "/apis/apiregistration.k8s.io/v1/apiservices{}",
    "ClusterRole": f"{_RBAC}/clusterroles{{}}",
    "ClusterRoleBinding": f"{_RBAC}/clusterrolebindings{{}}",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions{}",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "Namespace": "/api/v1/namespaces{}",
    "Node": "/api/v1/nodes{}",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "Pod": "/api/v1/namespaces/{}/pods",
    "Event": "/api/v1/namespaces/{}/events",
    "LeaderWorkerSet": "/apis/leaderworkerset.x-k8s.io/v1/namespaces/{}/leaderworkersets",
    "MutatingWebhookConfiguration": f"{_WEBHOOKS}/mutatingwebhookconfigurations{{}}",
    "ResourceQuota": "/api/v1/namespaces/{}/resourcequotas",
    "Role": f"{_RBAC}/namespaces/{{}}/roles",
    "RoleBinding": f"{_RBAC}/namespaces/{{}}/rolebindings",
    "SelfSubjectAccessReview": "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews{}",
    "Secret": "/api/v1/namespaces/{}/secrets",
    "Service": "/api/v1/namespaces/{}/services",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "ValidatingWebhookConfiguration": f"{_WEBHOOKS}/validatingwebhookconfigurations{{}}",
    "LocalQueue/v1beta1": "/apis/kueue.x-k8s.io/v1beta1/namespaces/{}/localqueues",
    "LocalQueue/v1beta2": "/apis/kueue.x-k8s.io/v1beta2/namespaces/{}/localqueues",
}


def path_of(kind: str, namespace: str, name: str = "") -> str:
    """The path of an object, or of all of a kind; the namespace is "" for what is the whole cluster's, and
    for the objects of every namespace.
    """
    form = _PATHS[kind] if namespace else _PATHS[kind].replace("/namespaces/{}", "")
    path = form.format(quote(namespace, safe=""))
    return f"{path}/{quote(name, safe='')}" if name else path
