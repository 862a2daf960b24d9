{{- define "dynamo-router.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 48 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 48 characters, so that a suffix fits into the 63 of a name. */}}
{{- define "dynamo-router.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 48 | trimSuffix "-" -}}
{{- else if contains (include "dynamo-router.name" .) .Release.Name -}}
{{- .Release.Name | trunc 48 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "dynamo-router.name" .) | trunc 48 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "dynamo-router.selector" -}}
app.kubernetes.io/name: {{ include "dynamo-router.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "dynamo-router.labels" -}}
{{ include "dynamo-router.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "dynamo-router.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "dynamo-router.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "dynamo-router.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{/* The ports of the mode's container: name, setting, number. The last one has /metrics, /live and /health. */}}
{{- define "dynamo-router.ports" -}}
{{- if .Values.extProc.enabled }}
- {name: extproc, key: ext_proc_port, port: {{ .Values.ports.extproc }}}
- {name: health, key: grpc_health_port, port: {{ .Values.ports.health }}}
{{- end }}
{{- if eq .Values.mode "serve" }}
- {name: grpc, key: port, port: {{ .Values.ports.grpc }}}
{{- if .Values.openai.enabled }}
- {name: http, key: http_frontend, port: {{ .Values.ports.http }}}
{{- end }}
- {name: metrics, key: http_port, port: {{ .Values.ports.metrics }}}
{{- else if eq .Values.mode "planner" }}
- {name: metrics, key: port, port: {{ .Values.ports.metrics }}}
{{- else if eq .Values.mode "epp" }}
- {name: extproc, key: grpc_port, port: {{ .Values.ports.extproc }}}
- {name: health, key: grpc_health_port, port: {{ .Values.ports.health }}}
- {name: metrics, key: http_port, port: {{ .Values.ports.metrics }}}
{{- else }}
- {name: http, key: http_port, port: {{ .Values.ports.http }}}
{{- end }}
{{- end -}}

{{/* The settings, as TOML: tables behind the keys of the top, numbers as they were written. */}}
{{- define "dynamo-router.toml" -}}
{{- $path := .path -}}
{{- range $key, $value := .table }}
{{- if not (kindIs "map" $value) }}
{{ $key }} = {{ if kindIs "invalid" $value }}"none"{{ else }}{{ toJson $value }}{{ end }}
{{- end }}
{{- end }}
{{- range $key, $value := .table }}
{{- if kindIs "map" $value }}
{{- $name := ternary $key (printf "%s.%s" $path $key) (eq $path "") }}

[{{ $name }}]
{{- include "dynamo-router.toml" (dict "table" $value "path" $name) }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Every setting of the mode: those of `config`, and what other values come to. */}}
{{- define "dynamo-router.settings" -}}
{{- $set := dict "host" .Values.host "discovery" .Values.discovery.backend -}}
{{- range fromYamlArray (include "dynamo-router.ports" .) -}}
{{- $_ := set $set .key .port -}}
{{- end -}}
{{- $given := .Values.config -}}
{{- if eq .Values.mode "planner" -}}
{{- $given = omit $given "lame_duck_s" "drain_timeout_s" -}}
{{- $_ := set $set "connector" (default "kubernetes" .Values.config.connector) -}}
{{- if .Values.planner.tokenSecret -}}
{{- $_ := set $set "router_token_file" "/etc/dynamo-router-planner/token" -}}
{{- end -}}
{{- else if .Values.nats.url -}}
{{- $_ := set $set "nats" .Values.nats.url -}}
{{- end -}}
{{- if .Values.auth.existingSecret -}}
{{- $_ := set $set "auth_tokens" "/etc/dynamo-router-auth/tokens" -}}
{{- end -}}
{{- if .Values.tls.existingSecret -}}
{{- $_ := set $set "tls" (dict "cert" "/etc/dynamo-router-tls/tls.crt" "key" "/etc/dynamo-router-tls/tls.key") -}}
{{- end -}}
{{- if .Values.replicaSync.enabled -}}
{{- $_ := set $set "router" (dict "router_replica_sync" true) -}}
{{- end -}}
{{- if and (or .Values.ingress.enabled .Values.httpRoute.enabled) (has .Values.mode (list "serve" "frontend")) -}}
{{- if not (hasKey (default dict $given.peers) "max_connection_share") -}}
{{- /* All clients come from the gateway's address. */}}
{{- $_ := set $set "peers" (dict "max_connection_share" 1) -}}
{{- end -}}
{{- end -}}
{{- if or .Values.extProc.enabled (eq .Values.mode "epp") -}}
{{- $_ := set $set "secure_serving" .Values.epp.secureServing -}}
{{- end -}}
{{- if eq .Values.mode "epp" -}}
{{- if .Values.inferencePool.enabled -}}
{{- $_ := set $set "pool" (include "dynamo-router.pool" .) -}}
{{- end -}}
{{- if include "dynamo-router.watchesPods" . -}}
{{- with .Values.epp.eventsPort -}}
{{- $_ := set $set "events_port" . -}}
{{- end -}}
{{- with .Values.epp.eventsReplayPort -}}
{{- $_ := set $set "events_replay_port" . -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if .Values.mockWorkers.enabled -}}
{{- $_ := set $set "workers" (list (printf "grpc+dns://%s-mock-workers:9001" (include "dynamo-router.fullname" .))) -}}
{{- end -}}
{{- toYaml (mergeOverwrite (deepCopy $given) $set) -}}
{{- end -}}

{{- define "dynamo-router.config" -}}
{{- include "dynamo-router.toml" (dict "table" (fromYaml (include "dynamo-router.settings" .)) "path" "") | trim -}}
{{- end -}}

{{/* What SIGTERM takes at the most. */}}
{{- define "dynamo-router.grace" -}}
{{- $stop := add (ceil (default 2 .Values.config.lame_duck_s)) (ceil (default 10 .Values.config.drain_timeout_s)) -}}
{{- $grace := .Values.terminationGracePeriodSeconds -}}
{{- if kindIs "invalid" $grace -}}
{{- add $stop 10 -}}
{{- else if lt (int $grace) (int $stop) -}}
{{- fail (printf "terminationGracePeriodSeconds: %d cuts requests off: stopping takes up to %d s (config.lame_duck_s and config.drain_timeout_s)" (int $grace) (int $stop)) -}}
{{- else -}}
{{- int $grace -}}
{{- end -}}
{{- end -}}

{{- define "dynamo-router.several" -}}
{{- if or .Values.autoscaling.enabled (gt (int .Values.replicas) 1) }}true{{ end -}}
{{- end -}}

{{/* What the schema cannot say: values that need others. */}}
{{- define "dynamo-router.check" -}}
{{- if and .Values.replicaSync.enabled (not .Values.nats.url) -}}
{{- fail "replicaSync.enabled needs nats.url" -}}
{{- end -}}
{{- if and (eq .Values.discovery.backend "etcd") (not .Values.etcd.endpoints) -}}
{{- fail "discovery.backend etcd needs etcd.endpoints" -}}
{{- end -}}
{{- if and (eq .Values.discovery.backend "nats") (not .Values.nats.url) -}}
{{- fail "discovery.backend nats needs nats.url" -}}
{{- end -}}
{{- if eq .Values.mode "planner" -}}
{{- $config := .Values.config -}}
{{- if eq .Values.discovery.backend "static" -}}
{{- fail "mode planner finds engines in a store: discovery.backend kubernetes, etcd or nats" -}}
{{- end -}}
{{- if not $config.routers -}}
{{- fail "mode planner needs config.routers: the admin listeners of the routers" -}}
{{- end -}}
{{- if and (eq (default "kubernetes" $config.connector) "kubernetes") (not $config.deployments) -}}
{{- fail "mode planner needs config.deployments: [ROLE=NAME, ...]" -}}
{{- end -}}
{{- if and (eq .Values.discovery.backend "kubernetes") (not $config.plan_store) -}}
{{- fail "Kubernetes keeps no decisions: config.plan_store etcd or nats" -}}
{{- end -}}
{{- if and (eq (default "" $config.plan_store) "etcd") (not .Values.etcd.endpoints) -}}
{{- fail "config.plan_store etcd needs etcd.endpoints" -}}
{{- end -}}
{{- if and (eq (default "" $config.plan_store) "nats") (not .Values.nats.url) -}}
{{- fail "config.plan_store nats needs nats.url" -}}
{{- end -}}
{{- if or .Values.tls.existingSecret .Values.auth.existingSecret .Values.autoscaling.enabled .Values.ingress.enabled .Values.httpRoute.enabled .Values.replicaSync.enabled -}}
{{- fail "mode planner serves no clients: no tls, auth, autoscaling, ingress, httpRoute or replicaSync" -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.mode "frontend") (eq .Values.discovery.backend "static") -}}
{{- fail "mode frontend finds its models in a store: discovery.backend kubernetes, etcd or nats" -}}
{{- end -}}
{{- if .Values.mockWorkers.enabled -}}
{{- if or (ne .Values.mode "serve") (ne .Values.discovery.backend "static") -}}
{{- fail "mockWorkers are engines of mode serve with discovery.backend static" -}}
{{- end -}}
{{- else if and (eq .Values.mode "serve") (eq .Values.discovery.backend "static") (not .Values.config.workers) -}}
{{- fail "no engines: name them in config.workers, set discovery.backend, or try mockWorkers.enabled" -}}
{{- end -}}
{{- if and .Values.extProc.enabled (not (has .Values.mode (list "serve" "frontend"))) -}}
{{- fail "extProc.enabled is for modes serve and frontend: mode epp has nothing else, and a planner no requests" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) -}}
{{- fail "ingress.enabled needs ingress.host" -}}
{{- end -}}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) -}}
{{- fail "httpRoute.enabled needs httpRoute.parentRefs" -}}
{{- end -}}
{{- if eq .Values.mode "epp" -}}
{{- if .Values.ingress.enabled -}}
{{- fail "mode epp carries no requests: the gateway has the ingress" -}}
{{- end -}}
{{- if and .Values.httpRoute.enabled (not .Values.inferencePool.enabled) -}}
{{- fail "httpRoute of mode epp leads to the pool: inferencePool.enabled" -}}
{{- end -}}
{{- if and .Values.inferencePool.create (not (and .Values.inferencePool.enabled .Values.inferencePool.selector)) -}}
{{- fail "inferencePool.create needs inferencePool.enabled and inferencePool.selector: labels of the pods" -}}
{{- end -}}
{{- if and .Values.inferencePool.enabled (or (ne .Values.discovery.backend "static") .Values.config.endpoint_selector) -}}
{{- fail "endpoints are those of a pool, of config.endpoint_selector, or of discovery.backend: set inferencePool.enabled to false" -}}
{{- end -}}
{{- if and (eq .Values.discovery.backend "static") (not (or .Values.config.workers (include "dynamo-router.watchesPods" .))) -}}
{{- fail "no endpoints: inferencePool.enabled, config.endpoint_selector, config.workers, or discovery.backend" -}}
{{- end -}}
{{- else if .Values.inferencePool.create -}}
{{- fail "inferencePool is for mode epp" -}}
{{- end -}}
{{- if and (or .Values.ingress.enabled .Values.httpRoute.enabled) (eq .Values.mode "serve") (not .Values.openai.enabled) -}}
{{- fail "ingress and httpRoute lead to OpenAI's API: openai.enabled" -}}
{{- end -}}
{{- end -}}

