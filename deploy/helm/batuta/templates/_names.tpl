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

{{- define "batuta.queueFiles" -}}
{{- include "batuta.fullname" . }}-queues
{{- end -}}

{{- define "batuta.healthMemory" -}}
{{- include "batuta.fullname" . }}-health
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
  "leaseName" (include "batuta.operator" .)
  "queueFiles" (include "batuta.queueFiles" .)
  "healthMemory" (include "batuta.healthMemory" .)
  "health" (dict "burnIn" (dict "image" (.Values.config.health.burnIn.image | default (include "batuta.image" .))))
  "api" (dict "listen" "0.0.0.0" "port" 7077 "openMetrics" .Values.openMetrics "metricsPerJob" .Values.metricsPerJob "audiences" .Values.api.audiences)
  "telemetry" .Values.telemetry
-}}
{{- merge (dict) $place .Values.config | toYaml -}}
{{- end -}}
