package deploy

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const (
	rules     = folder + "/prometheus/rules.yaml"
	dashboard = folder + "/grafana/emitd.json"
)

// TestAlerts lets promtool check the rules and play their tests.
func TestAlerts(t *testing.T) {
	t.Parallel()
	tool, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatal("promtool is missing; make deps installs it (Debian package prometheus)")
	}
	for _, args := range [][]string{{"check", "rules", rules}, {"test", "rules", folder + "/prometheus/rules_test.yaml"}} {
		if out, err := exec.Command(tool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// alerts are the rules, as far as the tests use them.
func alerts(t *testing.T) (out []struct {
	Alert, Expr string
	Annotations map[string]string
},
) {
	t.Helper()
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(read(t, rules), &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		out = append(out, g.Rules...)
	}
	if len(out) < 10 {
		t.Fatalf("only %d alerts", len(out))
	}
	return out
}

// TestAlertsHaveRunbooks checks that each alert leads to a section of the page, and each section belongs to an alert.
func TestAlertsHaveRunbooks(t *testing.T) {
	t.Parallel()
	var sections []string
	for _, m := range regexp.MustCompile(`(?m)^## (\w+)$`).FindAllStringSubmatch(string(read(t, "../../docs/how-to/alerts.md")), -1) {
		sections = append(sections, m[1])
	}
	var names []string
	for _, a := range alerts(t) {
		names = append(names, a.Alert)
		if url := a.Annotations["runbook_url"]; !strings.HasSuffix(url, "docs/how-to/alerts.md#"+strings.ToLower(a.Alert)) {
			t.Errorf("%s: runbook %q", a.Alert, url)
		}
		if a.Annotations["summary"] == "" || a.Annotations["description"] == "" {
			t.Errorf("%s explains nothing", a.Alert)
		}
	}
	if !slices.Equal(names, sections) {
		t.Errorf("the alerts are %v, the sections %v", names, sections)
	}
}

// TestMetricsExist checks that the alerts and the dashboard use metrics and labels that the documents list.
func TestMetricsExist(t *testing.T) {
	t.Parallel()
	known, labels := documented(t)
	var exprs []string
	for _, a := range alerts(t) {
		exprs = append(exprs, a.Expr)
	}
	var board struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	if err := json.Unmarshal(read(t, dashboard), &board); err != nil {
		t.Fatal(err)
	}
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			exprs = append(exprs, target.Expr)
		}
	}
	name := regexp.MustCompile(`\b(?:emitd|messaging|go|db)_[a-z0-9_]+`)
	used := 0
	for _, expr := range exprs {
		for _, word := range name.FindAllString(expr, -1) {
			used++
			if !known[word] && !labels[word] {
				t.Errorf("no metric and no attribute is %s, in %s", word, expr)
			}
		}
	}
	if used < 60 {
		t.Errorf("only %d names were found: this test looks in the wrong place", used)
	}
}

// documented returns the metrics of the documents as /metrics names them, and their attributes as labels.
func documented(t *testing.T) (metrics, labels map[string]bool) {
	t.Helper()
	text := string(read(t, "../../docs/reference/metrics.md")) + string(read(t, "../../docs/how-to/outbox-publish.md"))
	metrics, labels = map[string]bool{}, map[string]bool{
		// Of the Go runtime's instruments (OpenTelemetry's conventions), which the documents do not list.
		"go_memory_type": true, "go_goroutine_count": true, "go_memory_used_bytes": true, "go_memory_used": true,
	}
	for _, m := range regexp.MustCompile("`((?:emitd|messaging|db)\\.[a-z._]+)`").FindAllStringSubmatch(text, -1) {
		base := strings.ReplaceAll(m[1], ".", "_")
		labels[base] = true
		for _, suffix := range []string{"_total", "_seconds", "_bytes", "_bytes_total"} {
			metrics[base+suffix] = true
		}
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			metrics[base+suffix], metrics[base+"_seconds"+suffix] = true, true
		}
	}
	return metrics, labels
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