{{/* Of mode epp: the name of its InferencePool. */}}
{{- define "dynamo-router.pool" -}}
{{- default (include "dynamo-router.fullname" .) .Values.inferencePool.name -}}
{{- end -}}

{{/* Whether pods are its endpoints. */}}
{{- define "dynamo-router.watchesPods" -}}
{{- if and (eq .Values.mode "epp") (or .Values.inferencePool.enabled .Values.config.endpoint_selector) }}true{{ end -}}
{{- end -}}

{{/* Whether the planner scales Deployments. */}}
{{- define "dynamo-router.scales" -}}
{{- if and (eq .Values.mode "planner") (eq (default "kubernetes" .Values.config.connector) "kubernetes") }}true{{ end -}}
{{- end -}}

{{/* Whether the pods ask the API server. */}}
{{- define "dynamo-router.asksKubernetes" -}}
{{- if or (eq .Values.discovery.backend "kubernetes") (include "dynamo-router.watchesPods" .) (include "dynamo-router.scales" .) }}true{{ end -}}
{{- end -}}

{{/* The port with /metrics, /live and /health. */}}
{{- define "dynamo-router.statusPort" -}}
{{- (last (fromYamlArray (include "dynamo-router.ports" .))).name -}}
{{- end -}}

{{- define "dynamo-router.probe" -}}
{{- if eq .root.Values.mode "epp" -}}
grpc:
  port: {{ .root.Values.ports.health }}
  service: {{ ternary "readiness" "liveness" (eq .path "/health") }}
{{- else -}}
httpGet:
  path: {{ .path }}
  port: {{ include "dynamo-router.statusPort" .root }}
  {{- if .root.Values.tls.existingSecret }}
  scheme: HTTPS
  {{- end }}
{{- end }}
{{ toYaml .times }}
{{- end -}}
