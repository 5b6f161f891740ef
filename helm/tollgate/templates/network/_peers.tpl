{{/* A list of peers that are this release's own pods of one component. */}}
{{- define "tollgate.own" -}}
- podSelector:
    matchLabels:
      {{- include "tollgate.selector" . | nindent 6 }}
{{- end -}}

{{/* An egress rule for one port; to everybody where no peers are named. */}}
{{- define "tollgate.egress" -}}
- ports:
    - port: {{ .port }}
      protocol: TCP
  {{- with .peers }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- define "tollgate.dnsEgress" -}}
- ports:
    - port: 53
      protocol: UDP
    - port: 53
      protocol: TCP
  {{- with .Values.networkPolicy.dns }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- define "tollgate.storeEgress" -}}
{{ include "tollgate.egress" .Values.store }}
{{- end -}}

{{- define "tollgate.journalEgress" -}}
{{- if and .Values.journal.enabled .Values.journal.urlSecret.name }}
{{ include "tollgate.egress" .Values.journal }}
{{- end }}
{{- end -}}

{{/* What reads the repository may reach: an object store, and what else people say, such as who gives the rights to it. */}}
{{- define "tollgate.repositoryEgress" -}}
{{- if eq .Values.repository.kind "objectStore" }}
- ports:
    - port: {{ .Values.repository.objectStore.port }}
      protocol: TCP
{{- end }}
{{- with .Values.networkPolicy.extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "tollgate.policyHead" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "tollgate.fullname" .root }}-{{ .component }}
  labels:
    {{- include "tollgate.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      {{- include "tollgate.selector" . | nindent 6 }}
{{- end -}}
