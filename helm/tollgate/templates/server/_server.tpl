{{/* Bytes of /dev/shm in MiB: 16 for each Python-backed instance, which takes 1 MiB that grows with its batches, 16 that must be free at the start, and as much again. */}}
{{- define "tollgate.shmMi" -}}
{{- add 32 (mul 16 (len .Values.products) (int .Values.server.stepInstances)) -}}
{{- end -}}

{{- define "tollgate.stateGi" -}}
{{- add (int .Values.server.state.gibShared) (mul (len .Values.products) (int .Values.server.state.gibPerProduct)) -}}
{{- end -}}

{{- define "tollgate.modelConfigName" -}}
{{- if .Values.gpu.enabled -}}{{ .Values.gpu.modelConfigName }}{{- else -}}{{ .Values.server.modelConfigName }}{{- end -}}
{{- end -}}

{{/* /readyz of the product that stands for the pod. */}}
{{- define "tollgate.readyPath" -}}
{{- $product := default (first .Values.products) .Values.server.readinessProduct -}}
/readyz{{ if ne $product "all" }}/{{ $product }}{{ end }}
{{- end -}}

{{/* A Deployment of servers: of the stable image, or of the canary's. Takes root, track, image, replicas (empty where an autoscaler sets them). */}}
{{- define "tollgate.server" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $server := $values.server -}}
{{- $labels := dict "root" $root "component" "server" "track" .track -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "tollgate.fullname" $root }}{{ if eq .track "canary" }}-canary{{ end }}
  labels:
    {{- include "tollgate.labels" $labels | nindent 4 }}
