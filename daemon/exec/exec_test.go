package exec

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	good := Config{ID: "acme:ticker", Command: []string{"./ticker.sh"}, Instances: 6, Env: map[string]string{"A_1": "x"}}
	if err := good.Validate(); err != nil {
		t.Errorf("a good config: %v", err)
	}
	for want, change := range map[string]func(*Config){
		"daemon id is empty":                    func(c *Config) { c.ID = "" },
		"reserved":                              func(c *Config) { c.ID = "emit:mine" },
		"command is empty":                      func(c *Config) { c.Command = nil },
		"program of command is empty":           func(c *Config) { c.Command = []string{""} },
		"zero byte":                             func(c *Config) { c.Command = []string{"a", "b\x00"} },
		"command and dir cannot contain a zero": func(c *Config) { c.Dir = "/\x00" },
		`env "A-B" is not the name`:             func(c *Config) { c.Env = map[string]string{"A-B": ""} },
		"env EMITD_UNIT is set by emitd":        func(c *Config) { c.Env = map[string]string{"EMITD_UNIT": "x"} },
		`inherit_env "A-*" is neither`:          func(c *Config) { c.InheritEnv = []string{"A-*"} },
		"inherit_env EMITD_NODE is set":         func(c *Config) { c.InheritEnv = []string{"EMITD_NODE"} },
		"env A contains a zero byte":            func(c *Config) { c.Env = map[string]string{"A": "\x00"} },
		"revision is -1":                        func(c *Config) { c.Revision = -1 },
		"instances is -2":                       func(c *Config) { c.Instances = -2 },
		`on_abandoned is "die"`:                 func(c *Config) { c.OnAbandoned = "die" },
		"stall_timeout is 10s, want more than 10s": func(c *Config) {
			c.StallTimeout, c.Schedule = 10*time.Second, &daemon.Periodic{Interval: time.Hour}
		},
		"stall_timeout is -1s, want 0 (the default)": func(c *Config) { c.StallTimeout = -time.Second },
	} {
		c := good
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want …%s…", err, want)
		}
	}
	bad := Config{ID: "emit:x", Env: map[string]string{"1": ""}, Weight: -1}
	if err := bad.Validate(); err == nil || strings.Count(err.Error(), "daemon emit:x: ") != 4 {
		t.Errorf("not everything that is wrong is told: %v", err)
	}
}

func TestSpec(t *testing.T) {
	t.Parallel()
	got := Config{
		ID: "acme:ticker", Revision: 3, Instances: 6, Weight: 2, Requires: map[string]string{"disk": "ssd"}, Spread: "rack",
		AcknowledgeTimeout: 1, DrainTimeout: 2, StallTimeout: 3, MaxFailures: -1, OnAbandoned: "exit",
	}.Spec()
	if got.ID != "acme:ticker" || got.Revision != 3 || got.Instances != 6 || got.Weight != 2 || got.Requires["disk"] != "ssd" || got.Spread != "rack" ||
		got.AcknowledgeTimeout != 1 || got.DrainTimeout != 2 || got.StallTimeout != 3 || got.MaxFailures != -1 || got.OnAbandoned != "exit" {
		t.Errorf("spec is %+v", got)
	}
}

// A command does not get emitd's own variables, unless the config names them.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	a := daemon.NewAssignment(daemon.Fence{Unit: daemon.Unit{Daemon: "acme:ticker", Index: 3}, Generation: 77}, 9, "n1", nil)
	c := Config{
		Dir: "/srv", Env: map[string]string{"B": "2", "A": "1", "LANG": "C"},
		InheritEnv: []string{"PROXY", "NOMAD_*", "EMITD_HOME"},
	}
	got := unique(c.environ([]string{
		"EMITD_DUE=old", "PATH=/bin", "EMITD_STORE_URL=postgres://secret", "EMITD_UNIT=old/1", "PWD=/", "LC_ALL=C.UTF-8", "TZ=UTC", "LANG=en", "HOME=/root",
		"AWS_SECRET_ACCESS_KEY=secret", "PGPASSWORD=secret", "OTEL_EXPORTER_OTLP_HEADERS=secret", "EMITD_HOME=/e", "PROXY=p", "PROXY_PASSWORD=secret",
		"NOMAD_ADDR=x", "=odd",
	}, a))
	want := []string{
		"PATH=/bin", "LC_ALL=C.UTF-8", "TZ=UTC", "HOME=/root", "EMITD_HOME=/e", "PROXY=p", "NOMAD_ADDR=x", "PWD=/srv", "A=1", "B=2", "LANG=C",
		"EMITD_DAEMON=acme:ticker", "EMITD_UNIT=acme:ticker/3", "EMITD_GENERATION=77", "EMITD_TERM=9", "EMITD_NODE=n1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("environment is %q, want %q", got, want)
	}
}

// The tail of stderr is bounded and is valid text, whatever was written.
func TestTail(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ in, want string }{
		"nothing":    {"", ""},
		"short":      {"a\nb\n", "a\nb"},
		"blank":      {"a\n\n\n", "a"},
		"characters": {strings.Repeat("é", 2*maxTail) + "\n", strings.Repeat("é", maxTail/2-1)},
		"lines":      {strings.Repeat("0123456789abcde\n", 1000), strings.TrimSpace(strings.Repeat("0123456789abcde\n", maxTail/16))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := output{log: slog.New(slog.DiscardHandler), progress: func() {}}
			o.drain(bytes.NewBufferString(c.in))
			if got := o.last(); got != c.want {
				t.Errorf("tail of %d bytes is %.60q…, want %.60q…", len(got), got, c.want)
			}
		})
	}
}
