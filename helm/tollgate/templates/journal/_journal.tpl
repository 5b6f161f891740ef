{{- define "tollgate.journalClaim" -}}
{{- $volume := get .root.Values.journalWorker .part -}}
{{- $default := printf "%s-journal-%s" (include "tollgate.fullname" .root) .part -}}
{{- printf "%s-%s" (default $default $volume.claimPrefix) (.product | replace "_" "-") -}}
{{- end -}}

{{/* Where a product's journal is, for `journal run` and what works beside it. */}}
{{- define "tollgate.journalPlaces" -}}
- --folder=/journal/folder/{{ . }}
- --keys=/journal/keys/{{ . }}
- --anchor=/journal/anchor/{{ . }}
{{- end -}}

{{/* What `monitor` is told, by schedule or all the time. Takes product, and of the values since, labelLag, legitimate. */}}
{{- define "tollgate.monitorArgs" -}}
- monitor
- --folder=/journal/folder/{{ .product }}
- --since={{ .of.since }}
{{- with .of.labelLag }}
- --label-lag={{ . }}
{{- end }}
{{- if .of.legitimate }}
- --legitimate
{{- end }}
{{- end -}}

{{/* Looks at a journal all the time, in the pod of its worker: a pod of its own would hold the volume on its node, and keep the worker from another. It reads segments, and no keys. */}}
{{- define "tollgate.monitor" -}}
- name: monitor
  image: {{ include "tollgate.image" .root }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  command: [tollgate]
  args:
    {{- include "tollgate.monitorArgs" (dict "product" .product "of" .root.Values.monitor) | nindent 4 }}
    - --every={{ .root.Values.monitor.every }}
    - --metrics-port=8005
    - --metrics-host={{ .root.Values.server.host }}
  env:
    {{- include "tollgate.env" .root | nindent 4 }}
  {{- include "tollgate.envFrom" .root | nindent 2 }}
  ports:
    - name: monitor
      containerPort: 8005
  {{- include "tollgate.workerProbes" (dict "port" "monitor" "startSeconds" 600) | nindent 2 }}
  resources:
    {{- include "tollgate.resources" .root.Values.monitor.resources | nindent 4 }}
  securityContext:
    {{- include "tollgate.containerSecurity" .root | nindent 4 }}
  volumeMounts:
    {{- include "tollgate.mounts" .root | nindent 4 }}
    - name: journal-folder
      mountPath: /journal/folder
      readOnly: true
{{- end -}}

{{- define "tollgate.journalMounts" -}}
{{- range list "folder" "keys" "anchor" }}
- name: journal-{{ . }}
  mountPath: /journal/{{ . }}
{{- end }}
{{- end -}}

{{- define "tollgate.journalVolumes" -}}
{{- $of := . -}}
{{- range list "folder" "keys" "anchor" }}
- name: journal-{{ . }}
  persistentVolumeClaim:
    claimName: {{ include "tollgate.journalClaim" (dict "root" $of.root "product" $of.product "part" .) }}
{{- end }}
{{- end -}}
