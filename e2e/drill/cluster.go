package drill

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/testproc"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// Cluster is several emitd processes on one store, running tickers.
type Cluster struct {
	T         testing.TB
	URL       string        // of the store, for the nodes
	Store     storage.Store // read by the drill itself
	Instances int
	Profile   string
	Program   string   // of the nodes that are started next; default: a fresh build
	Config    string   // more lines of the configuration
	Args, Env []string // more arguments and variables of emitd serve

	steps bool // the drill steps the clock of the store, so timestamps of the store cannot be compared with those of other clocks
	dir   string
	log   string // of the tickers
	nodes []*Node
}

// Node is one emitd process.
type Node struct {
	Name    string
	c       *Cluster
	proc    *testproc.Process
	out     *os.File
	address atomic.Pointer[string] // once it is known
	harmed  bool                   // the drill stopped or killed the process, or puts a proxy between it and the store
}

var build struct {
	sync.Once
	path string
	err  error
}

// Binary returns a fresh build of emitd.
func Binary(t testing.TB) string {
	build.Do(func() {
		dir, err := os.MkdirTemp("", "emitd-drill-")
		if err != nil {
			build.err = err
			return
		}
		build.path = filepath.Join(dir, "emitd")
		cmd := exec.Command("go", "build", "-o", build.path, "./cmd/emitd")
		cmd.Dir = filepath.Join("..", "..") // the module above this one
		if out, err := cmd.CombinedOutput(); err != nil {
			build.err = fmt.Errorf("build emitd: %w\n%s", err, out)
		}
	})
	if build.err != nil {
		t.Fatal(build.err)
	}
	return build.path
}

// Cleanup removes the build; call it at the end of TestMain.
func Cleanup() {
	if build.path != "" {
		os.RemoveAll(filepath.Dir(build.path))
	}
}

// New returns a cluster without nodes. Everything that it starts ends with the test.
func New(t testing.TB, url string, store storage.Store) *Cluster {
	t.Helper()
	dir := t.TempDir()
	c := &Cluster{T: t, URL: url, Store: store, Instances: 6, Profile: "fast", dir: dir, log: filepath.Join(dir, "ticks")}
	t.Cleanup(c.end)
	return c
}

// end kills the remaining nodes, and prints the logs of a failed drill.
func (c *Cluster) end() {
	for _, n := range c.nodes {
		if n.Alive() {
			_ = n.proc.Cmd.Process.Signal(syscall.SIGCONT)
			n.Kill()
		}
		n.out.Close()
		if c.T.Failed() {
			text, _ := os.ReadFile(n.out.Name())
			c.T.Logf("log of %s, its end:\n%s", n.Name, tail(text, 6000))
		}
	}
	if c.T.Failed() && c.Store != nil {
		c.T.Log("events:\n" + c.History())
	}
}

func tail(text []byte, n int) []byte { return text[max(0, len(text)-n):] }

// History returns the newest events, for people.
func (c *Cluster) History() string {
	var b strings.Builder
	events, err := c.Events(0)
	if err != nil {
		return err.Error()
	}
	for _, e := range events[max(0, len(events)-80):] {
		fmt.Fprintf(&b, "%5d %s %s\n", e.Seq, e.At.Format("15:04:05.000"), line(&e))
	}
	return b.String()
}

// config writes the configuration of the nodes.
func (c *Cluster) config() string {
	path := filepath.Join(c.dir, "emitd.yaml")
	self, err := os.Executable()
	if err != nil {
		c.T.Fatal(err)
	}
	if c.Instances == 0 {
		return c.write(path, c.Config+"\n")
	}
	return c.write(path, fmt.Sprintf(`%s
daemons:
  exec:
    - id: drill:ticker
      command: [%q]
      env: {%s: %q}
      instances: %d
`, c.Config, self, tickerEnv, c.log, c.Instances))
}

// write replaces a file atomically, because a starting node may be reading it.
func (c *Cluster) write(path, text string) string {
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		c.T.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		c.T.Fatal(err)
	}
	return path
}

// Start starts a node.
func (c *Cluster) Start(name string) *Node { return c.StartOn(name, c.URL) }

// StartOn starts a node that reaches the store under another address, e.g. a proxy's.
func (c *Cluster) StartOn(name, url string) *Node {
	c.T.Helper()
	cmd := exec.Command(cmp.Or(c.Program, Binary(c.T)), append([]string{
		"serve", "--store", url, "--listen", "127.0.0.1:0",
		"--node-name", name, "--profile", c.Profile, "--config", c.config(),
	}, c.Args...)...)
	cmd.Env = append(os.Environ(), c.Env...)
	n := c.launch(name, cmd)
	n.harmed = url != c.URL
	return n
}

// launch starts a process as a node.
func (c *Cluster) launch(name string, cmd *exec.Cmd) *Node {
	c.T.Helper()
	out, err := os.CreateTemp(c.dir, name+"-*.log")
	if err != nil {
		c.T.Fatal(err)
	}
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.dir, out, out
	// Nothing outlives the drill, even if the test binary is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	proc, err := testproc.Start(cmd)
	if err != nil {
		c.T.Fatal(err)
	}
	n := &Node{Name: name, c: c, proc: proc, out: out}
	c.nodes = append(c.nodes, n)
	return n
}

