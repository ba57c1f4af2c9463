package deploy

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

const folder = "../../deploy"

var update = flag.Bool("update", false, "write deploy/kubernetes/emitd.yaml")

// values are sets of values that people use, by name.
var values = map[string]string{
	"default": ``,
	"secured": `
tls: {secret: emitd-tls}
tokens: {secret: emitd-tokens}
config: {cluster: shop, profile: fast, objects: {url: "s3://jobs/emitd?region=eu-central-1"}, store: {schema: jobs, max_connections: 8}}
serviceMonitor: {enabled: true, labels: {release: prometheus}, tokenSecret: {name: emitd-scrape, key: token}}
serviceAccount: {annotations: {eks.amazonaws.com/role-arn: "arn:aws:iam::1:role/emitd"}}
`,
	"public authority": `
tls: {secret: emitd-tls, ca: "", serverName: emitd.example.org}
tokens: {secret: emitd-tokens}
serviceMonitor: {enabled: true}
`,
	"small": `
replicas: 1
image: {tag: v1.2.3, pullSecrets: [{name: registry}]}
migrate: {enabled: false}
podDisruptionBudget: {enabled: false}
networkPolicy: {enabled: false}
env: [{name: EMITD_TELEMETRY_LOG_LEVEL, value: debug}]
nodeSelector: {disk: ssd}
tolerations: [{key: dedicated, operator: Exists}]
priorityClassName: high
podLabels: {team: jobs}
podAnnotations: {note: kept}
`,
}

func TestChartLint(t *testing.T) {
	t.Parallel()
	for _, m := range lint.AllWithKubeVersion(folder+"/helm/emitd", nil, "default", nil).Messages {
		if m.Severity > support.InfoSev {
			t.Error(m)
		}
	}
}

// TestChart renders the chart, and reads each object as Kubernetes does: an unknown field is an error.
func TestChart(t *testing.T) {
	t.Parallel()
	for name, text := range values {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kinds := map[string]int{}
			for _, object := range objects(t, render(t, text)) {
				kinds[accept(t, object)]++
			}
			if kinds["Deployment"] != 1 || kinds["ConfigMap"] != 1 || kinds["Service"] != 1 {
				t.Errorf("rendered %v", kinds)
			}
			small := name == "small"
			if got := kinds["Job"] + kinds["PodDisruptionBudget"] + kinds["NetworkPolicy"]; small != (got == 0) {
				t.Errorf("rendered %v", kinds)
			}
			if (kinds["ServiceMonitor"] == 1) != (name == "secured" || name == "public authority") {
				t.Errorf("rendered %v", kinds)
			}
		})
	}
}

// TestPodsHaveTheirOwnVariables: a service with the name emitd-x, of a second release for example, gives the pods of its
// namespace EMITD_X_PORT and others unless they refuse that. emitd does not start with variables that it does not know.
func TestPodsHaveTheirOwnVariables(t *testing.T) {
	t.Parallel()
	pods := 0
	for _, object := range objects(t, render(t, "")) {
		var deployment appsv1.Deployment
		var job batchv1.Job
		pod := &deployment.Spec.Template.Spec
		switch accept(t, object) {
		case "Deployment":
			unmarshal(t, object, &deployment)
		case "Job":
			unmarshal(t, object, &job)
			pod = &job.Spec.Template.Spec
		default:
			continue
		}
		if pod.EnableServiceLinks == nil || *pod.EnableServiceLinks {
			t.Errorf("variables of services get into these pods:\n%s", object)
		}
		pods++
	}
	if pods != 2 {
		t.Errorf("%d objects have pods, want the nodes and the migration", pods)
	}
}

// TestServiceMonitorFindsTheService checks that what Prometheus looks for is there: the labels and the port of the service.
func TestServiceMonitorFindsTheService(t *testing.T) {
	t.Parallel()
	var service corev1.Service
	var monitor monitoring.ServiceMonitor
	for _, object := range objects(t, render(t, values["secured"])) {
		switch accept(t, object) {
		case "Service":
			unmarshal(t, object, &service)
		case monitoring.ServiceMonitorsKind:
			unmarshal(t, object, &monitor)
		}
	}
	for label, value := range monitor.Spec.Selector.MatchLabels {
		if service.Labels[label] != value {
			t.Errorf("the monitor wants %s=%s, the service has %v", label, value, service.Labels)
		}
	}
	if len(monitor.Spec.Selector.MatchLabels) == 0 || len(monitor.Spec.Endpoints) != 1 {
		t.Fatalf("%+v", monitor.Spec)
	}
	at := monitor.Spec.Endpoints[0]
	if !slices.ContainsFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == at.Port }) || at.Path != "/metrics" {
		t.Errorf("the monitor asks %s%s of a service with %v", at.Port, at.Path, service.Spec.Ports)
	}
	if at.Scheme == nil || *at.Scheme != "https" || at.Authorization == nil || at.Authorization.Credentials.Name != "emitd-scrape" {
		t.Errorf("with TLS and tokens the monitor has %+v", at)
	}
}

