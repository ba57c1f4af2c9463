package hosts

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/e2e/blob"
	"github.com/emitd/emitd/e2e/drill"
	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/internal/testproc"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/storage/sqlite"
)

// fleet is nodes that each have a network namespace of their own, and a remote object store. The store and the clients are
// in another namespace, the hub, to which each node has two links: "c" leads to the clients and the other nodes, "s" to the store.
type fleet struct {
	testing.TB
	hub         string
	store       *remoteStore
	binary, dir string
	nodes       []*fleetNode
}

type fleetNode struct {
	space, address string
	proc           *testproc.Process
}

// fleetConfig is what differs between fleets.
type fleetConfig struct {
	nodes, shards int
	oneLink       bool     // the store is reached by the link to the clients, too, and that is the one with the limit
	mbit          int      // limit of that link, or else of the link to the store, in either direction; 0: none
	args          []string // of the nodes
}

// limited returns the name of a link with the limit.
func (c fleetConfig) limited() string {
	if c.oneLink {
		return "c"
	}
	return "s"
}

const (
	storePort  = 9000
	s3Requests = 3500 // writes a second that S3 allows for a prefix
)

func newFleet(t testing.TB, c fleetConfig) *fleet {
	t.Helper()
	names := []string{"h"}
	for i := range c.nodes {
		names = append(names, fmt.Sprint(i+1))
	}
	all := spaces(t, names...)
	f := &fleet{TB: t, hub: all[0], store: newRemoteStore(blob.NewMemory(), s3Requests), binary: drill.Binary(t), dir: t.TempDir()}
	run(t, "ip", "netns", "exec", f.hub, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
	for i, space := range all[1:] {
		f.nodes = append(f.nodes, &fleetNode{space: space, address: fmt.Sprintf("10.77.%d.2:7070", i+1)})
		f.link(c, space, "c", fmt.Sprintf("10.77.%d", i+1))
		f.link(c, space, "s", fmt.Sprintf("10.78.%d", i+1))
		run(t, "ip", "-n", space, "route", "add", "default", "via", fmt.Sprintf("10.77.%d.1", i+1))
	}
	server := &http.Server{Handler: f.store, ReadHeaderTimeout: time.Minute}
	l := listen(t, f.hub, fmt.Sprintf("0.0.0.0:%d", storePort))
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close() })
	for i, n := range f.nodes {
		store := fmt.Sprintf("10.78.%d.1:%d", i+1, storePort)
		if c.oneLink {
			store = fmt.Sprintf("10.77.%d.1:%d", i+1, storePort)
		}
		f.start(n, blob.S3URL(store, "queues"), c.args)
	}
	f.spread(c.shards)
	return f
}

// link connects a node with the hub. The hub's end of the link has the namespace's name in its own.
func (f *fleet) link(c fleetConfig, space, name, network string) {
	f.Helper()
	other := space + name
	run(f, "ip", "link", "add", name, "netns", space, "type", "veth", "peer", "name", other, "netns", f.hub)
	for _, end := range []struct{ space, link, address string }{{space, name, network + ".2/24"}, {f.hub, other, network + ".1/24"}} {
		run(f, "ip", "-n", end.space, "addr", "add", end.address, "dev", end.link)
		run(f, "ip", "-n", end.space, "link", "set", end.link, "up")
		if c.mbit > 0 && name == c.limited() {
			run(f, "tc", "-n", end.space, "qdisc", "add", "dev", end.link, "root", "tbf", "rate", fmt.Sprintf("%dmbit", c.mbit), "burst", "16kb", "latency", "100ms")
		}
	}
}

func (f *fleet) command(space string, args ...string) *exec.Cmd {
	return exec.Command("ip", append([]string{"netns", "exec", space, f.binary}, args...)...)
}

// start starts the node.
func (f *fleet) start(n *fleetNode, objects string, args []string) {
	f.Helper()
	out, err := os.Create(filepath.Join(f.dir, n.space+".log"))
	if err != nil {
		f.Fatal(err)
	}
	cmd := f.command(n.space, append([]string{
		"serve", "--store", "sqlite://" + filepath.Join(f.dir, "emitd.db"), "--objects", objects, "--node-name", n.space,
		"--listen", "0.0.0.0:7070", "--advertise", n.address, "--insecure", "--daemons.disabled", "emit:sweeper",
	}, args...)...)
	cmd.Stdout, cmd.Stderr, cmd.Env = out, out, append(os.Environ(), blob.S3Credentials()...)
	f.Cleanup(func() {
		out.Close()
		if f.Failed() {
			text, _ := os.ReadFile(out.Name())
			f.Logf("log of %s, its end:\n%s", n.space, text[max(0, len(text)-4000):])
		}
	})
	n.proc = f.launch(cmd)
}

