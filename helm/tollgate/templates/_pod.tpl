{{/* Security of a pod that runs Tollgate. */}}
{{- define "tollgate.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .Values.podSecurity.runAsUser }}
runAsGroup: {{ .Values.podSecurity.fsGroup }}
fsGroup: {{ .Values.podSecurity.fsGroup }}
# Large volumes are not walked through at each start.
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "tollgate.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* What all pods of Tollgate have in common, above their containers. */}}
{{- define "tollgate.podHead" -}}
serviceAccountName: {{ include "tollgate.serviceAccount" . }}
# Nothing here talks to Kubernetes.
automountServiceAccountToken: false
# A Service called tollgate would put TOLLGATE_PORT and the like into the environment,
# and a setting that Tollgate does not know ends it.
enableServiceLinks: false
securityContext:
  {{- include "tollgate.podSecurity" . | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* The model repository as commands name it. */}}
{{- define "tollgate.repository" -}}
{{- if eq .Values.repository.kind "pvc" -}}
/models
{{- else -}}
{{- .Values.repository.objectStore.url | trimSuffix "/" -}}
{{- end -}}
{{- end -}}

{{/* Folder of a state folder that copies of the object store lie in; as mirror_folder of tollgate/repository/remote/mirror.py. */}}
{{- define "tollgate.copies" -}}
{{- $url := include "tollgate.repository" . -}}
{{- printf "%s-%s" (regexReplaceAll "[^A-Za-z0-9._-]" (last (splitList "/" $url)) "_") (sha256sum $url | trunc 8) -}}
{{- end -}}

{{/* Addresses and folders, which every command reads from its environment. Addresses hold passwords, and command lines are read by others. */}}
{{- define "tollgate.env" -}}
{{- $store := .Values.store -}}
{{- $journal := .Values.journal -}}
- name: HOME
  value: /tmp
- name: TOLLGATE_REPOSITORY
  value: {{ include "tollgate.repository" . }}
- name: TOLLGATE_STATE
  value: /var/lib/tollgate
- name: TOLLGATE_STORE_URL
  valueFrom:
    secretKeyRef:
      name: {{ $store.urlSecret.name }}
      key: {{ $store.urlSecret.key }}
{{- if not $journal.enabled }}
- name: TOLLGATE_JOURNAL_URL
  value: ""
{{- else if $journal.urlSecret.name }}
- name: TOLLGATE_JOURNAL_URL
  valueFrom:
    secretKeyRef:
      name: {{ $journal.urlSecret.name }}
      key: {{ $journal.urlSecret.key }}
{{- end }}
{{- end -}}

{{- define "tollgate.envFrom" -}}
{{- $objects := .Values.repository.objectStore -}}
{{- if and (eq .Values.repository.kind "objectStore") $objects.credentialsSecret }}
envFrom:
  - secretRef:
      name: {{ $objects.credentialsSecret }}
{{- end }}
{{- end -}}

{{/* Where a container may write, and what it reads. The root file system is read-only. */}}
{{- define "tollgate.mounts" -}}
- name: state
  mountPath: /var/lib/tollgate
- name: tmp
  mountPath: /tmp
{{- if eq .Values.repository.kind "pvc" }}
- name: models
  mountPath: /models
  readOnly: true
  {{- with .Values.repository.pvc.subPath }}
  subPath: {{ . }}
  {{- end }}
{{- end }}
{{- if .Values.store.tlsSecret }}
- name: store-tls
  mountPath: /etc/tollgate/store
  readOnly: true
{{- end }}
{{- if .Values.journal.tlsSecret }}
- name: journal-tls
  mountPath: /etc/tollgate/journal
  readOnly: true
{{- end }}
{{- end -}}

{{/* The volumes behind these but `state`, which servers and commands need different room for. */}}
{{- define "tollgate.volumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: 1Gi
{{- if eq .Values.repository.kind "pvc" }}
- name: models
  persistentVolumeClaim:
    claimName: {{ .Values.repository.pvc.claimName }}
{{- end }}
{{- with .Values.store.tlsSecret }}
- name: store-tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- with .Values.journal.tlsSecret }}
- name: journal-tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{/* Requests that are the limits. */}}
{{- define "tollgate.resources" -}}
requests:
  cpu: {{ .cpu | quote }}
  memory: {{ .memory | quote }}
limits:
  cpu: {{ .cpu | quote }}
  memory: {{ .memory | quote }}
{{- end -}}

{{/* State of a command: a copy of the repository, if it is in an object store. */}}
{{- define "tollgate.commandState" -}}
- name: state
  emptyDir:
    sizeLimit: {{ .Values.server.state.gibShared }}Gi
{{- end -}}

{{/* Probes of a worker, whose metrics answer while it runs. Takes their port, and the seconds that a start may take. */}}
{{- define "tollgate.workerProbes" -}}
startupProbe:
  httpGet:
    path: /metrics
    port: {{ .port }}
  periodSeconds: 5
  timeoutSeconds: 2
  failureThreshold: {{ div .startSeconds 5 }}
livenessProbe:
  httpGet:
    path: /metrics
    port: {{ .port }}
  periodSeconds: 20
  timeoutSeconds: 5
  failureThreshold: 3
{{- end -}}
