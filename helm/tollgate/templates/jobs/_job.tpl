{{/* Name of a CronJob, which has 52 characters at most: of a longer one a hash stands for the end. */}}
{{- define "tollgate.cronName" -}}
{{- $name := printf "%s-%s" (include "tollgate.fullname" .root) .name -}}
{{- if gt (len $name) 52 -}}
{{- printf "%s-%s" (trunc 43 $name | trimSuffix "-") (sha256sum $name | trunc 8) -}}
{{- else -}}
{{- $name -}}
{{- end -}}
{{- end -}}

{{/* A CronJob down to its pod's head. Takes root, component, name, schedule, and product or nothing. */}}
{{- define "tollgate.cronJob" -}}
apiVersion: batch/v1
kind: CronJob
metadata:
  name: {{ include "tollgate.cronName" . }}
  labels:
    {{- include "tollgate.labels" . | nindent 4 }}
spec:
  schedule: {{ .schedule | quote }}
  timeZone: {{ .root.Values.jobs.timeZone }}
  # The next one waits for nobody; a run that was missed for an hour is left out.
  concurrencyPolicy: Forbid
  startingDeadlineSeconds: 3600
  successfulJobsHistoryLimit: 3
  failedJobsHistoryLimit: 3
{{- end -}}

{{/* What the container of a job has beside its command. Takes root, and in `asks` the product for a command without --product. */}}
{{- define "tollgate.jobContainer" -}}
image: {{ include "tollgate.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
resources:
  {{- include "tollgate.resources" .root.Values.jobs.resources | nindent 2 }}
securityContext:
  {{- include "tollgate.containerSecurity" .root | nindent 2 }}
env:
  {{- include "tollgate.env" .root | nindent 2 }}
  {{- with .asks }}
  - name: TOLLGATE_PRODUCT
    value: {{ . }}
  {{- end }}
{{- include "tollgate.envFrom" .root }}
{{- end -}}

{{- define "tollgate.jobPodLabels" -}}
{{ include "tollgate.podLabels" . }}
{{- with .root.Values.server.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Where a product's worker is: a volume that one node has (ReadWriteOnce) is there, too. */}}
{{- define "tollgate.besideWorker" -}}
affinity:
  podAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "tollgate.selector" (dict "root" .root "component" "journal" "product" .product) | nindent 12 }}
{{- end -}}