// launch starts a process that does not outlive the test, even if that is killed.
func (f *fleet) launch(cmd *exec.Cmd) *testproc.Process {
	f.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	p, err := testproc.Start(cmd)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		_ = p.Cmd.Process.Kill()
		<-p.Done
	})
	return p
}

// spread gives the queue as many shards, and returns when each node serves as many of them as the others.
func (f *fleet) spread(shards int) {
	f.Helper()
	f.until("a node serves the queue", func(s *daemon.Snapshot) bool { return len(s.Nodes) == len(f.nodes) && len(serving(s)) > 0 })
	run(f, "ip", "netns", "exec", f.hub, f.binary, "queue", "reshard", queue.DefaultQueue, "--shards", fmt.Sprint(shards), "--wait", "1m", "--addr", f.nodes[0].address, "--timeout", "2m")
	f.until(fmt.Sprintf("%d shards are spread evenly", shards), func(s *daemon.Snapshot) bool {
		per := serving(s)
		for _, n := range per {
			if n*len(f.nodes) != shards {
				return false
			}
		}
		return len(per) == len(f.nodes)
	})
}

// serving returns how many shards each node serves.
func serving(s *daemon.Snapshot) map[string]int {
	per := map[string]int{}
	for _, u := range s.Units {
		if u.Unit.Daemon == "emit:queue/"+queue.DefaultQueue && u.State == daemon.Active {
			per[u.Holder.Name]++
		}
	}
	return per
}

// until waits for a state of the cluster.
func (f *fleet) until(what string, ok func(s *daemon.Snapshot) bool) {
	f.Helper()
	path := filepath.Join(f.dir, "emitd.db")
	for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); {
		if store, err := sqlite.Open(f.Context(), path); err == nil {
			s, err := store.Snapshot(f.Context())
			store.Close()
			if err == nil && ok(s) {
				return
			}
		}
		if backoff.Sleep(f.Context(), 100*time.Millisecond) != nil {
			break
		}
	}
	f.Fatalf("not within three minutes: %s", what)
}

// sample is what was used until a moment.
type sample struct {
	at          time.Time
	nodes       []float64 // processor seconds of each
	own         float64   // of this process, which is the object store
	idle, whole float64   // of the machine
	links       []float64 // bytes that went over each link with the limit, in the direction that had more
	requests    map[string]int
}

func (f *fleet) sample(c fleetConfig) sample {
	f.Helper()
	s := sample{at: time.Now(), own: testproc.ProcessTime().Seconds()}
	s.requests = f.store.counts()
	for _, n := range f.nodes {
		s.nodes = append(s.nodes, f.processor(n.proc.PID()))
		s.links = append(s.links, f.carried(n.space, c.limited()))
	}
	s.idle, s.whole = f.machine()
	return s
}

const ticks = 100 // of the kernel's accounting, a second

// fields reads a line of numbers of the kernel, behind the last ") " if there is one.
func (f *fleet) fields(path string) (all []float64) {
	f.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	for _, word := range strings.Fields(first[strings.LastIndex(first, ")")+1:]) {
		var v float64
		_, _ = fmt.Sscan(word, &v) // 0 for words
		all = append(all, v)
	}
	return all
}

// processor returns how many seconds of the processor a process has used.
func (f *fleet) processor(pid int) float64 {
	stat := f.fields(fmt.Sprintf("/proc/%d/stat", pid))
	return (stat[11] + stat[12]) / ticks
}

// machine returns how many seconds the processors were idle, and all their seconds.
func (f *fleet) machine() (idle, whole float64) {
	stat := f.fields("/proc/stat")
	for _, v := range stat[1:9] {
		whole += v / ticks
	}
	return (stat[4] + stat[5]) / ticks, whole
}