spec:
  {{- if not (kindIs "invalid" .replicas) }}
  replicas: {{ .replicas }}
  {{- end }}
  # A replica comes before one goes: what decides never gets less.
  strategy:
    type: RollingUpdate
    rollingUpdate:
      maxSurge: 1
      maxUnavailable: 0
  revisionHistoryLimit: 5
  progressDeadlineSeconds: {{ add (int $server.startupSeconds) 120 }}
  selector:
    matchLabels:
      {{- include "tollgate.selector" $labels | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "tollgate.podLabels" $labels | nindent 8 }}
        {{- with $server.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        kubectl.kubernetes.io/default-container: tollgate
        {{- with $server.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      {{- include "tollgate.podHead" $root | nindent 6 }}
      # Longer than: leaving the load balancers, serving on, and Triton's own 10 s for
      # requests in flight, with 10 s to spare.
      terminationGracePeriodSeconds: {{ add (int $server.preStopSeconds) (int $server.drainDelaySeconds) 20 }}
      {{- with $server.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- if $server.topologySpread }}
      # As evenly as there are zones and nodes. A decision late is worse than two servers
      # on one node, so it schedules anyway.
      topologySpreadConstraints:
        {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
        - maxSkew: 1
          topologyKey: {{ . }}
          whenUnsatisfiable: ScheduleAnyway
          matchLabelKeys: [pod-template-hash]
          labelSelector:
            matchLabels:
              {{- include "tollgate.selector" $labels | nindent 14 }}
        {{- end }}
      {{- end }}
      {{- include "tollgate.nodes" $root | nindent 6 }}
      {{- if and $values.gpu.enabled $values.gpu.tensorrt.build }}
      initContainers:
        {{- include "tollgate.plans" (dict "root" $root "image" .image) | nindent 8 }}
      {{- end }}
      containers:
        - name: tollgate
          image: {{ .image }}
          imagePullPolicy: {{ $values.image.pullPolicy }}
          command: [tollgate]
          args:
            - serve
            {{- range $values.products }}
            - --product={{ . }}
            {{- end }}
            - --host={{ $server.host }}
            - --grpc-port=8001
            - --metrics-port=8002
            - --side-port=8003
            - --recycle-after={{ $server.recycleAfterHours }}
            - --recycle-above={{ $server.recycleAboveMb }}
            - --drain-delay={{ $server.drainDelaySeconds }}
            - --log-format=json
            {{- with include "tollgate.modelConfigName" $root }}
            - --model-config-name={{ . }}
            {{- end }}
            {{- with $server.cacheMb }}
            - --cache-mb={{ int . }}
            {{- end }}
          env:
            {{- include "tollgate.env" $root | nindent 12 }}
            {{- with $server.allocator }}
            - name: TOLLGATE_ALLOCATOR
              value: {{ . }}
            {{- end }}
            {{- include "tollgate.tracingEnv" $root | nindent 12 }}
            {{- range $server.extraEnv }}
            - name: {{ .name }}
              {{- if .secret }}
              valueFrom:
                secretKeyRef:
                  name: {{ .secret }}
                  key: {{ .key }}
              {{- else }}
              value: {{ .value | quote }}
              {{- end }}
            {{- end }}
          {{- include "tollgate.envFrom" $root | nindent 10 }}
          ports:
            - name: grpc
              containerPort: 8001
            - name: metrics
              containerPort: 8002
            - name: side
              containerPort: 8003
          # The supervisor answers for what it mends by itself: a dead step, a hanging
          # server. Its side port opens when the first release has been proven.
          startupProbe:
            httpGet:
              path: {{ include "tollgate.readyPath" $root }}
              port: side
            periodSeconds: 2
            timeoutSeconds: 2
            failureThreshold: {{ div (add (int $server.startupSeconds) 1) 2 }}
          # /readyz says no after one failed decision, or 3 s without one: 2 s more here.
          readinessProbe:
            httpGet:
              path: {{ include "tollgate.readyPath" $root }}
              port: side
            periodSeconds: 2
            timeoutSeconds: 2
            failureThreshold: 1
          # Slower than any mending (4 s measured), so that a restart is the last resort.
          livenessProbe:
            httpGet:
              path: /livez
              port: side
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 3
          lifecycle:
            preStop:
              exec:
                command: [sleep, {{ $server.preStopSeconds | quote }}]
          resources:
            {{- include "tollgate.serverResources" $root | nindent 12 }}
          securityContext:
            {{- include "tollgate.containerSecurity" $root | nindent 12 }}
          volumeMounts:
            {{- include "tollgate.mounts" $root | nindent 12 }}
            {{- include "tollgate.tracingMount" $root | nindent 12 }}
            - name: shm
              mountPath: /dev/shm
      volumes:
        {{- include "tollgate.volumes" $root | nindent 8 }}
        {{- include "tollgate.tracingVolume" $root | nindent 8 }}
        # Through it Triton and its Python steps exchange tensors. It counts as the
        # container's memory.
        - name: shm
          emptyDir:
            medium: Memory
            sizeLimit: {{ include "tollgate.shmMi" $root }}Mi
        - name: state
          {{- if $server.state.storageClassName }}
          ephemeral:
            volumeClaimTemplate:
              spec:
                accessModes: [ReadWriteOnce]
                storageClassName: {{ $server.state.storageClassName }}
                resources:
                  requests:
                    storage: {{ include "tollgate.stateGi" $root }}Gi
          {{- else }}
          # A pod that outgrows it is evicted, so there is room for full spools.
          emptyDir:
            sizeLimit: {{ include "tollgate.stateGi" $root }}Gi
          {{- end }}
{{- end -}}

{{/* Nodes that servers may run on. */}}
{{- define "tollgate.nodes" -}}
{{- $server := .Values.server -}}
{{- $gpu := .Values.gpu -}}
{{- $selector := $server.nodeSelector -}}
{{- $tolerations := $server.tolerations -}}
{{- if $gpu.enabled -}}
{{- $selector = merge (dict) $gpu.nodeSelector $selector -}}
{{- $tolerations = concat $tolerations $gpu.tolerations -}}
{{- with $gpu.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- end -}}
{{- with $selector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "tollgate.serverResources" -}}
{{- $values := .Values -}}
{{- range list "requests" "limits" }}
{{ . }}:
  cpu: {{ $values.server.resources.cpu | quote }}
  memory: {{ $values.server.resources.memory | quote }}
  {{- if $values.gpu.enabled }}
  {{ $values.gpu.resourceName }}: {{ $values.gpu.count }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Builds what TensorRT needs, on the very GPU that will serve, and only what is not there. A plan lies beside its model.onnx; of an object store, in the copy that the server reads. */}}
{{- define "tollgate.plans" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $pvc := eq $values.repository.kind "pvc" -}}
{{- $copies := include "tollgate.copies" $root -}}
- name: plans
  image: {{ default .image $values.gpu.tensorrt.image }}
  imagePullPolicy: {{ $values.image.pullPolicy }}
  command: [sh, -euc]
  args:
    - |
      build() {
        for config in "$1"/*/configs/tensorrt.pbtxt; do
          [ -e "$config" ] || continue
          model=$(basename "$(dirname "$(dirname "$config")")")
          for onnx in "$1/$model"/*/model.onnx; do
            [ -e "$onnx" ] || continue
            version=$2/$model/$(basename "$(dirname "$onnx")")
            [ ! -e "$version/model.plan.json" ] || continue
            mkdir -p "$version"
            tollgate engine "$onnx" --out "$version/model.plan" --precision {{ $values.gpu.tensorrt.precision }}
          done
        done
      }
      {{- if $pvc }}
      build /models /models
      {{- else }}
      {{- range $values.products }}
      tollgate release show --product {{ . }} >/dev/null
      build /var/lib/tollgate/working/{{ $copies }}/repository /var/lib/tollgate/mirror/{{ $copies }}
      {{- end }}
      {{- end }}
  env:
    {{- include "tollgate.env" $root | nindent 4 }}
  {{- include "tollgate.envFrom" $root | nindent 2 }}
  resources:
    {{- include "tollgate.serverResources" $root | nindent 4 }}
  securityContext:
    {{- include "tollgate.containerSecurity" $root | nindent 4 }}
  volumeMounts:
    - name: state
      mountPath: /var/lib/tollgate
    - name: tmp
      mountPath: /tmp
    {{- if $pvc }}
    - name: models
      mountPath: /models
      {{- with $values.repository.pvc.subPath }}
      subPath: {{ . }}
      {{- end }}
    {{- end }}
{{- end -}}
