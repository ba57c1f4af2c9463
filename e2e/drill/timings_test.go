package drill

import (
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/node"
)

// TestDrillTimingsChange restarts the nodes of a working cluster one after the other, from profile default to fast
// and back. The last node with the long timings is stopped with SIGSTOP for longer than the others, with the short
// ones, would be: they must not take what it still runs.
func TestDrillTimingsChange(t *testing.T) {
	t.Parallel()
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := open(t)
			changeTimings(c, func(name, profile string) *Node {
				c.Profile = profile
				return c.Start(name)
			}, func() { c.Settled("a", "b", "c") })
			c.Check()
		})
	}
	t.Run("writers", func(t *testing.T) {
		t.Parallel()
		w := writersOn(t, pgtest.Database(t), true)
		changeTimings(w.Cluster, func(name, profile string) *Node {
			w.profile = profile
			return w.start(name)
		}, func() { w.newEffects(5) })
		w.stop()
		v := w.verdict()
		v.report(t, "postgres: timings changed by rolling restarts")
		Never(t, "postgres: timings changed by rolling restarts, runs refused by the fence", v.refused)
	})
}

// retiming is a change of timings under way.
type retiming struct {
	*Cluster
	start    func(name, profile string) *Node
	working  func() // waits until all work is done somewhere
	nodes    map[string]*Node
	profiles map[string]string // of the nodes
}

// profiles are the timings that the nodes get.
var profiles = map[string]lease.Timing{"default": lease.Default(), "fast": lease.Fast()}

func changeTimings(c *Cluster, start func(name, profile string) *Node, working func()) {
	r := &retiming{c, start, working, map[string]*Node{}, map[string]string{}}
	for _, name := range []string{"a", "b", "c"} {
		r.launch(name, "default")
	}
	working()
	last := r.holder()
	r.restart("fast", slices.DeleteFunc(r.names(), func(name string) bool { return name == last })...)
	r.pause(r.nodes[last])
	r.restart("fast", last)
	r.restart("default", r.names()...)
	for name, n := range r.nodes {
		if m, _ := n.Member(); m.Timing != lease.Default().Shared() {
			c.T.Errorf("%s has %+v at the end", name, m.Timing)
		}
	}
}

func (r *retiming) names() []string { return slices.Sorted(maps.Keys(r.nodes)) }

// launch starts a node and waits until its row states its timings.
func (r *retiming) launch(name, profile string) {
	r.T.Helper()
	n := r.start(name, profile)
	r.nodes[name], r.profiles[name] = n, profile
	r.Until(time.Minute, name+" is registered with profile "+profile, func() bool {
		m, ok := n.Member()
		return ok && m.Present() && m.Timing == profiles[profile].Shared()
	})
}

// restart stops the nodes one after the other, and starts each with the profile.
func (r *retiming) restart(profile string, names ...string) {
	r.T.Helper()
	for _, name := range names {
		began := time.Now()
		r.nodes[name].Stop()
		r.launch(name, profile)
		r.working()
		r.T.Logf("%s restarted with profile %s after %v", name, profile, time.Since(began))
		for _, command := range []string{"status", "doctor"} {
			if printed, want := timingsIn(r.emitd(command)), r.notice(); printed != want {
				r.T.Errorf("%s says %q, want %q", command, printed, want)
			}
		}
	}
}

// notice is what people should be told about the timings.
func (r *retiming) notice() string {
	of := map[string][]string{}
	for _, name := range r.names() {
		of[r.profiles[name]] = append(of[r.profiles[name]], name)
	}
	if len(of) == 1 {
		return ""
	}
	return fmt.Sprintf("profile default on %s; profile fast on %s", strings.Join(of["default"], ", "), strings.Join(of["fast"], ", "))
}

// timingsIn returns what a command says about different timings, if anything.
func timingsIn(output string) string {
	_, rest, _ := strings.Cut(output, "nodes have different timings: ")
	printed, _, _ := strings.Cut(rest, "; until")
	return printed
}

// emitd returns what a command of emitd prints. Doctor ends with an error when it has found something.
func (r *retiming) emitd(args ...string) string {
	out, err := exec.Command(Binary(r.T), append(args, "--store", r.URL)...).CombinedOutput()
	if err != nil && args[0] != "doctor" {
		r.T.Fatalf("emitd %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// holder returns the name of a node that runs something.
func (r *retiming) holder() (name string) {
	r.T.Helper()
	r.Until(time.Minute, "a node runs something", func() bool {
		for _, name = range r.names() {
			if len(r.held(r.nodes[name])) > 0 {
				return true
			}
		}
		return false
	})
	return name
}

// held returns the generations of the units that run on the node according to the store.
func (r *retiming) held(n *Node) map[daemon.Unit]int64 {
	units := map[daemon.Unit]int64{}
	s, err := r.Snapshot()
	if err != nil {
		r.T.Fatal(err)
	}
	for _, u := range s.Units {
		if u.Holder.Name == n.Name && u.State == daemon.Active {
			units[u.Unit] = u.Generation
		}
	}
	return units
}

// pause stops a node with SIGSTOP until its row is older than two TTLs of the leader, which has shorter timings.
func (r *retiming) pause(n *Node) {
	r.T.Helper()
	if leader, _ := r.Leading(); leader == n {
		r.emitd("leader", "resign", "--yes")
		r.Until(time.Minute, "another leads", func() bool { l := r.Leader(); return l != nil && l != n })
	}
	before := r.held(n)
	if len(before) == 0 {
		r.T.Fatalf("%s runs nothing", n.Name)
	}
	n.Freeze()
	row, _ := n.Member()
	leader, _ := r.Leading()
	ttl := profiles[r.profiles[leader.Name]].NodeRegistrationTTL
	r.Until(time.Minute, "its row is old", func() bool {
		s, err := r.Snapshot()
		return err == nil && s.Now.Sub(row.LastHeartbeatAt) > 2*ttl
	})
	if after := r.held(n); !maps.Equal(before, after) {
		r.T.Errorf("%s was paused for two TTLs of %s, and not of its own; it held %v and now %v", n.Name, leader.Name, before, after)
	}
	n.Signal(syscall.SIGCONT)
	r.Until(time.Minute, "it goes on", func() bool { m, ok := n.Member(); return ok && m.Seq > row.Seq && m.State == node.Live })
	r.working()
}
