{{/* Name of the release's objects, at most 48 characters: parts and products come behind it. */}}
{{- define "tollgate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 48 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 48 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 48 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels by which pods are found. They never change: a Deployment's selector cannot. */}}
{{- define "tollgate.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | trunc 63 }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- with .track }}
tollgate/track: {{ . }}
{{- end }}
{{- with .product }}
tollgate/product: {{ . }}
{{- end }}
{{- end -}}

{{/* Labels of an object; not of pods, which would restart with each version of the chart. */}}
{{- define "tollgate.labels" -}}
{{ include "tollgate.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Labels of a pod. */}}
{{- define "tollgate.podLabels" -}}
{{ include "tollgate.selector" . }}
{{- with .root.Values.region }}
tollgate/region: {{ . }}
{{- end }}
{{- end -}}

{{- define "tollgate.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "tollgate.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* REPOSITORY:TAG@DIGEST of an image; a digest is what is pulled, the tag says what it is. */}}
{{- define "tollgate.imageName" -}}
{{ .repository }}:{{ .tag }}{{ with .digest }}@{{ . }}{{ end }}
{{- end -}}

{{- define "tollgate.image" -}}
{{- $image := .Values.image -}}
{{- include "tollgate.imageName" (dict "repository" $image.repository "tag" (default .Chart.AppVersion $image.tag) "digest" $image.digest) -}}
{{- end -}}

{{/* What cannot be meant, in one sentence each; the schema refuses what it can see. */}}
{{- define "tollgate.require" -}}
{{- $values := .Values -}}
{{- if and (eq $values.repository.kind "objectStore") (not $values.repository.objectStore.url) -}}
{{- fail "repository.objectStore.url is empty: name the store, or take repository.kind pvc" -}}
{{- end -}}
{{- if and $values.canary.enabled (not (or $values.canary.tag $values.canary.digest)) -}}
{{- fail "canary.tag and canary.digest are empty: a canary is another image" -}}
{{- end -}}
{{- if and $values.canary.enabled (not $values.canary.gateway.name) -}}
{{- fail "canary.gateway.name is empty: weights are a Gateway's; name the one that callers come by" -}}
{{- end -}}
{{- if and $values.metrics.podMonitor.enabled $values.metrics.serviceMonitor.enabled -}}
{{- fail "metrics.podMonitor and metrics.serviceMonitor are both on: every server would be scraped twice" -}}
{{- end -}}
{{- if and $values.journalWorker.enabled (not $values.journal.enabled) -}}
{{- fail "journal.enabled is false: journalWorker.enabled has nothing to seal" -}}
{{- end -}}
{{- if and $values.jobs.retention.enabled (not $values.journalWorker.enabled) -}}
{{- fail "jobs.retention.enabled needs journalWorker.enabled: there is no journal to keep" -}}
{{- end -}}
{{- if and $values.jobs.monitor.enabled (not $values.journalWorker.enabled) -}}
{{- fail "jobs.monitor.enabled needs journalWorker.enabled: there is no journal to read" -}}
{{- end -}}
{{- if and $values.monitor.enabled (not $values.journalWorker.enabled) -}}
{{- fail "monitor.enabled needs journalWorker.enabled: there is no journal to read" -}}
{{- end -}}
{{- with $values.tracing -}}
{{- if and .rate (not .endpoint) -}}
{{- fail "tracing.rate needs tracing.endpoint: nobody would get the traces" -}}
{{- end -}}
{{- if and .clientCertificate (not .tlsSecret) -}}
{{- fail "tracing.clientCertificate needs tracing.tlsSecret, which has it" -}}
{{- end -}}
{{- end -}}
{{- $gateway := $values.gateway -}}
{{- if and $gateway.enabled $gateway.upstream $values.networkPolicy.enabled (not $gateway.upstreamEgress) -}}
{{- fail "gateway.upstream needs gateway.upstreamEgress: the network policy opens this chart's servers alone" -}}
{{- end -}}
{{- if and $gateway.enabled $gateway.upstream (not $gateway.servers) -}}
{{- fail "gateway.upstream needs gateway.servers: its address does not tell how many servers are behind it" -}}
{{- end -}}
{{- range list "callerInFlight" "bulkInFlight" -}}
{{- if gt (int (index $values.gateway .)) (int $values.gateway.inFlight) -}}
{{- fail (printf "gateway.%s is above gateway.inFlight, of which it is a part" .) -}}
{{- end -}}
{{- end -}}
{{- if and $values.autoscaling.enabled $gateway.enabled (gt (mul 2 (int $values.autoscaling.underWayRequests)) (int $gateway.inFlight)) -}}
{{- fail "autoscaling.underWayRequests is above half of gateway.inFlight: the gateway would refuse before a server is added" -}}
{{- end -}}
{{- if gt (int $values.door.callerRowsInFlight) (int $values.door.rowsInFlight) -}}
{{- fail "door.callerRowsInFlight is above door.rowsInFlight, of which it is a part" -}}
{{- end -}}
{{- if gt (int $values.door.maxRows) (int $values.door.callerRowsInFlight) -}}
{{- fail "door.maxRows is above door.callerRowsInFlight: such a request would always be refused" -}}
{{- end -}}
{{- if gt (int $values.autoscaling.minReplicas) (int $values.autoscaling.maxReplicas) -}}
{{- fail "autoscaling.minReplicas is above autoscaling.maxReplicas" -}}
{{- end -}}
{{- if and $values.gpu.tensorrt.build (ne $values.gpu.modelConfigName "tensorrt") -}}
{{- fail "gpu.tensorrt.build makes plans that gpu.modelConfigName does not name: make it tensorrt" -}}
{{- end -}}
{{- range $part := list "stream" "alarms" -}}
{{- $kafka := (index $values $part).kafka -}}
{{- range compact (splitList "," $kafka.brokers) -}}
{{- if not (hasSuffix (printf ":%d" (int $kafka.port)) .) -}}
{{- fail (printf "%s.kafka.brokers: %s has another port than %s.kafka.port, which the network policy opens" $part . $part) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $alarms := $values.alarms -}}
{{- if and $alarms.enabled $alarms.webhook.enabled (not (and $alarms.webhook.urlSecret.name $alarms.webhook.secret.name)) -}}
{{- fail "alarms.webhook.urlSecret.name or secret.name is empty: name the secrets with the receiver's address and with what signs" -}}
{{- end -}}
{{- $ready := $values.server.readinessProduct -}}
{{- if and $ready (ne $ready "all") (not (has $ready $values.products)) -}}
{{- fail (printf "server.readinessProduct: %s is none of products" $ready) -}}
{{- end -}}
{{- end -}}
