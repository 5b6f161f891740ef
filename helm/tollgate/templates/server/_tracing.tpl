{{/* Where servers send traces, and how many. */}}
{{- define "tollgate.tracingEnv" -}}
{{- $tracing := .Values.tracing -}}
{{- if $tracing.endpoint }}
- name: TOLLGATE_OTLP_ENDPOINT
  value: {{ $tracing.endpoint | quote }}
- name: TOLLGATE_TRACE_RATE
  value: {{ int $tracing.rate | quote }}
# Before the next one, which takes it in.
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: OTEL_RESOURCE_ATTRIBUTES
  value: k8s.namespace.name={{ .Release.Namespace }},k8s.pod.name=$(POD_NAME){{ with .Values.region }},cloud.region={{ . }}{{ end }}
{{- with $tracing.headersSecret }}
{{- if .name }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom:
    secretKeyRef:
      name: {{ .name }}
      key: {{ .key }}
{{- end }}
{{- end }}
{{- if $tracing.tlsSecret }}
- name: OTEL_EXPORTER_OTLP_CERTIFICATE
  value: /etc/tollgate/collector/ca.crt
{{- if $tracing.clientCertificate }}
- name: OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE
  value: /etc/tollgate/collector/tls.crt
- name: OTEL_EXPORTER_OTLP_CLIENT_KEY
  value: /etc/tollgate/collector/tls.key
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "tollgate.tracingMount" -}}
{{- if and .Values.tracing.endpoint .Values.tracing.tlsSecret }}
- name: collector-tls
  mountPath: /etc/tollgate/collector
  readOnly: true
{{- end }}
{{- end -}}

{{- define "tollgate.tracingVolume" -}}
{{- if and .Values.tracing.endpoint .Values.tracing.tlsSecret }}
- name: collector-tls
  secret:
    secretName: {{ .Values.tracing.tlsSecret }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{- define "tollgate.tracingEgress" -}}
{{- if .Values.tracing.endpoint }}
{{ include "tollgate.egress" .Values.tracing }}
{{- end }}
{{- end -}}