// listening matches the log line in which a node names its address.
var listening = regexp.MustCompile(`"msg":"listening","address":"([^"]+)"`)

// Address returns the node's address from its log, because the node listens on any free port. It returns
// "" until the log has it.
func (n *Node) Address() string {
	if known := n.address.Load(); known != nil {
		return *known
	}
	match := listening.FindStringSubmatch(n.Output())
	if match == nil {
		return ""
	}
	n.address.Store(&match[1])
	return match[1]
}

// Alive reports whether the process is still running.
func (n *Node) Alive() bool {
	select {
	case <-n.proc.Done:
		return false
	default:
		return true
	}
}

// Signal sends a signal to emitd itself, not to its child processes.
func (n *Node) Signal(s syscall.Signal) {
	n.c.T.Helper()
	n.harmed = true
	if err := n.proc.Cmd.Process.Signal(s); err != nil {
		n.c.T.Fatalf("signal %v to %s: %v", s, n.Name, err)
	}
}

// Kill sends SIGKILL, and returns when the process has ended.
func (n *Node) Kill() {
	n.harmed = true
	_ = n.proc.Cmd.Process.Kill()
	<-n.proc.Done
}

// Stop sends SIGTERM, and fails the drill if the process does not end cleanly.
func (n *Node) Stop() {
	n.c.T.Helper()
	n.Signal(syscall.SIGTERM)
	select {
	case <-n.proc.Done:
	case <-time.After(2 * time.Minute):
		n.c.T.Fatalf("%s does not stop", n.Name)
	}
	if err := n.proc.Err(); err != nil {
		n.c.T.Errorf("%s ended with %v", n.Name, err)
	}
}

// Snapshot reads the store.
func (c *Cluster) Snapshot() (*daemon.Snapshot, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return c.Store.Snapshot(ctx)
}

// Events reads the whole history after a sequence number.
func (c *Cluster) Events(after int64) ([]daemon.Event, error) {
	var all []daemon.Event
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		page, err := c.Store.Events(ctx, after, 1000)
		cancel()
		if err != nil {
			return nil, err
		}
		if len(page.Events) == 0 {
			return all, nil
		}
		all = append(all, page.Events...)
		after = page.Events[len(page.Events)-1].Seq
	}
}

// Until waits for a condition and returns how long that took. It polls every few milliseconds, because
// the condition depends on other processes. The bound is generous.
func (c *Cluster) Until(bound time.Duration, what string, ok func() bool) time.Duration {
	c.T.Helper()
	began := time.Now()
	tick := time.NewTicker(3 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(bound)
	defer deadline.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			c.T.Fatalf("%s: not within %v", what, bound)
		}
	}
	return time.Since(began)
}

// Pass waits for d. It is for drills about how long a state lasts. It returns the time at which it began to wait.
func (c *Cluster) Pass(d time.Duration) (began time.Time) {
	c.T.Helper()
	began = time.Now()
	c.Until(2*d+time.Second, "time passes", func() bool { return time.Since(began) >= d })
	return began
}

// Leader returns the live node that is the leader according to the store, or nil.
func (c *Cluster) Leader() *Node {
	s, err := c.Snapshot()
	if err != nil {
		return nil
	}
	return c.leader(s)
}

// leader returns the live node that is the leader according to the snapshot, or nil.
func (c *Cluster) leader(s *daemon.Snapshot) *Node {
	if !s.Term.Held() {
		return nil
	}
	i := slices.IndexFunc(c.nodes, func(n *Node) bool { return n.Name == s.Term.Leader.Name && n.Alive() })
	if i < 0 {
		return nil
	}
	return c.nodes[i]
}

// Leading waits until a live node leads. It returns the node and the number of its term, both from one
// read of the store. A single read may fail while a drill harms the store.
func (c *Cluster) Leading() (leader *Node, term int64) {
	c.T.Helper()
	c.Until(time.Minute, "a leader", func() bool {
		s, err := c.Snapshot()
		if err != nil {
			c.T.Logf("reading the store: %v", err)
			return false
		}
		leader, term = c.leader(s), s.Term.Number
		return leader != nil
	})
	return leader, term
}

// Term returns the number of the term in the store, 0 if it cannot be read.
func (c *Cluster) Term() int64 {
	s, err := c.Snapshot()
	if err != nil {
		return 0
	}
	return s.Term.Number
}

// Spread returns how many units run on each node, according to the tickers' own records.
func (c *Cluster) Spread() map[string]int {
	runs, err := ReadRuns(c.log)
	if err != nil {
		c.T.Fatal(err)
	}
	now, spread := Boot(), map[string]int{}
	for _, r := range runs {
		if r.Living(now, 200*time.Millisecond) {
			spread[r.Node]++
		}
	}
	return spread
}