// carried returns how many bytes a link has carried, in the direction in which it carried more.
func (f *fleet) carried(space, link string) float64 {
	f.Helper()
	out, err := exec.Command("ip", "-n", space, "-s", "-j", "link", "show", "dev", link).Output()
	var all []struct {
		Stats map[string]struct{ Bytes float64 } `json:"stats64"`
	}
	if err == nil {
		err = json.Unmarshal(out, &all)
	}
	if err != nil || len(all) != 1 {
		f.Fatalf("%v: %s", err, out)
	}
	return max(all[0].Stats["rx"].Bytes, all[0].Stats["tx"].Bytes)
}

// figures are those of one run, by unit.
type figures map[string]float64

// bench runs emitd queue bench with so many clients in all, which are spread over the nodes, as behind a load balancer.
func (f *fleet) bench(c fleetConfig, clients int, args ...string) figures {
	f.Helper()
	before := f.sample(c)
	var all []*testproc.Process
	var outs []*strings.Builder
	for _, n := range f.nodes {
		cmd, out := f.command(f.hub, append([]string{
			"queue", "bench", queue.DefaultQueue, "-o", "json", "--timeout", "1m", "--addr", n.address, "--clients", fmt.Sprint(clients / len(f.nodes)),
		}, args...)...), &strings.Builder{}
		cmd.Stdout, cmd.Stderr = out, os.Stderr
		all, outs = append(all, f.launch(cmd)), append(outs, out)
	}
	out, used := figures{}, 0.0
	for i, p := range all {
		<-p.Done
		if err := p.Err(); err != nil {
			f.Fatalf("emitd queue bench: %v", err)
		}
		used += (p.Cmd.ProcessState.UserTime() + p.Cmd.ProcessState.SystemTime()).Seconds()
		f.add(out, outs[i].String())
	}
	f.compare(out, c, before, f.sample(c), used)
	return out
}

// add adds the result of one process of clients.
func (f *fleet) add(to figures, text string) {
	f.Helper()
	type durations struct{ P50, P99 float64 }
	var results []struct {
		Jobs   float64   `json:"jobs"`
		Rate   float64   `json:"jobs_per_second"`
		Submit durations `json:"submit_ms"`
		Total  durations `json:"total_ms"`
		Failed int       `json:"failed_calls"`
		Error  string    `json:"error"`
	}
	if err := json.Unmarshal([]byte(text), &results); err != nil || len(results) != 1 {
		f.Fatalf("%v: %s", err, text)
	}
	r := results[0]
	if r.Failed > 0 {
		f.Fatalf("%d calls failed, first: %s", r.Failed, r.Error)
	}
	to["jobs"] += r.Jobs
	to["jobs/s"] += r.Rate
	to["submit-p50-ms"], to["submit-p99-ms"] = max(to["submit-p50-ms"], r.Submit.P50), max(to["submit-p99-ms"], r.Submit.P99)
	to["cycle-p50-ms"] = max(to["cycle-p50-ms"], r.Total.P50)
}

// compare adds what was used between two samples.
func (f *fleet) compare(to figures, c fleetConfig, before, after sample, clients float64) {
	seconds := after.at.Sub(before.at).Seconds()
	for i := range before.nodes {
		to["node-cpu-%"] = max(to["node-cpu-%"], (after.nodes[i]-before.nodes[i])/seconds*100)
		if c.mbit > 0 {
			to["link-%"] += (after.links[i] - before.links[i]) * 8 / 1e6 / float64(c.mbit) / seconds * 100 / float64(len(before.nodes))
		}
	}
	to["clients-cpu-%"] = clients / seconds * 100
	to["store-cpu-%"] = (after.own - before.own) / seconds * 100
	to["machine-idle-%"] = (after.idle - before.idle) / (after.whole - before.whole) * 100
	total := 0
	for kind, n := range after.requests {
		n -= before.requests[kind]
		total += n
		to[kind+"s/1000jobs"] = float64(n) / to["jobs"] * 1000
		to[kind+"s/s"] = float64(n) / seconds
	}
	to["requests/s"] = float64(total) / seconds
}

// report reports the median of the runs of each unit, and the least and the most of jobs/s.
func report(b *testing.B, runs []figures, units ...string) {
	for _, unit := range units {
		all := make([]float64, len(runs))
		for i, r := range runs {
			all[i] = r[unit]
		}
		slices.Sort(all)
		b.ReportMetric(all[len(all)/2], unit)
		if unit == "jobs/s" {
			b.ReportMetric(all[0], "least-jobs/s")
			b.ReportMetric(all[len(all)-1], "most-jobs/s")
		}
	}
	b.ReportMetric(0, "ns/op")
}