// TestNodesTrustEachOther: pods call each other by IP address, so they are told which name the certificate has, and the
// authority of the secret. Prometheus is told the same.
func TestNodesTrustEachOther(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct{ ca, server string }{
		"secured":          {"ca.crt", "emitd.default.svc"},
		"public authority": {"", "emitd.example.org"},
	} {
		var config corev1.ConfigMap
		var monitor monitoring.ServiceMonitor
		for _, object := range objects(t, render(t, values[name])) {
			switch accept(t, object) {
			case "ConfigMap":
				unmarshal(t, object, &config)
			case monitoring.ServiceMonitorsKind:
				unmarshal(t, object, &monitor)
			}
		}
		var file struct {
			API struct {
				TLS struct {
					CA         string `json:"ca"`
					ServerName string `json:"server_name"`
				} `json:"tls"`
			} `json:"api"`
		}
		if err := yaml.Unmarshal([]byte(config.Data["emitd.yaml"]), &file); err != nil {
			t.Fatal(err)
		}
		ca := ""
		if want.ca != "" {
			ca = "/run/secrets/emitd-tls/" + want.ca
		}
		if file.API.TLS.CA != ca || file.API.TLS.ServerName != want.server {
			t.Errorf("%s: the nodes have %+v", name, file.API.TLS)
		}
		if len(monitor.Spec.Endpoints) != 1 || monitor.Spec.Endpoints[0].TLSConfig == nil {
			t.Fatalf("%s: %+v", name, monitor.Spec)
		}
		tls := monitor.Spec.Endpoints[0].TLSConfig
		if tls.ServerName == nil || *tls.ServerName != want.server || (tls.CA.Secret == nil) != (want.ca == "") {
			t.Errorf("%s: the monitor has %+v", name, tls)
		}
	}
}

// TestMigrationConcernsTheNodesSchema: the job gets the settings of the store and the variables that the nodes get.
func TestMigrationConcernsTheNodesSchema(t *testing.T) {
	t.Parallel()
	var job batchv1.Job
	for _, object := range objects(t, render(t, `
config: {store: {schema: jobs, max_connections: 8}}
env: [{name: PGSSLROOTCERT, value: /ca.pem}]
`)) {
		if accept(t, object) == "Job" {
			unmarshal(t, object, &job)
		}
	}
	if len(job.Spec.Template.Spec.Containers) != 1 {
		t.Fatalf("%+v", job.Spec)
	}
	got := map[string]string{}
	for _, e := range job.Spec.Template.Spec.Containers[0].Env {
		got[e.Name] = e.Value
	}
	want := map[string]string{
		"EMITD_STORE_URL_FILE": "/run/secrets/emitd/store-url", "EMITD_STORE_SCHEMA": "jobs", "EMITD_STORE_MAX_CONNECTIONS": "8",
		"PGSSLROOTCERT": "/ca.pem",
	}
	if !maps.Equal(got, want) {
		t.Errorf("the job has %v, want %v", got, want)
	}
}

func unmarshal(t *testing.T, object []byte, to any) {
	t.Helper()
	if err := yaml.UnmarshalStrict(object, to); err != nil {
		t.Fatal(err)
	}
}