// Running reports whether all units run, and on these nodes only.
func (c *Cluster) Running(names ...string) bool {
	total := 0
	for name, n := range c.Spread() {
		if !slices.Contains(names, name) {
			return false
		}
		total += n
	}
	return total == c.Instances
}

// Settled waits until the nodes are registered, one leads, and every unit runs.
func (c *Cluster) Settled(names ...string) {
	c.T.Helper()
	c.Until(time.Minute, "all units run on "+strings.Join(names, ", "), func() bool {
		return c.Running(names...) && c.Leader() != nil && c.active()
	})
}

// Known waits until every live process is a present member that has been registered for d. A cluster of only new
// nodes counts as starting, and a process that is still starting can take over nothing.
func (c *Cluster) Known(d time.Duration) {
	c.T.Helper()
	c.Until(time.Minute, "all members are known", func() bool {
		s, err := c.Snapshot()
		if err != nil {
			return false
		}
		known := 0
		for _, m := range s.Nodes {
			if !m.Present() {
				continue
			}
			if s.Now.Sub(m.RegisteredAt) < d {
				return false
			}
			known++
		}
		return known >= len(c.Others(nil))
	})
}

// active reports whether every unit is active in the store.
func (c *Cluster) active() bool {
	s, err := c.Snapshot()
	if err != nil {
		return false
	}
	n := 0
	for _, u := range s.Units {
		if u.Unit.Daemon == "drill:ticker" && u.State == daemon.Active {
			n++
		}
	}
	return n == c.Instances
}

// Check checks everything written so far, history and tickers' records, against the promises, given what
// the drill did.
func (c *Cluster) Check() {
	c.T.Helper()
	runs, err := ReadRuns(c.log)
	if err != nil {
		c.T.Fatal(err)
	}
	events, err := c.Events(0)
	if err != nil {
		c.T.Fatal(err)
	}
	bad := append(CheckRuns(runs), CheckEvents(events, c.Timing())...)
	if !c.steps {
		bad = append(bad, CheckValidity(runs, events, c.boot())...)
	}
	dead := CheckDeaths(events, func(e daemon.Event) bool {
		return slices.ContainsFunc(c.nodes, func(n *Node) bool { return n.is(e) && !n.harmed })
	})
	if Full() {
		bad = append(bad, dead...)
	} else if len(dead) > 0 { // a busy machine may have delayed its heartbeats
		c.T.Logf("without any harm: %v", dead)
	}
	for _, what := range bad {
		c.T.Error(what)
	}
}

// boot returns a function that converts timestamps of the store to the boot clock; the result is at most
// a little late.
func (c *Cluster) boot() func(time.Time) int64 {
	c.T.Helper()
	s, err := c.Snapshot()
	if err != nil {
		c.T.Fatal(err)
	}
	now := Boot()
	return func(at time.Time) int64 { return now - int64(s.Now.Sub(at)) }
}

// Timing returns the cluster's timings.
func (c *Cluster) Timing() lease.Timing {
	t, ok := lease.OfProfile(c.Profile)
	if !ok {
		c.T.Fatalf("there is no profile %q", c.Profile)
	}
	return t
}

// Others returns the names of all live nodes except n.
func (c *Cluster) Others(n *Node) (names []string) {
	for _, o := range c.nodes {
		if o != n && o.Alive() {
			names = append(names, o.Name)
		}
	}
	return names
}

// Nodes returns all nodes that were started.
func (c *Cluster) Nodes() []*Node { return c.nodes }

// Follower returns a live node that does not lead.
func (c *Cluster) Follower() *Node {
	c.T.Helper()
	l, _ := c.Leading()
	for _, n := range c.nodes {
		if n != l && n.Alive() {
			return n
		}
	}
	c.T.Fatal("no follower lives")
	return nil
}

// Resident returns the resident memory of the node's process in MB.
func (n *Node) Resident() float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.proc.PID()))
	if err != nil {
		n.c.T.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	kb := 0
	if _, err := fmt.Sscan(rest, &kb); err != nil {
		n.c.T.Fatal(err)
	}
	return float64(kb) / 1000
}

// Output returns what the node wrote.
func (n *Node) Output() string {
	text, err := os.ReadFile(n.out.Name())
	if err != nil {
		n.c.T.Fatal(err)
	}
	return string(bytes.ToValidUTF8(text, nil))
}

// is reports whether the event is about this process. A process that was started again has the same name but another
// incarnation; each process logs its own once.
func (n *Node) is(e daemon.Event) bool {
	return n.Name == e.Node && strings.Contains(n.Output(), fmt.Sprintf(`"incarnation":%q`, e.Incarnation))
}

// Member returns the node's newest row.
func (n *Node) Member() (m node.Member, ok bool) {
	s, err := n.c.Snapshot()
	if err != nil {
		return m, false
	}
	for _, row := range s.Nodes {
		if row.Name == n.Name && (!ok || row.RegisteredAt.After(m.RegisteredAt)) {
			m, ok = row, true
		}
	}
	return m, ok
}
