package config

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/emitd/emitd/internal/coordinator/lease"
)

// documented is a row of the reference: a key, the values that its type names, its default.
type documented struct {
	key    string
	values []string
}

// ofReference reads the settings in docs/reference/config.md, with their values for a profile.
func ofReference(t *testing.T, profile string) []documented {
	t.Helper()
	text, err := os.ReadFile("../../../../docs/reference/config.md")
	if err != nil {
		t.Fatal(err)
	}
	var out []documented
	row := regexp.MustCompile("^\\| `([a-z_.]+)` \\| ([^|]*) \\| ([^|]*) \\|[^|]+\\|\\s*$")
	for line := range strings.Lines(string(text)) {
		m := row.FindStringSubmatch(line)
		if m == nil || strings.HasPrefix(m[2], "list") || m[2] == "map" {
			continue
		}
		d := documented{key: m[1]}
		values := strings.Split(strings.TrimSpace(m[3]), ", ") // the default, then "fast: 1s" and the like
		value := values[0]
		for _, other := range values[1:] {
			if text, ok := strings.CutPrefix(other, profile+": "); ok {
				value = text
			}
		}
		if value != "" && d.key != "profile" {
			d.values = append(d.values, value)
		}
		if words := strings.Split(m[2], " or "); len(words) > 1 && words[0] != "true" && d.key != "profile" {
			d.values = append(d.values, words...)
		}
		out = append(out, d)
	}
	return out
}

// TestHole11DocumentedSettingsStart is named after a weakness of another queue, which refused its own
// documented production settings at the start. Here every value that the reference names must be
// accepted, alone and with all others, in each profile, with each kind of object store.
func TestHole11DocumentedSettingsStart(t *testing.T) {
	t.Parallel()
	for _, profile := range lease.Profiles() {
		rows := ofReference(t, profile)
		if len(rows) < 30 {
			t.Fatalf("%d settings found in the reference", len(rows))
		}
		all := map[string]string{}
		load := func(what string, flags map[string]string) {
			t.Helper()
			flags["profile"], flags["store.url"] = profile, "sqlite:///srv/cluster.db"
			if flags["objects.url"] == "" {
				flags["objects.url"] = "file:///srv/objects"
			}
			_, err := Load(Input{Flags: flags, Serving: true, Hostname: func() (string, error) { return "h", nil }})
			if err != nil {
				t.Errorf("profile %s, %s: %v", profile, what, err)
			}
		}
		for _, d := range rows {
			for _, v := range d.values {
				load(d.key+"="+v, map[string]string{d.key: v})
			}
			if len(d.values) > 0 {
				all[d.key] = d.values[0]
			}
		}
		load("everything at once", all)
		for _, gap := range []string{"auto", "250ms"} {
			load("queue.min_gap="+gap, map[string]string{"queue.min_gap": gap})
		}
		for _, budget := range []string{"auto", "unlimited", "0.5", "200"} {
			load("queue.write_budget="+budget, map[string]string{"queue.write_budget": budget})
		}
		for _, url := range []string{"file:///srv/objects", "s3://bucket/prefix?region=eu-1", "gs://bucket/prefix"} {
			load("objects.url="+url, map[string]string{"objects.url": url})
		}
	}
}
