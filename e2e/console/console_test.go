package console

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/emitd/emitd/coordinator/admin"
	"github.com/emitd/emitd/e2e/drill"
	"github.com/emitd/emitd/internal/testproc"
	"github.com/emitd/emitd/storage/sqlite"
)

func TestMain(m *testing.M) {
	code := m.Run()
	drill.Cleanup()
	os.Exit(code)
}

const (
	sources = "../../internal/admin/console/web"
	built   = "../../internal/admin/console/dist"
	api     = "../../coordinator/admin/openapi.json"
)

// bound is for what takes seconds on an idle machine.
const bound = 4 * time.Minute

// run runs a program of Node.js to its end.
func run(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		t.Fatalf("%s is missing: make deps, or apt-get install nodejs npm", name)
	case err != nil:
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// modules returns a directory with the files of a project and what npm installs for it. It is kept for the next test
// with the same package-lock.json.
func modules(t *testing.T, project string) string {
	t.Helper()
	sum := sha256.New()
	for _, name := range []string{"package.json", "package-lock.json"} {
		sum.Write(read(t, filepath.Join(project, name)))
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	cache = filepath.Join(cache, "emitd-test")
	kept := filepath.Join(cache, filepath.Base(project)+"-"+hex.EncodeToString(sum.Sum(nil)[:8]))
	if _, err := os.Stat(kept); err == nil {
		return kept
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	fresh, err := os.MkdirTemp(cache, "new-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(fresh)
	for _, name := range []string{"package.json", "package-lock.json", ".npmrc"} {
		write(t, filepath.Join(fresh, name), read(t, filepath.Join(project, name)))
	}
	run(t, fresh, "npm", "ci", "--ignore-scripts", "--prefer-offline", "--no-progress")
	if err := os.Rename(fresh, kept); err != nil { // unless another test was faster
		if _, missing := os.Stat(kept); missing != nil {
			t.Fatal(err)
		}
	}
	return kept
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func write(t *testing.T, name string, text []byte) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, text, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// tree returns the files below a directory.
func tree(t *testing.T, dir string, skip ...string) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		for _, s := range skip {
			if d.Name() == s {
				if d.IsDir() {
					return fs.SkipDir
				}
				return nil
			}
		}
		if !d.IsDir() {
			rel, err := filepath.Rel(dir, name)
			if err != nil {
				return err
			}
			out[filepath.ToSlash(rel)] = read(t, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestWhatIsCommittedIsWhatTheSourcesGive builds the console from a copy of its sources, and demands the same bytes.
func TestWhatIsCommittedIsWhatTheSourcesGive(t *testing.T) {
	t.Parallel()
	kept := modules(t, sources)
	root := t.TempDir()
	web := filepath.Join(root, "internal", "admin", "console", "web")
	for name, text := range tree(t, sources, "node_modules", "generated") {
		write(t, filepath.Join(web, filepath.FromSlash(name)), text)
	}
	write(t, filepath.Join(root, "coordinator", "admin", "openapi.json"), read(t, api))
	if err := os.Symlink(filepath.Join(kept, "node_modules"), filepath.Join(web, "node_modules")); err != nil {
		t.Fatal(err)
	}
	run(t, web, "npm", "run", "build")
	got, want := tree(t, filepath.Join(web, "..", "dist")), tree(t, built)
	for name := range want {
		if _, ok := got[name]; !ok {
			t.Errorf("dist has %s, and the build does not: make console", name)
		}
	}
	for name, text := range got {
		if !bytes.Equal(text, want[name]) {
			t.Errorf("dist/%s is not what the sources give: make console", name)
		}
	}
}

// daemons is what the cluster of the test runs: a command that prints lines, and one that fails again and again.
const daemons = `
daemons:
  exec:
    - {id: acme:mail, command: [sh, -c, 'echo "<b>begin</b>"; exec tail -f /dev/null'], instances: 6}
    - {id: acme:broken, command: [sh, -c, 'echo no disk; exit 7']}
`

// TestBrowser plays what people do with the console. The script says "kill" when it wants the leader killed.
func TestBrowser(t *testing.T) {
	t.Parallel()
	leader, url := cluster(t)
	play(t, actions{"kill": leader.Kill}, "scenario.mjs", url, leader.Name)
}

// TestScreenshots takes pictures of all pages in both themes and at the width of a phone. They are for people, and stay if
// EMITD_TEST_SCREENSHOTS names a directory: make screenshots.
func TestScreenshots(t *testing.T) {
	dir := cmp.Or(os.Getenv("EMITD_TEST_SCREENSHOTS"), t.TempDir())
	_, url, token := demo(t, "api: {tokens_file: tokens}\n"+daemons, "--demo")
	play(t, nil, "screenshots.mjs", url, token, dir)
}

// TestWork plays what people do with tokens, jobs and messages, in emitd dev with its sample orders.
func TestWork(t *testing.T) {
	t.Parallel()
	dir, url, token := demo(t, `
api:
  tokens_file: tokens
  proxies: [127.0.0.1]
  user_header: X-Forwarded-User
`, "--demo")
	play(t, actions{"revoke": func() { write(t, filepath.Join(dir, "tokens"), []byte(users)) }}, "work.mjs", url, token)
}

// TestSink looks at a subscription whose sink goes down and comes back.
func TestSink(t *testing.T) {
	t.Parallel()
	taken := func(http.ResponseWriter, *http.Request) {}
	sink := httptest.NewServer(http.HandlerFunc(taken))
	t.Cleanup(func() { sink.Close() })
	address := sink.Listener.Addr().String()
	dir, url, token := demo(t, "api: {tokens_file: tokens}\noutbox: {subscriptions: [{name: hooks, sink: \"http://"+address+"\"}]}\n")
	again := func() {
		var listener net.ListenConfig
		l, err := listener.Listen(t.Context(), "tcp", address)
		if err != nil {
			t.Errorf("the sink does not come back: %v", err)
			return
		}
		sink = &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(taken), ReadHeaderTimeout: bound}}
		sink.Start()
	}
	publish := func() {
		cmd := exec.Command(drill.Binary(t), "outbox", "publish", "orders", `{"n":1}`)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("publish: %v\n%s", err, out)
		}
	}
	play(t, actions{"down": func() { sink.Close() }, "up": again, "publish": publish}, "sink.mjs", url, token)
}

// users are the lines of the access file beside the token of the test.
const users = "user name=viewer roles=read\nuser name=mailer roles=read@queue=default\n"

// demo starts emitd dev, and returns its directory, its address and its token.
func demo(t *testing.T, config string, flags ...string) (dir, url, secret string) {
	t.Helper()
	dir, url, secret, _ = demoWithOutput(t, config, flags...)
	return dir, url, secret
}

// demoWithOutput is demo, with what the process writes: its log and, as the environment asks for them, its traces.
func demoWithOutput(t *testing.T, config string, flags ...string) (dir, url, secret string, out *answers) {
	t.Helper()
	dir, out = t.TempDir(), newAnswers(func(string) {})
	const token = "the-token-of-this-test"
	write(t, filepath.Join(dir, "emitd.yaml"), []byte(config))
	write(t, filepath.Join(dir, "tokens"), []byte(token+"\n"+users))
	cmd := exec.Command(drill.Binary(t), append([]string{"dev", "--listen", "127.0.0.1:0", "--config", "emitd.yaml"}, flags...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, out, out
	cmd.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=console")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	proc, err := testproc.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		proc.Signal(syscall.SIGTERM)
		select {
		case <-proc.Done:
		case <-time.After(time.Minute):
			_ = cmd.Process.Kill()
			<-proc.Done
		}
		if t.Failed() {
			t.Log(out)
		}
	})
	return dir, said(t, out, regexp.MustCompile(`console +(http\S+)/\s`), proc.Done), token, out
}

// said waits until a program has said something, and returns the first group of it.
func said(t *testing.T, out *answers, what *regexp.Regexp, ended <-chan struct{}) string {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	late := time.After(bound)
	for {
		if m := what.FindStringSubmatch(out.String()); m != nil {
			return m[1]
		}
		select {
		case <-tick.C:
		case <-ended:
			t.Fatalf("it has ended without %v:\n%s", what, out)
		case <-late:
			t.Fatalf("it has not said %v after %v:\n%s", what, bound, out)
		}
	}
}

// TestLarge looks at a cluster of 1,000 nodes, 10,000 units and 100,000 events.
func TestLarge(t *testing.T) {
	t.Parallel()
	api, err := admin.New(admin.Config{Store: newLarge(), StoreKind: "memory", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.StripPrefix("/any prefix", api))
	t.Cleanup(server.Close)
	t.Cleanup(api.Close)
	play(t, nil, "scale.mjs", server.URL+"/any%20prefix")
}

// cluster starts three nodes, and returns the leader and the address of another node.
func cluster(t *testing.T) (leader *drill.Node, url string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cluster.db")
	store, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	c := drill.New(t, "sqlite://"+path, store)
	c.Instances, c.Config = 0, daemons
	nodes := map[string]*drill.Node{}
	for _, name := range []string{"emitd-0", "emitd-1", "emitd-2"} {
		nodes[name] = c.Start(name)
	}
	leader, _ = c.Leading()
	var other *drill.Node
	for _, n := range nodes {
		c.Until(time.Minute, n.Name+" listens", func() bool { return n.Address() != "" })
		if n != leader {
			other = n
		}
	}
	return leader, "http://" + other.Address()
}

// actions are what a script wants done, by the line with which it says so.
type actions map[string]func()

// play runs a script with a browser, and does what it wants.
func play(t *testing.T, do actions, script string, args ...string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range tree(t, "browser", "node_modules") {
		write(t, filepath.Join(dir, name), text)
	}
	if err := os.Symlink(filepath.Join(modules(t, "browser"), "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("node", append([]string{script}, args...)...)
	cmd.Dir = dir
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output := newAnswers(func(line string) {
		if f := do[line]; f != nil {
			f()
			_, _ = io.WriteString(in, "done\n") // an error means that the script has ended
		}
	})
	cmd.Stdout, cmd.Stderr = output, output
	proc, err := testproc.Start(cmd)
	if err != nil {
		t.Fatalf("%v: make deps, or apt-get install nodejs npm", err)
	}
	select {
	case <-proc.Done:
	case <-time.After(bound):
		_ = cmd.Process.Kill()
		<-proc.Done
		t.Errorf("the script has not ended after %v", bound)
	}
	in.Close()
	t.Log(output)
	if proc.Err() != nil {
		t.Errorf("%s: %v", script, proc.Err())
	}
}
