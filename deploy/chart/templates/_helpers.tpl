{{- define "hindcast.name" -}}
{{- $name := ternary .Release.Name (printf "%s-hindcast" .Release.Name) (contains "hindcast" .Release.Name) -}}
{{- $name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "hindcast.selector" -}}
app.kubernetes.io/name: hindcast
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "hindcast.labels" -}}
{{ include "hindcast.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "hindcast.image" -}}
{{- $image := .Values.image -}}
{{- with $image.digest -}}
{{ $image.repository }}@{{ . }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- /* The services that are enabled, by name: their module, port, settings, and values. `state` is where one keeps
       what must not be lost. live is none of those on Kafka: it has arguments, and may have an account of its own. */ -}}
{{- define "hindcast.services" -}}
{{- $services := dict -}}
{{- if .Values.detect.enabled -}}
{{- $_ := set $services "detect" (dict "module" "services.detect" "listens" "STATUS" "port" 8080 "state" "/detect" "values" .Values.detect
      "env" (dict "HINDCAST_DETECT_STATE_DIR" "/detect")) -}}
{{- end -}}
{{- if .Values.notify.enabled -}}
{{- $url := required "alertmanager.url is needed by notify" .Values.alertmanager.url -}}
{{- $_ := set $services "notify" (dict "module" "services.notify" "listens" "STATUS" "port" 8080 "values" .Values.notify
      "env" (dict "HINDCAST_NOTIFY_ALERTMANAGER_URL" $url)) -}}
{{- end -}}
{{- range $name, $sink := .Values.sinks -}}
{{- $values := mergeOverwrite (deepCopy $.Values.sinkDefaults) $sink -}}
{{- $_ := set $services (printf "sink-%s" $name) (dict "module" "services.sink" "listens" "STATUS" "port" 8080 "values" $values
      "env" (dict "HINDCAST_SINK_TARGET" $name "HINDCAST_SINK_URL" $sink.url)) -}}
{{- end -}}
{{- $library := list "/recordings" -}}
{{- $imported := ternary (list "/api/recordings") list (ne .Values.api.persistence.existingClaim "") -}}
{{- if .Values.replay.enabled -}}
{{- $_ := set $services "replay" (dict "module" "services.replay" "listens" "REPLAY" "port" 8480 "state" "/replay" "values" .Values.replay
      "env" (dict "HINDCAST_REPLAY_STATE_DIR" "/replay" "HINDCAST_REPLAY_RECORDINGS" (concat $library $imported | toJson))) -}}
{{- end -}}
{{- if .Values.api.enabled -}}
{{- $env := dict "HINDCAST_API_DATA_DIR" "/api" "HINDCAST_API_LIBRARY" (toJson $library)
      "HINDCAST_API_HOST_NAMES" (concat (list "localhost" "127.0.0.1") .Values.api.hostNames | toJson)
      "HINDCAST_API_REPLAY_URL" (printf "http://%s-replay:8480" (include "hindcast.name" .))
      "HINDCAST_API_SOURCES" (toJson .Values.api.sources) -}}
{{- with .Values.alertmanager.url -}}{{- $_ := set $env "HINDCAST_API_ALERTMANAGER_URL" . -}}{{- end -}}
{{- $_ := set $services "api" (dict "module" "services.api" "listens" "API" "port" 8490 "state" "/api" "values" .Values.api "env" $env
      "files" (dict "HINDCAST_API_REPLAY_TOKEN_FILE" (dict "secret" .Values.tokens.existingSecret "key" .Values.tokens.replay))) -}}
{{- end -}}
{{- if .Values.gateway.enabled -}}
{{- $_ := set $services "gateway" (dict "module" "services.gateway" "listens" "GATEWAY" "port" 8481 "values" .Values.gateway
      "env" (dict "HINDCAST_GATEWAY_CLUSTER" .Values.gateway.cluster)) -}}
{{- end -}}
{{- if and $services (not .Values.kafka.bootstrap) -}}
{{- fail (printf "kafka.bootstrap is needed by %s; without Kafka only live runs: -f deploy/chart/live.yaml" (keys $services | sortAlpha | join ", ")) -}}
{{- end -}}
{{- if .Values.live.enabled -}}
{{- $live := .Values.live -}}
{{- if and $live.nodeConditions (not $live.kubernetes) -}}
{{- fail "live.nodeConditions writes into Kubernetes: it needs live.kubernetes" -}}
{{- end -}}
{{- if and $live.options.slurm $live.kubernetes -}}
{{- fail "live.options.slurm and live.kubernetes both list the jobs: set live.kubernetes to false" -}}
{{- end -}}
{{- $args := list "services.cli" "live" (printf "--prometheus=%s" (required "live.prometheus is needed by live" $live.prometheus)) "--port=8490" "--state=/live" -}}
{{- with $live.alertmanager -}}{{- $args = append $args (printf "--alertmanager=%s" .) -}}{{- end -}}
{{- if $live.kubernetes -}}{{- $args = append $args "--kubernetes=in-cluster" -}}{{- end -}}
{{- if $live.nodeConditions -}}{{- $args = append $args "--node-conditions" -}}{{- end -}}
{{- range $option, $value := $live.options -}}{{- $args = append $args (printf "--%s=%s" $option (toString $value)) -}}{{- end -}}
{{- range $option, $_ := $live.optionFiles -}}{{- $args = append $args (printf "--%s=/files/%s" $option $option) -}}{{- end -}}
{{- $_ := set $services "live" (dict "args" $args "listens" "API" "port" 8490 "state" "/live" "values" $live "optionFiles" $live.optionFiles
      "env" (dict "HINDCAST_API_HOST_NAMES" (toJson $live.hostNames))) -}}
{{- if $live.kubernetes -}}
{{- $_ := set (get $services "live") "account" (printf "%s-live" (include "hindcast.name" .)) -}}
{{- end -}}
{{- end -}}
{{- range $name, $service := $services -}}
{{- $own := dict (printf "HINDCAST_%s_HOST" $service.listens) "0.0.0.0" (printf "HINDCAST_%s_PORT" $service.listens) (toString $service.port) -}}
{{- $_ := set $service "env" (mergeOverwrite (dict "HINDCAST_KAFKA_BOOTSTRAP" $.Values.kafka.bootstrap) $own $service.env $.Values.env $service.values.env) -}}
{{- $token := dict "secret" $.Values.tokens.existingSecret "key" $.Values.tokens.file -}}
{{- $_ := set $service "files" (mergeOverwrite (dict (printf "HINDCAST_%s_TOKENS_FILE" $service.listens) $token) ($service.files | default dict)
      (deepCopy $.Values.files) $service.values.files) -}}
{{- /* live has no part in Kafka, and is not to have its password. */ -}}
{{- if eq $name "live" -}}
{{- range $setting := concat (keys $service.env) (keys $service.files) -}}
{{- if hasPrefix "HINDCAST_KAFKA_" $setting -}}
{{- $_ := unset $service.env $setting -}}
{{- $_ := unset $service.files $setting -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{ toYaml $services }}
{{- end }}

{{- /* What a container of hindcast is: .root, .env, .files, .mounts */ -}}
{{- define "hindcast.container" -}}
image: {{ include "hindcast.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
env:
  {{- range $name, $value := .env }}
  - {name: {{ $name }}, value: {{ toString $value | quote }}}
  {{- end }}
  {{- range $name, $_ := .files }}
  - {name: {{ $name }}, value: /files/{{ $name }}}
  {{- end }}
  {{- if hasKey .env "HINDCAST_DETECT_STATE_DIR" }}
  - {name: HINDCAST_DETECT_INSTANCE, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  {{- end }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  {{- with .files }}
  - {name: files, mountPath: /files, readOnly: true}
  {{- end }}
  {{- range .mounts }}
  - {{ toJson . }}
  {{- end }}
{{- end }}

{{- /* What a pod of hindcast is beside its containers: .root, .files, .volumes, .token whether its account's is in it */ -}}
{{- define "hindcast.pod" -}}
automountServiceAccountToken: {{ .token | default false }}
# Otherwise a service called hindcast-api would set HINDCAST_API_PORT.
enableServiceLinks: false
securityContext: {{ toJson .root.Values.podSecurityContext }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - {name: {{ . }}}
  {{- end }}
{{- end }}
{{- with .root.Values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- with .root.Values.affinity }}
affinity: {{ toJson . }}
{{- end }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
volumes:
  - {name: tmp, emptyDir: {}}
  {{- with .files }}
  - name: files
    projected:
      # fsGroup's, and nobody else's
      defaultMode: 0440
      sources:
        {{- range $name, $file := . }}
        {{- $items := list (dict "key" $file.key "path" $name) }}
        - {{ ternary (dict "configMap" (dict "name" $file.configMap "items" $items)) (dict "secret" (dict "name" $file.secret "items" $items)) (hasKey $file "configMap") | toJson }}
        {{- end }}
  {{- end }}
  {{- range .volumes }}
  - {{ toJson . }}
  {{- end }}
{{- end }}
