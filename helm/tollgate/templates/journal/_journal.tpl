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
