{{- define "emitd.selector" -}}
app.kubernetes.io/name: emitd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "emitd.labels" -}}
{{ include "emitd.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "emitd.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* The name that the certificate has. Pods advertise their IP addresses, which no certificate has. */ -}}
{{- define "emitd.serverName" -}}
{{ .Values.tls.serverName | default (printf "%s.%s.svc" .Release.Name .Release.Namespace) }}
{{- end }}

{{- /* The configuration file: that of the values, and what the chart decides. */ -}}
{{- define "emitd.config" -}}
{{- $api := dict }}
{{- if .Values.tls.secret }}
{{- $tls := dict "cert" "/run/secrets/emitd-tls/tls.crt" "key" "/run/secrets/emitd-tls/tls.key" "server_name" (include "emitd.serverName" .) }}
{{- with .Values.tls.ca }}{{ $_ := set $tls "ca" (printf "/run/secrets/emitd-tls/%s" .) }}{{ end }}
{{- $_ := set $api "tls" $tls }}
{{- end }}
{{- if .Values.tokens.secret }}
{{- $_ := set $api "tokens_file" "/run/secrets/emitd-tokens/tokens" }}
{{- end }}
{{- $own := dict "listen" "0.0.0.0:7070" "insecure" (not (and .Values.tls.secret .Values.tokens.secret)) }}
{{- if $api }}{{ $_ := set $own "api" $api }}{{ end }}
{{- toYaml (mergeOverwrite (deepCopy .Values.config) $own) }}
{{- end }}

{{- define "emitd.security" -}}
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
{{- end }}

{{- define "emitd.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}
