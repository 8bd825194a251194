{{- /*
What the operator may do: the least that works. It reads pods of all namespaces even where it may write in a
few only: pods of others use up nodes too. It reads the logs of pods where jobs are, for the progress that
they report. It may read no Secret but that of its own certificate, and may change nodes only where it is to look
after their health.
*/ -}}
{{- define "batuta.clusterRules" -}}
- apiGroups: [""]
  resources: [nodes, namespaces, pods]
  verbs: [get, list, watch]
- apiGroups: [scheduling.k8s.io]
  resources: [priorityclasses]
  verbs: [get, list, watch]
- apiGroups: [topology.node.k8s.io]
  resources: [noderesourcetopologies]
  verbs: [get, list, watch]
# Whether these are served decides what the operator looks after.
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  resourceNames:
    - unifiedjobs.batuta.dev
    - trialruns.batuta.dev
    - jobsets.jobset.x-k8s.io
    - mpijobs.kubeflow.org
    - noderesourcetopologies.topology.node.k8s.io
    - podgroups.scheduling.x-k8s.io
  verbs: [get]
# Who asks its API something, and what they may see: the cluster says it.
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
- apiGroups: [authorization.k8s.io]
  resources: [subjectaccessreviews]
  verbs: [create]
{{- include "batuta.queueRules" . }}
{{- include "batuta.healthRules" . }}
{{- end -}}

{{- /* Where the health of nodes is looked after; events about nodes are in `default`. */ -}}
{{- define "batuta.healthRules" -}}
{{- if .Values.config.health.enabled }}
- apiGroups: [""]
  resources: [nodes, nodes/status]
  verbs: [patch]
{{ include "batuta.eventRules" . }}
{{- end }}
{{- end -}}

{{- /* In the whole cluster, for what of Kueue the configuration switches on. */ -}}
{{- define "batuta.queueRules" -}}
{{- with .Values.config }}
{{- if eq .admission "kueue" }}
- apiGroups: [kueue.x-k8s.io]
  resources: [resourceflavors, workloadpriorityclasses]
  verbs: [get, list, watch]
{{- else if .kueue.readQuota }}
- apiGroups: [kueue.x-k8s.io]
  resources: [resourceflavors, workloadpriorityclasses, cohorts, clusterqueues]
  verbs: [get, list, watch]
{{- if .kueue.showWorkloads }}
- apiGroups: [kueue.x-k8s.io]
  resources: [clusterqueues/status]
  verbs: [get, patch]
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* The same where jobs are. */ -}}
{{- define "batuta.workloadRules" -}}
{{- with .Values.config }}
{{- $decides := ne .admission "kueue" }}
{{- if and $decides .kueue.readQuota }}
- apiGroups: [kueue.x-k8s.io]
  resources: [localqueues]
  verbs: [get, list, watch]
{{- if .kueue.showWorkloads }}
- apiGroups: [kueue.x-k8s.io]
  resources: [localqueues/status]
  verbs: [get, patch]
{{- end }}
{{- end }}
{{- if or (not $decides) (and .kueue.readQuota .kueue.showWorkloads) }}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, watch, create, delete, patch]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [get, patch]
{{- end }}
{{- end }}
{{- end -}}

{{- define "batuta.jobRules" -}}
# It makes them too, for trials: each size that is tried out is a UnifiedJob.
- apiGroups: [batuta.dev]
  resources: [unifiedjobs]
  verbs: [get, list, watch, create, delete, patch, update]
- apiGroups: [batuta.dev]
  resources: [unifiedjobs/status]
  verbs: [get, patch, update]
- apiGroups: [batuta.dev]
  resources: [unifiedjobs/finalizers, trialruns/finalizers]
  verbs: [update]
- apiGroups: [batuta.dev]
  resources: [trialruns]
  verbs: [get, list, watch, create, delete]
- apiGroups: [batuta.dev]
  resources: [trialruns/status]
  verbs: [get, patch]
- apiGroups: [""]
  resources: [pods, services, configmaps]
  verbs: [create, delete, patch]
- apiGroups: [""]
  resources: [pods/binding, pods/eviction]
  verbs: [create]
- apiGroups: [""]
  resources: [pods/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, delete, patch]
- apiGroups: [kubeflow.org]
  resources: [mpijobs]
  verbs: [get, list, watch, create, delete, patch]
- apiGroups: [jobset.x-k8s.io]
  resources: [jobsets]
  verbs: [get, list, watch]
- apiGroups: [scheduling.x-k8s.io]
  resources: [podgroups]
  verbs: [get, list, watch]
- apiGroups: [scheduling.k8s.io]
  resources: [workloads, podgroups]
  verbs: [get, list, watch]
{{ include "batuta.eventRules" . }}
{{- include "batuta.workloadRules" . }}
{{- end -}}

{{- define "batuta.eventRules" -}}
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end -}}
