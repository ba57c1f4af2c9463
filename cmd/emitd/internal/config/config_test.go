package config

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/emitd/emitd/daemon/exec"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/coordinator/lease"
)

// snake converts a Go field's name to its key: NodeRegistrationTTL to node_registration_ttl.
func snake(name string) string {
	runes := []rune(name)
	var b strings.Builder
	for i, r := range runes {
		if unicode.IsUpper(r) && i > 0 && (unicode.IsLower(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) {
			b.WriteRune('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

func TestKeysAreNamedAsTheirFields(t *testing.T) {
	t.Parallel()
	var walk func(typ reflect.Type, path string)
	walk = func(typ reflect.Type, path string) {
		for f := range typ.Fields() {
			key := f.Tag.Get("key")
			if key != snake(f.Name) {
				t.Errorf("%s.%s has the key %q, want %q", path, f.Name, key, snake(f.Name))
			}
			if f.Type.Kind() == reflect.Struct {
				walk(f.Type, path+"."+key)
			} else if f.Tag.Get("help") == "" || typeName(f) == "" {
				t.Errorf("%s.%s has no help or no type", path, key)
			}
		}
	}
	walk(reflect.TypeFor[Config](), "")
	for list, entry := range blocks {
		walk(entry, list+"[]")
	}
}

// TestVariablesAreUnambiguous checks that each variable names one key, and that none is ignored.
func TestVariablesAreUnambiguous(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, k := range Keys() {
		for _, name := range []string{k.Env(), k.Env() + "_FILE"} {
			if other, twice := seen[name]; twice {
				t.Errorf("%s is %s and %s", name, k.Path, other)
			}
			seen[name] = k.Path
			if ignoredEnv(name) {
				t.Errorf("%s is a key's and ignored", name)
			}
		}
	}
	for _, name := range []string{"EMITD_DAEMON", "EMITD_UNIT", "EMITD_GENERATION", "EMITD_TERM", "EMITD_NODE", "EMITD_DUE", "EMITD_PORT", "EMITD_PORT_7070_TCP_ADDR", "EMITD_SERVICE_HOST", "EMITD_TEST_X", "EMITD_CONFIG"} {
		if !ignoredEnv(name) {
			t.Errorf("%s is not ignored", name)
		}
	}
	for _, name := range []string{"EMITD_NODE_X", "EMITD_PORTS", "EMITD_TERMS", "EMITD_SERVICE", "EMITD_TEST"} {
		if ignoredEnv(name) {
			t.Errorf("%s is ignored", name)
		}
	}
}

// TestAdvertiseNamesANode checks that the advertised address must be one that others can call.
func TestAdvertiseNamesANode(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{
		"10.0.0.7:7070": true, "emitd-1.example.org:443": true, "[fd00::7]:7070": true,
		"0.0.0.0:7070": false, "[::]:7070": false, ":7070": false, "10.0.0.7": false, "10.0.0.7:0": false, "10.0.0.7:99999": false, "http://a:1": false, "a b:1": false,
	} {
		_, err := Load(Input{ReadFile: noFile, Flags: map[string]string{"advertise": text}})
		if (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestProxies checks which proxies may name users. A mistake must not let everybody do that.
func TestProxies(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		proxies, header string
		ok              bool
	}{
		{"[10.0.0.7]", "X-User", true},
		{"[10.0.0.0/24, 'fd00::/64', '::1']", "X-User", true},
		{"[0.0.0.0/0]", "X-User", false},
		{"['::/0']", "X-User", false},
		{"[proxy.example.org]", "X-User", false},
		{"['certificate:proxy']", "X-User", false}, // without api.tls.client_ca
		{"['certificate:']", "X-User", false},
		{"['']", "X-User", false},
		{"[10.0.0.7]", "X User", false},
		{"[10.0.0.7]", "Authorization", false},
		{"[10.0.0.7]", "cookie", false},
	} {
		in := withFile(fmt.Sprintf("api: {tokens_file: /t, proxies: %s, user_header: %s}\n", c.proxies, c.header))
		l, err := Load(in)
		if (err == nil) != c.ok || err == nil && len(l.Notes()) > 0 {
			t.Errorf("%+v: %v", c, err)
		}
	}
	l, err := Load(withFile("api: {proxies: [10.0.0.7]}\n"))
	if err != nil || len(l.Notes()) != 1 {
		t.Errorf("%v: a proxy without its header has no note", err)
	}
}

// TestEveryKeyInEveryLayer sets each key by file, variable, secret file and flag.
func TestEveryKeyInEveryLayer(t *testing.T) {
	t.Parallel()
	values := map[string]string{
		"cluster": "c1", "profile": "fast", "listen": "127.0.0.1:1", "insecure": "true",
		"node.name": "n1", "node.group": "g", "node.id": "0198f3a2-7c1e-7b60-9a53-0e4f6f0f6a11", "node.never_lead": "true",
		"node.no_daemons": "true", "node.capacity": "3", "node.max_weight": "9", "node.labels": "{a: b}",
		"store.url": "sqlite:///x.db", "store.schema": "s", "store.prefix": "p_", "store.notify": "poll", "store.max_connections": "5", "store.wait": "false",
		"objects.url": "file:///x", "objects.reads_per_minute": "6000", "objects.writes_per_minute": "30",
		"objects.lists_per_minute": "7", "objects.deletes_per_minute": "8", "objects.writes_per_day": "40000",
		"coordinator.heartbeat_interval": "14s", "coordinator.query_timeout": "4s", "coordinator.lease_duration": "61s",
		"coordinator.node_registration_ttl": "91s", "coordinator.settle_window": "0s", "coordinator.max_moves_per_round": "7", "daemons.output_buffer": "1000", "coordinator.brake_percent": "60", "coordinator.leader_stop_timeout": "6s",
		"daemons.acknowledge_timeout": "31s", "daemons.drain_timeout": "32s", "daemons.stop_timeout": "6s",
		"daemons.disabled": "[emit:sweeper]", "daemons.exec": `[{id: "a:b", command: [x]}]`,
		"queue.min_gap": "5ms", "queue.write_budget": "20", "queue.claims": "durable", "queue.visibility_timeout": "31s", "queue.dedup_window": "1m0s", "queue.max_shards": "2000", "queue.metric_queues": "7",
		"outbox.url": "sqlite:///y.db", "outbox.schema": "o", "outbox.prefix": "o_", "outbox.max_connections": "9", "outbox.retention": "1h0m0s", "outbox.dead_retention": "2h0m0s",
		"outbox.max_retained": "1000", "outbox.on_lag": "forget", "outbox.subscriptions": "[{name: a, sink: stdout}]",
		"api.tokens_file": "/t", "api.origins": "[https://a.example]", "api.proxies": "[10.0.0.7]", "api.user_header": "X-User", "api.tls.cert": "/c", "api.tls.key": "/k",
		"advertise": "10.0.0.7:7070", "api.tls.ca": "/a", "api.tls.client_ca": "/b", "api.tls.client_cert": "/d", "api.tls.client_key": "/e",
		"api.tls.server_name": "emitd", "api.max_connections": "500", "api.max_in_flight": "33554432",
		"telemetry.log.level": "debug", "telemetry.log.format": "json",
	}
	for _, k := range Keys() {
		text, ok := values[k.Path]
		if !ok {
			t.Errorf("no value to try %s with", k.Path)
			continue
		}
		layers := map[Layer]Input{
			FromFile: withFile(nested(k.Path, text)),
			FromEnv:  {Environ: []string{k.Env() + "=" + text}},
			FromFlag: {Flags: map[string]string{k.Path: text}},
		}
		for layer, in := range layers {
			if strings.HasPrefix(k.Path, "api.tls") { // some of them require each other
				in.Environ = append(in.Environ, "EMITD_API_TLS_CERT=/c", "EMITD_API_TLS_KEY=/k", "EMITD_API_TLS_CLIENT_CERT=/d", "EMITD_API_TLS_CLIENT_KEY=/e")
			}
			if in.ReadFile == nil {
				in.ReadFile = noFile
			}
			if l, err := Load(in); err != nil {
				t.Errorf("%s by %s: %v", k.Path, layer, err)
			} else if got := l.OriginOf(k.Path); got.Layer != layer && !strings.HasPrefix(k.Path, "api.tls") {
				t.Errorf("%s by %s: origin is %s", k.Path, layer, got)
			}
		}
		in := withFile("")
		in.Environ = []string{k.Env() + "_FILE=/secret"}
		read := in.ReadFile
		in.ReadFile = func(name string) ([]byte, error) {
			if name == "/secret" {
				return []byte(text + "\n"), nil
			}
			return read(name)
		}
		if strings.HasPrefix(k.Path, "api.tls") {
			continue
		}
		if l, err := Load(in); err != nil || l.OriginOf(k.Path).Name != k.Env()+"_FILE" {
			t.Errorf("%s by secret file: %v", k.Path, err)
		}
	}
}

func noFile(name string) ([]byte, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

func withFile(text string) Input {
	return Input{File: "emitd.yaml", ReadFile: func(name string) ([]byte, error) {
		if name == "emitd.yaml" {
			return []byte(text), nil
		}
		return noFile(name)
	}, Hostname: func() (string, error) { return "host-1", nil }}
}

// nested returns path: value as YAML.
func nested(path, value string) string {
	var b strings.Builder
	parts := strings.Split(path, ".")
	for i, p := range parts {
		b.WriteString(strings.Repeat("  ", i) + p + ":")
		if i < len(parts)-1 {
			b.WriteString("\n")
		}
	}
	return b.String() + " " + value + "\n"
}

func TestTiming(t *testing.T) {
	t.Parallel()
	if got := Defaults("default").Timing(); got != lease.Default() {
		t.Errorf("default: %+v", got)
	}
	if got := Defaults("fast").Timing(); got != lease.Fast() {
		t.Errorf("fast: %+v", got)
	}
	l, err := Load(withFile("profile: fast\ncoordinator: {lease_duration: 6s, node_registration_ttl: 8s}\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := lease.Fast()
	want.LeaseDuration, want.NodeRegistrationTTL = 6e9, 8e9
	if got := l.Timing(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestRedaction(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"":                               "",
		"sqlite:///a.db":                 "sqlite:///a.db",
		"mem://":                         "mem://",
		"postgres://u@h/d":               "postgres://u@h/d",
		"postgres://u:hunter2@h/d?a=b":   "postgres://u:***@h/d?a=b",
		"postgres://h/d?password=hunter": "postgres://h/d?password=***",
		"postgres://u:hun%ter2@h/d":      "postgres://***",
		"hunter2":                        "***",
		"s3://k:hunter2@b/p":             "s3://k:***@b/p",
	} {
		if got := RedactURL(url); got != want {
			t.Errorf("RedactURL(%q) is %q, want %q", url, got, want)
		}
	}
	l, err := Load(Input{ReadFile: noFile, Environ: []string{
		"EMITD_STORE_URL=postgres://u:hun%2Fter2@h/d?sslpassword=p%26ss",
		`EMITD_DAEMONS_EXEC=[{id: "a:b", command: [x], env: {K: s3cr3t, LONGER: hun/ter2-prod, SHORT: no}}]`,
	}})
	if err != nil {
		t.Fatal(err)
	}
	text := l.Redact("hun/ter2 hun%2Fter2 p&ss p%26ss s3cr3t hun/ter2-prod no")
	if want := "*** *** *** *** *** *** no"; text != want {
		t.Errorf("got %q, want %q", text, want)
	}
	var b bytes.Buffer
	for _, s := range l.Settings() {
		b.WriteString(s.Value)
	}
	if regexp.MustCompile(`ter2|p.{0,2}ss[^w]|s3cr3t`).MatchString(b.String()) {
		t.Errorf("a secret is shown: %s", b.String())
	}
}

func TestSQLitePath(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/var/lib/emitd/cluster.db", "/with space/a?b#c%d.db"} {
		got, ok := SQLitePath(SQLiteURL(path))
		if !ok || got != path {
			t.Errorf("%q came back as %q", path, got)
		}
		if why := storeURL(SQLiteURL(path)); why != "" {
			t.Errorf("%q: %s", SQLiteURL(path), why)
		}
	}
	if got, _ := SQLitePath("sqlite:///C:/data/x.db"); !strings.HasSuffix(got, "x.db") || strings.HasPrefix(got, "/C") {
		t.Errorf("a drive came back as %q", got)
	}
}

func TestNearest(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, want string }{
		{"heartbeat_intervall", "heartbeat_interval"},
		{"haertbeat_interval", "heartbeat_interval"},
		{"lease", ""},
		{"xyz", ""},
		{"", ""},
		{"tl", "tls"},
		{"tls", "tls"},
		{"tsl", "tls"},
	} {
		if got := Nearest(c.name, []string{"heartbeat_interval", "lease_duration", "tls"}); got != c.want {
			t.Errorf("Nearest(%q) is %q, want %q", c.name, got, c.want)
		}
	}
}

// TestExecDaemonsFit checks that a daemon that is accepted here is accepted by the package that runs it.
func TestExecDaemonsFit(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{id: "a:b", command: [x]}`,
		`{id: "a:b", command: [x, "", y], revision: 12, instances: 6, weight: 2, dir: rel, env: {A: "", EMITD_STORE_URL: x}, requires: {gpu: "yes"}, spread: rack, max_failures: -1, on_abandoned: exit, stall_timeout: 1m}`,
		`{id: "a:b", command: [x], schedule: {cron: 30 2 * * *, timezone: Europe/Berlin, missed: all, catch_up: 100, attempts: 1}}`,
		`{id: "a:b", command: [x], schedule: {every: 1s, missed: skip}}`,
	} {
		l, err := Load(withFile("daemons:\n  exec:\n    - " + text + "\n"))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		e := l.Daemons.Exec[0]
		c := exec.Config{ID: e.Spec().ID, Command: e.Command, Dir: e.Dir, Env: e.Env, Schedule: e.Periodic()}
		if err := errors.Join(c.Validate(), e.Spec().Validate()); err != nil {
			t.Errorf("%s passes here, and there: %v", text, err)
		}
	}
}

// secret is part of every fuzzed input, and must never appear in the output.
const secret = "S3CRETS3CRET"

// checkLoad checks what must hold for any input.
func checkLoad(t *testing.T, in Input) {
	l, err := Load(in)
	if err != nil {
		var list fault.List
		if !errors.As(err, &list) || len(list) == 0 {
			t.Fatalf("not a list of faults: %v", err)
		}
		for _, f := range list {
			if _, ok := fault.Lookup(f.Code); !ok {
				t.Errorf("unknown code %s", f.Code)
			}
		}
		var b strings.Builder
		fault.Write(&b, err)
		if strings.Contains(b.String(), secret) {
			t.Errorf("the secret is shown:\n%s", b.String())
		}
		return
	}
	for _, s := range l.Settings() {
		if strings.Contains(s.Value+s.Origin, secret) {
			t.Errorf("%s shows the secret: %s", s.Key, s.Value)
		}
	}
	if err := l.Timing().Validate(); err != nil {
		t.Errorf("durations that quarrel came through: %v", err)
	}
	for _, e := range l.Daemons.Exec {
		if err := e.Spec().Validate(); err != nil {
			t.Errorf("a bad daemon came through: %v", err)
		}
	}
}

func FuzzFile(f *testing.F) {
	f.Add("cluster: a\n")
	f.Add("node: {labels: {a: b}}\ndaemons:\n  exec:\n    - {id: \"a:b\", command: [x], env: {K: v}}\n")
	f.Add("a: &x [1, *x]\nb: !!int \"3\"\n? c\n: d\n")
	f.Add("cluster: |\n  x\n---\n...\n\t")
	f.Add("coordinator: {lease_duration: 1e9h}\n")
	f.Add("outbox:\n  subscriptions:\n    - {name: a, sink: {kind: webhook, secrets: [" + secret + "], headers: {A: " + secret + "}, tls: {}, url: \"https://h/" + secret + "\"}}\n")
	f.Add("outbox: {url: \"postgres://u:" + secret + "@h/d\", subscriptions: [{name: b, sink: {kind: kafka, sasl: {password: " + secret + ", x: y}}}, {sink: {kind: {}}}, {sink: {kind: nats, tls: 7}}, 3]}\n")
	f.Fuzz(func(t *testing.T, text string) {
		// The value of a key that may hold a secret is not shown, however the text before it is broken.
		text = strings.ReplaceAll(text, secret, "none")
		for _, holder := range []string{
			"store: {urll: \"postgres://u:" + secret + "@h/x\"}\n",
			"store:\n  url: postgres://u:9/" + secret + "@h/x\n",
			"daemons:\n  exec:\n    - id: a:b\n      env:\n        X: " + secret + "\n        \ty: [\n",
			"headers:\n  Authorization: Bearer " + secret + "\n: :\n",
			"password: '" + secret + "\n",
		} {
			checkLoad(t, withFile(text+"\n"+holder))
			checkLoad(t, withFile(holder+text))
		}
		checkLoad(t, withFile(text))
	})
}

// TestSecretsOfBrokenFiles checks cases that once appeared in errors: the bearer token of a header in a
// file that is not YAML, and the rest of a password after a slash.
func TestSecretsOfBrokenFiles(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"outbox:\n  subscriptions:\n    - name: a\n      sink:\n        kind: webhook\n        headers:\n          Authorization: Bearer " + secret + "\n         bad: [\n",
		"headers: {Authorization: \"Bearer " + secret + "\n",
		"store: {url: \"postgres://u:9/" + secret + "@db/x\"}\n",
		"store:\n  url: postgres://u:" + secret + "/9@db/x\n\tbad\n",
		"store: {url: \"host=h password=" + secret + "\"}\n",
		"store: {url: " + secret + "}\n", "outbox: {url: " + secret + "}\n", "objects: {url: " + secret + "}\n",
		"objects: {url: \"s3://AKIA:9/" + secret + "@b/p\"}\n",
		"outbox: {subscriptions: [{name: a, sink: \"nats://u:1," + secret + "@h\"}]}\n",
		"outbox: {subscriptions: [{name: a, sink: {kind: webhook, url: \"https://u:9/" + secret + "@h\"}}]}\n",
		"tokens:\n- " + secret + "\n- [\n",
	} {
		checkLoad(t, withFile(text))
	}
}

func FuzzEnv(f *testing.F) {
	f.Add("STORE_URL", "postgres://u:p@h/x")
	f.Add("DAEMONS_EXEC", `[{id: "a:b", command: [x], env: {K: v}}]`)
	f.Add("NODE_LABELS", "a=b,c")
	f.Add("COORDINATOR_LEASE_DURATION", "-1ns")
	f.Add("X_FILE", "/x")
	f.Fuzz(func(t *testing.T, name, value string) {
		if strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return // not possible in an environment
		}
		in := Input{ReadFile: noFile, Environ: []string{
			"EMITD_STORE_URL=postgres://u:" + secret + "@h/x",
			`EMITD_DAEMONS_EXEC=[{id: "a:b", command: [x], env: {K: ` + secret + "}}]",
			"EMITD_" + name + "=" + value,
		}}
		checkLoad(t, in)
		in.Environ[1] = "EMITD_DAEMONS_EXEC=[{idd: 1, env: {K: " + secret + "}}]"
		checkLoad(t, in)
	})
}
