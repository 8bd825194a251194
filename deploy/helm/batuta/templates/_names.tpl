{{- define "batuta.chartName" -}}
{{- .Values.nameOverride | default .Chart.Name -}}
{{- end -}}

{{- define "batuta.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else -}}
{{- $chart := include "batuta.chartName" . -}}
{{- $full := .Release.Name -}}
{{- if not (contains $chart .Release.Name) -}}
{{- $full = printf "%s-%s" .Release.Name $chart -}}
{{- end -}}
{{- /* Short enough for -operator and the like to follow. */ -}}
{{- regexReplaceAll "-+$" (trunc 50 $full) "" -}}
{{- end -}}
{{- end -}}

{{- define "batuta.operator" -}}
{{- include "batuta.fullname" . }}-operator
{{- end -}}

{{- define "batuta.configMap" -}}
{{- include "batuta.fullname" . }}-config
{{- end -}}

{{- define "batuta.queueFiles" -}}
{{- include "batuta.fullname" . }}-queues
{{- end -}}

{{- define "batuta.healthMemory" -}}
{{- include "batuta.fullname" . }}-health
{{- end -}}

{{- define "batuta.tlsSecret" -}}
{{- if eq .Values.tls.mode "secret" -}}
{{- .Values.tls.secretName -}}
{{- else -}}
{{- include "batuta.fullname" . }}-tls
{{- end -}}
{{- end -}}

{{- define "batuta.authority" -}}
{{- include "batuta.fullname" . }}-ca
{{- end -}}

{{- define "batuta.scheme" -}}
{{- ternary "http" "https" (eq .Values.tls.mode "off") -}}
{{- end -}}

{{- /* The name by which operators and Prometheus know the certificate, whichever address they ask. */ -}}
{{- define "batuta.serverName" -}}
{{- include "batuta.fullname" . }}.{{ .Release.Namespace }}.svc
{{- end -}}

{{- define "batuta.tls" -}}
mode: {{ ternary "files" .Values.tls.mode (eq .Values.tls.mode "secret") | quote }}
{{- if eq .Values.tls.mode "secret" }}
folder: /etc/batuta-tls
{{- else }}
secret: {{ include "batuta.tlsSecret" . | quote }}
configMap: {{ include "batuta.authority" . | quote }}
{{- end }}
names:
  - {{ include "batuta.serverName" . | quote }}
  - {{ printf "%s.cluster.local" (include "batuta.serverName" .) | quote }}
  - {{ printf "%s.%s" (include "batuta.fullname" .) .Release.Namespace | quote }}
  - {{ include "batuta.fullname" . | quote }}
  # What kubectl port-forward makes of them.
  - localhost
  - 127.0.0.1
  - "::1"
  {{- range .Values.tls.names }}
  - {{ . | quote }}
  {{- end }}
{{- end -}}

{{- define "batuta.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "batuta.operator" .) -}}
{{- end -}}

{{- define "batuta.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Labels that never change, so that an upgrade finds the same pods. */ -}}
{{- define "batuta.selector" -}}
app.kubernetes.io/name: {{ include "batuta.chartName" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "batuta.labels" -}}
{{ include "batuta.selector" . }}
app.kubernetes.io/part-of: batuta
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- if eq .Release.Service "Helm" }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- end }}
{{- end -}}

{{- /* What `batuta operator` reads: the administrator's choices, and where it runs. */ -}}
{{- define "batuta.operatorConfig" -}}
{{- $place := dict
  "namespaces" .Values.namespaces
  "stateDir" "/var/lib/batuta"
  "configMap" (include "batuta.configMap" .)
  "leaseName" (include "batuta.operator" .)
  "queueFiles" (include "batuta.queueFiles" .)
  "healthMemory" (include "batuta.healthMemory" .)
  "health" (dict "burnIn" (dict "image" (.Values.config.health.burnIn.image | default (include "batuta.image" .))))
  "api" (dict "listen" "0.0.0.0" "port" 7077 "openMetrics" .Values.openMetrics "metricsPerJob" .Values.metricsPerJob "audiences" .Values.api.audiences "tls" (include "batuta.tls" . | fromYaml))
  "telemetry" .Values.telemetry
-}}
{{- merge (dict) $place .Values.config | toYaml -}}
{{- end -}}

{{- /* The part of it that takes effect at a start only: the operator takes up the other keys while it runs. */ -}}
{{- define "batuta.startConfig" -}}
{{- $config := include "batuta.operatorConfig" . | fromYaml -}}
{{- $config = omit $config "policy" "placement" "queues" "fairSharing" "gangTimeoutSeconds" "restartBackoffSeconds" "retention" -}}
{{- $_ := set $config "api" (omit $config.api "metricsPerJob") -}}
{{- $config | toYaml -}}
{{- end -}}
