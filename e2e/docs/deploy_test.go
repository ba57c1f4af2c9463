package docs

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/internal/testproc"
)

// The files that the page on deploying is about.
const (
	unitFile     = root + "/deploy/systemd/emitd.service"
	manifestFile = root + "/deploy/kubernetes/emitd.yaml"
)

// TestSystemdUnit starts the unit's command as systemd would, with the credentials that the page adds. It must report
// readiness and liveness, and stop cleanly within the unit's time limit.
func TestSystemdUnit(t *testing.T) {
	t.Parallel()
	bin, dir := program(t), shortDir(t)
	unit, page := unitKeys(contents(t, unitFile)), contents(t, root+"/docs/how-to/deploy.md")
	one := func(key string) string {
		if len(unit[key]) != 1 {
			t.Fatalf("%s stands %d times", key, len(unit[key]))
		}
		return unit[key][0]
	}
	if one("Type") != "notify" || one("KillMode") != "mixed" {
		t.Error("the unit has another type or kill mode")
	}
	if limit := duration(t, one("TimeoutStopSec")); limit < grace(t, bin) {
		t.Errorf("TimeoutStopSec is %v, a stop may take %v", limit, grace(t, bin))
	}

	// Specifiers that systemd replaces: %d is the folder of credentials, %H the host.
	credential, source, _ := strings.Cut(one("LoadCredential"), ":")
	if !filepath.IsAbs(source) {
		t.Errorf("credential from %q", source)
	}
	write(t, filepath.Join(dir, credential), pgtest.Database(t)+"\n")
	if state := one("StateDirectory"); !strings.Contains(page, "`sqlite:///var/lib/"+state+"/") {
		t.Errorf("the page names another folder than %s for a file", state)
	}
	fill := strings.NewReplacer("%d", dir, "%H", "box", "/etc/emitd/", dir+"/", "/usr/local/bin/emitd", bin).Replace
	args := strings.Fields(fill(one("ExecStart")))
	env, files := []string{fill(one("Environment"))}, credentials(t)
	write(t, filepath.Join(dir, "emitd.yaml"), "listen: 127.0.0.1:0\napi: {tls: {cert: "+filepath.Join(files, "node.pem")+"}}\n")
	_, added, _ := strings.Cut(page, "```ini\n")
	added, _, _ = strings.Cut(added, "```")
	more := unitKeys(added)
	for _, credential := range more["LoadCredential"] {
		name, source, _ := strings.Cut(credential, ":")
		write(t, filepath.Join(dir, name), contents(t, filepath.Join(files, filepath.Base(source))))
	}
	for _, assignment := range more["Environment"] {
		env = append(env, fill(assignment))
	}
	if len(env) != 3 {
		t.Errorf("the page adds %q", added)
	}

	addr := &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"}
	conn, err := net.ListenUnixgram("unixgram", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	watchdog := duration(t, one("WatchdogSec"))
	env = append(env, "NOTIFY_SOCKET="+addr.Name, "WATCHDOG_USEC="+strconv.FormatInt(watchdog.Microseconds(), 10))
	node := start(t, exec.Command(args[0], args[1:]...), env...)
	hear := func(want string, within time.Duration) {
		t.Helper()
		if err := conn.SetReadDeadline(time.Now().Add(within)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				node.fail("no %q: %v", want, err)
			}
			if strings.Contains(string(buf[:n]), want) {
				return
			}
		}
	}
	hear("READY=1", time.Minute)
	hear("WATCHDOG=1", watchdog)
	node.stop()
}

// unitKeys returns the values of a unit of systemd by their keys.
func unitKeys(text string) map[string][]string {
	out := map[string][]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(key, "#") {
			out[key] = append(out[key], value)
		}
	}
	return out
}

