{{/* Kafka as a command gets it; nothing where there are no brokers. */}}
{{- define "tollgate.kafkaArgs" -}}
{{- if .brokers -}}
- --kafka={{ .brokers }}
{{- if .settingsSecret.name }}
- --kafka-settings=/etc/tollgate/kafka/{{ .settingsSecret.key }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* Variable with an address from a secret; nothing where the secret has no name. */}}
{{- define "tollgate.urlVariable" -}}
{{- if .secret.name -}}
- name: {{ .name }}
  valueFrom:
    secretKeyRef:
      name: {{ .secret.name }}
      key: {{ .secret.key }}
{{- end -}}
{{- end -}}

{{- define "tollgate.kafkaMounts" -}}
{{- if .settingsSecret.name -}}
- name: kafka
  mountPath: /etc/tollgate/kafka
  readOnly: true
{{- end }}
{{- if .tlsSecret }}
- name: kafka-tls
  mountPath: /etc/tollgate/kafka-tls
  readOnly: true
{{- end }}
{{- end -}}

{{- define "tollgate.kafkaVolumes" -}}
{{- with .settingsSecret.name -}}
- name: kafka
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- with .tlsSecret }}
- name: kafka-tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{/* Files for TLS of an MQTT broker or a Redis, which its address names. */}}
{{- define "tollgate.brokerMounts" -}}
{{- if .tlsSecret -}}
- name: broker-tls
  mountPath: /etc/tollgate/broker
  readOnly: true
{{- end }}
{{- end -}}

{{- define "tollgate.brokerVolumes" -}}
{{- with .tlsSecret -}}
- name: broker-tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- end -}}
