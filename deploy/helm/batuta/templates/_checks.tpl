{{- /* What the schema cannot say because it takes two values. `batuta install` refuses the same. */ -}}
{{- define "batuta.checks" -}}
{{- with .Values.journal -}}
{{- if and (eq .type "persistentVolumeClaim") (gt (int $.Values.replicas) 1) -}}
{{- fail "journal.type persistentVolumeClaim takes replicas: 1, because one process writes the volume; for several replicas use postgres or emptyDir" -}}
{{- end -}}
{{- if and (eq .type "postgres") (not .postgres.secretName) -}}
{{- fail "journal.type postgres needs journal.postgres.secretName" -}}
{{- end -}}
{{- end -}}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.create: false needs serviceAccount.name" -}}
{{- end -}}
{{- if and (eq .Values.tls.mode "secret") (not .Values.tls.secretName) -}}
{{- fail "tls.mode secret needs tls.secretName" -}}
{{- end -}}
{{- if and .Values.logCollector.enabled (not .Values.logCollector.lokiUrl) -}}
{{- fail "logCollector.enabled needs logCollector.lokiUrl" -}}
{{- end -}}
{{- with .Values.config.leaderElection -}}
{{- if not (and (lt (int .retryPeriodSeconds) (int .renewDeadlineSeconds)) (lt (int .renewDeadlineSeconds) (int .leaseDurationSeconds))) -}}
{{- fail "config.leaderElection: retryPeriodSeconds < renewDeadlineSeconds < leaseDurationSeconds must hold" -}}
{{- end -}}
{{- end -}}
{{- $seen := dict -}}
{{- range .Values.config.queues -}}
{{- if hasKey $seen .name -}}
{{- fail (printf "config: queue %s appears twice" .name) -}}
{{- end -}}
{{- $_ := set $seen .name true -}}
{{- end -}}
{{- end -}}