// TestKubernetesManifest starts the pod's command with its configuration and environment. The probes must
// get their answers, and it must stop cleanly within the pod's time limit.
func TestKubernetesManifest(t *testing.T) {
	t.Parallel()
	bin, dir := program(t), t.TempDir()
	type probe struct {
		HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
	}
	var manifest struct {
		Kind string
		Data map[string]string
		Spec struct {
			Template struct {
				Spec struct {
					Grace      int `yaml:"terminationGracePeriodSeconds"`
					Containers []struct {
						Args  []string
						Env   []struct{ Name, Value string }
						Ports []struct {
							Name          string
							ContainerPort int `yaml:"containerPort"`
						}
						Lifecycle struct {
							PreStop struct{ Sleep struct{ Seconds int } } `yaml:"preStop"`
						}
						Liveness  probe `yaml:"livenessProbe"`
						Readiness probe `yaml:"readinessProbe"`
						Mounts    []struct {
							Path string `yaml:"mountPath"`
						} `yaml:"volumeMounts"`
					}
				}
			}
		}
	}
	deployment, config := manifest, manifest
	decoder := yaml.NewDecoder(strings.NewReader(contents(t, manifestFile)))
	var kinds []string
	for {
		m := manifest
		if err := decoder.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		switch kinds = append(kinds, m.Kind); m.Kind {
		case "Deployment":
			deployment = m
		case "ConfigMap":
			config = m
		}
	}
	if !slices.Contains(kinds, "ConfigMap") || !slices.Contains(kinds, "Deployment") {
		t.Fatalf("the manifests are %v", kinds)
	}
	pod := deployment.Spec.Template.Spec
	c := pod.Containers[0]
	pause := time.Duration(c.Lifecycle.PreStop.Sleep.Seconds) * time.Second
	if limit := time.Duration(pod.Grace) * time.Second; pause == 0 || limit < pause+grace(t, bin) {
		t.Errorf("terminationGracePeriodSeconds are %v; the pause takes %v and a stop may take %v", limit, pause, grace(t, bin))
	}

	text := strings.Replace(config.Data["emitd.yaml"], "0.0.0.0:7070", "127.0.0.1:0", 1)
	if !strings.Contains(text, "127.0.0.1:0") || c.Ports[0].ContainerPort != 7070 || c.Ports[0].Name != c.Liveness.HTTPGet.Port {
		t.Errorf("the port of the pod is not that of its configuration or of its probes: %+v, %s", c.Ports, text)
	}
	write(t, filepath.Join(dir, "emitd.yaml"), text)
	url := pgtest.Database(t)
	write(t, filepath.Join(dir, "store-url"), url+"\n")
	here := strings.NewReplacer(c.Mounts[0].Path, dir, c.Mounts[1].Path, dir, "$(POD_NAME)", "emitd-1").Replace
	cmd := exec.Command(bin)
	for _, a := range c.Args {
		cmd.Args = append(cmd.Args, here(a))
	}
	var env []string
	for _, e := range c.Env {
		if e.Value != "" {
			env = append(env, e.Name+"="+here(e.Value))
		}
	}
	node := start(t, cmd, env...)
	address := node.address(bin, url)
	for _, p := range []probe{c.Readiness, c.Liveness} {
		node.answers("http://" + address + p.HTTPGet.Path)
	}
	node.stop()
}

func contents(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func program(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "emitd")
	if out, err := build(bin, "./cmd/emitd"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

// grace returns how long a stop may take with the default durations.
func grace(t *testing.T, bin string) time.Duration {
	t.Helper()
	out, err := exec.Command(bin, "config", "show", "-o", "json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var keys []struct{ Key, Value string }
	if err := json.Unmarshal(out, &keys); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	sum := 6 * time.Second // requests, telemetry, hooks of the outbox
	for key, times := range map[string]time.Duration{
		"coordinator.leader_stop_timeout": 1, "daemons.drain_timeout": 1, "daemons.stop_timeout": 1, "coordinator.query_timeout": 2,
	} {
		i := slices.IndexFunc(keys, func(k struct{ Key, Value string }) bool { return k.Key == key })
		if i < 0 {
			t.Fatalf("no %s in %s", key, out)
		}
		sum += times * duration(t, keys[i].Value)
	}
	return sum
}

func duration(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// shortDir creates a folder with a name short enough for a socket in it.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "emitd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// running is a node that a test has started.
type running struct {
	t    *testing.T
	proc *testproc.Process
	log  *bytes.Buffer
}

func start(t *testing.T, cmd *exec.Cmd, env ...string) *running {
	t.Helper()
	n := &running{t: t, log: &bytes.Buffer{}}
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = n.log, n.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var err error
	if n.proc, err = testproc.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.proc.Signal(syscall.SIGKILL); <-n.proc.Done })
	return n
}

// fail ends the node, so that its log is complete, prints the log and fails the test.
func (n *running) fail(format string, args ...any) {
	n.t.Helper()
	n.proc.Signal(syscall.SIGKILL)
	<-n.proc.Done
	n.t.Fatalf(format+"\n%s", append(args, n.log)...)
}

// stop stops the node as service managers do.
func (n *running) stop() {
	n.t.Helper()
	n.proc.Signal(syscall.SIGTERM)
	select {
	case <-n.proc.Done:
	case <-time.After(time.Minute):
		n.fail("it goes on after SIGTERM")
	}
	if err := n.proc.Err(); err != nil {
		n.fail("after SIGTERM: %v", err)
	}
}

// until repeats yes until it returns true.
func (n *running) until(what string, yes func() bool) {
	n.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); <-tick.C {
		if yes() {
			return
		}
	}
	n.fail("never: %s", what)
}

// address returns where the node listens, as it reports to the cluster.
func (n *running) address(bin, store string) string {
	n.t.Helper()
	var nodes []struct{ Address string }
	n.until("the node has registered", func() bool {
		out, err := exec.Command(bin, "node", "ls", "--store", store, "-o", "json").Output()
		return err == nil && json.Unmarshal(out, &nodes) == nil && len(nodes) == 1 && nodes[0].Address != ""
	})
	return nodes[0].Address
}

// answers waits until a URL is answered with 200.
func (n *running) answers(url string) {
	n.t.Helper()
	n.until(url+" is answered with 200", func() bool {
		answer, err := http.Get(url)
		if err != nil {
			return false
		}
		answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
}