// TestChartConfiguration checks that emitd accepts the configuration file of each set of values, as far as it can
// without the files of the pod.
func TestChartConfiguration(t *testing.T) {
	t.Parallel()
	bin := filepath.Join(t.TempDir(), "emitd")
	build := exec.Command("go", "build", "-o", bin, "./cmd/emitd")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, text := range values {
		for _, object := range objects(t, render(t, text)) {
			var config corev1.ConfigMap
			if accept(t, object) != "ConfigMap" || yaml.Unmarshal(object, &config) != nil {
				continue
			}
			file := filepath.Join(t.TempDir(), "emitd.yaml")
			if err := os.WriteFile(file, []byte(config.Data["emitd.yaml"]), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command(bin, "config", "show", "--config", file).CombinedOutput()
			if err != nil || !bytes.Contains(out, []byte("0.0.0.0:7070")) {
				t.Errorf("%s: %v\n%s\n%s", name, err, config.Data["emitd.yaml"], out)
			}
		}
	}
}

// TestChartRefusesValues checks that wrong values are refused before anything is installed.
func TestChartRefusesValues(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"replicas: 0", "replicas: three", "replica: 3", "store: {secret: ''}", "config: {listen: '0.0.0.0:80'}", "config: {store: {url: x}}",
		"image: {repo: x}", "tls: {cert: x}", "terminationGracePeriodSeconds: 5", "serviceMonitor: {enabled: true, interval: often}",
	} {
		if _, err := tryRender(text); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
}

// TestManifests checks that the plain manifests are the chart with its default values.
func TestManifests(t *testing.T) {
	t.Parallel()
	want := "# The chart in deploy/helm with its default values; go test ./deploy -update (in e2e) writes it. It needs a secret first:\n" +
		"#\n#   kubectl create secret generic emitd-store --from-literal=store-url=postgres://…\n"
	for _, object := range objects(t, render(t, "")) {
		want += "---\n" + string(object) + "\n"
	}
	isRendered(t, "emitd.yaml", want)
	monitor := "# For the Prometheus operator, beside emitd.yaml; go test ./deploy -update (in e2e) writes it.\n"
	for _, object := range objects(t, render(t, "serviceMonitor: {enabled: true}")) {
		if accept(t, object) == monitoring.ServiceMonitorsKind {
			monitor += "---\n" + string(object) + "\n"
		}
	}
	isRendered(t, "servicemonitor.yaml", monitor)
}

// isRendered compares a file of the plain manifests with what the chart gives, or writes it.
func isRendered(t *testing.T, name, want string) {
	t.Helper()
	file := filepath.Join(folder, "kubernetes", name)
	got, err := os.ReadFile(file)
	if string(got) == want {
		return
	}
	if !*update {
		t.Fatalf("%s is not the rendered chart; go test ./deploy -update writes it (%v)", file, err)
	}
	if err := os.WriteFile(file, []byte(want), 0o600); err != nil {
		t.Fatal(err)
	}
}

func render(t *testing.T, text string) map[string]string {
	t.Helper()
	files, err := tryRender(text)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// tryRender does what helm template does.
func tryRender(text string) (map[string]string, error) {
	c, err := loader.Load(folder + "/helm/emitd")
	if err != nil {
		return nil, err
	}
	given, err := chartutil.ReadValues([]byte(text))
	if err != nil {
		return nil, err
	}
	if err := chartutil.ProcessDependencies(c, given); err != nil {
		return nil, err
	}
	all, err := chartutil.ToRenderValues(c, given, chartutil.ReleaseOptions{Name: "emitd", Namespace: "default", IsInstall: true}, nil)
	if err != nil {
		return nil, err
	}
	if err := needsKubernetes(c); err != nil {
		return nil, err
	}
	return engine.Render(c, all)
}

// needsKubernetes checks that the chart asks for a version that has each feature it uses: preStop's sleep is of 1.30.
func needsKubernetes(c *chart.Chart) error {
	if c.Metadata.KubeVersion != ">=1.30.0-0" {
		return fmt.Errorf("the chart is for Kubernetes %s", c.Metadata.KubeVersion)
	}
	return nil
}

// objects returns the objects of rendered files, sorted by file.
func objects(t *testing.T, files map[string]string) (out [][]byte) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasSuffix(name, ".yaml") {
			continue
		}
		for _, text := range strings.Split(files[name], "\n---\n") {
			if text = strings.TrimSpace(text); text != "" {
				out = append(out, []byte(text))
			}
		}
	}
	return out
}

// accept reads an object as its type, strictly, and returns its kind.
func accept(t *testing.T, object []byte) string {
	t.Helper()
	var head struct{ Kind string }
	if err := yaml.Unmarshal(object, &head); err != nil {
		t.Fatalf("%v in\n%s", err, object)
	}
	var into any
	switch head.Kind {
	case "Deployment":
		into = &appsv1.Deployment{}
	case "Job":
		into = &batchv1.Job{}
	case "ConfigMap":
		into = &corev1.ConfigMap{}
	case "Service":
		into = &corev1.Service{}
	case "ServiceAccount":
		into = &corev1.ServiceAccount{}
	case "NetworkPolicy":
		into = &networkingv1.NetworkPolicy{}
	case "PodDisruptionBudget":
		into = &policyv1.PodDisruptionBudget{}
	case monitoring.ServiceMonitorsKind:
		into = &monitoring.ServiceMonitor{}
	default:
		t.Fatalf("a %s in\n%s", head.Kind, object)
	}
	if err := yaml.UnmarshalStrict(object, into); err != nil {
		t.Errorf("%v in\n%s", err, object)
	}
	return head.Kind
}
