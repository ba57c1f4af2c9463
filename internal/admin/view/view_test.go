package view

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/storage"
)

var update = flag.Bool("update", false, "write what came out into testdata")

var now = time.Date(2026, 11, 20, 9, 25, 5, 300e6, time.UTC)

func ago(d time.Duration) time.Time { return now.Add(-d) }

var reader = Reader{Cluster: "billing", Store: "sqlite", Timing: lease.Default()}

// healthy returns a cluster of three nodes with two daemons.
func healthy() *daemon.Snapshot {
	advert := &daemon.Advert{
		Kinds: []daemon.Kind{"acme:reports", "emit:sweeper"},
		Specs: []daemon.Spec{{ID: "acme:reports", Instances: 2, Weight: 2}, {ID: "emit:sweeper"}},
	}
	s := &daemon.Snapshot{
		Now: now, StoreID: "s-1", Head: 118,
		Term:    node.Term{Number: 1795168442000, Ordinal: 42, Leader: who("emitd-1"), ElectedAt: ago(11*time.Minute + 3*time.Second)},
		Lease:   node.Lease{ExpiresAt: now.Add(53900 * time.Millisecond), Renewals: 44, LastPassAt: ago(6100 * time.Millisecond), PassSeq: 45},
		Adverts: map[string]*daemon.Advert{"a": advert},
	}
	for i, name := range []string{"emitd-0", "emitd-1", "emitd-2"} {
		s.Nodes = append(s.Nodes, node.Member{
			Identity: who(name), State: node.Live, Advert: "a",
			Traits:       node.Traits{Version: "0.4.1", Capacity: 1, Address: "10.0.0.1:7070", Labels: map[string]string{"zone": "eu-1" + string(rune('a'+i))}},
			RegisteredAt: ago(52 * time.Hour), LastHeartbeatAt: ago(time.Duration(6+4*i) * time.Second), ConfirmedAt: ago(time.Second),
		})
	}
	s.Units = []daemon.Record{
		held("acme:reports", 0, "emitd-0", daemon.Active), held("acme:reports", 1, "emitd-1", daemon.Active),
		held("emit:sweeper", 0, "emitd-2", daemon.Active),
	}
	return s
}

func who(name string) node.Identity {
	return node.Identity{Name: name, ID: node.ID("id-" + name), Incarnation: node.Incarnation("inc-" + name)}
}

func held(id daemon.ID, index int, by string, state daemon.State) daemon.Record {
	return daemon.Record{
		Unit: daemon.Unit{Daemon: id, Index: index}, State: state, Holder: who(by), Generation: 1795168442001,
		Term: 1795168442000, Since: ago(640 * time.Second), AssignedAt: ago(642 * time.Second),
		AcknowledgeTimeout: 30 * time.Second, DrainTimeout: 30 * time.Second,
		Reason: "least loaded (1.0 < 2.0); runner-up emitd-2",
	}
}

// scenes are snapshots that a person should understand at a glance.
var scenes = map[string]func(*daemon.Snapshot){
	"healthy": func(*daemon.Snapshot) {},
	"empty": func(s *daemon.Snapshot) {
		*s = daemon.Snapshot{Now: now, StoreID: "s-1"}
	},
	"late_node": func(s *daemon.Snapshot) {
		s.Nodes[2].LastHeartbeatAt = ago(41200 * time.Millisecond)
		s.Nodes[2].LeaderState = node.Late
	},
	"late_by_own_judgement": func(s *daemon.Snapshot) { s.Nodes[0].LastHeartbeatAt = ago(91 * time.Second) },
	"deaf_and_draining": func(s *daemon.Snapshot) {
		s.Nodes[0].LeaderState = node.Deaf
		s.Nodes[2].State = node.Draining
		s.Units[2] = held("emit:sweeper", 0, "emitd-2", daemon.Revoking)
		s.Units[2].Since = ago(41 * time.Second)
	},
	"lease_over":    func(s *daemon.Snapshot) { s.Lease.ExpiresAt = ago(7 * time.Second) },
	"vacant":        func(s *daemon.Snapshot) { s.Term.Vacant = true },
	"leader_stuck":  func(s *daemon.Snapshot) { s.Lease.LastPassAt = ago(3 * time.Minute) },
	"nobody_stands": func(s *daemon.Snapshot) { s.Term = node.Term{}; neverLead(s) },
	"same_name":     func(s *daemon.Snapshot) { s.Nodes[2].Name = "emitd-0" },
	"store_slow": func(s *daemon.Snapshot) {
		for i := range s.Nodes {
			s.Nodes[i].ChangeTime = time.Duration(i+1) * 600 * time.Millisecond
		}
		gone := s.Nodes[0] // dead, but not removed yet: does not count
		gone.Identity, gone.LastHeartbeatAt, gone.ChangeTime = who("gone"), ago(95*time.Second), time.Hour
		s.Nodes = append(s.Nodes, gone)
	},
	"store_fast_enough": func(s *daemon.Snapshot) {
		for i := range s.Nodes {
			s.Nodes[i].ChangeTime = 1600 * time.Millisecond
		}
	},
	"unknown_state": func(s *daemon.Snapshot) { s.Units[0].State = "parked" },
	"not_acked":     func(s *daemon.Snapshot) { s.Units[0].State, s.Units[0].Since = daemon.Assigning, ago(45*time.Second) },
	"failing_agent": failingAgent,
	"failing_everywhere": func(s *daemon.Snapshot) {
		for i := range s.Units[:2] {
			u := &s.Units[i]
			u.State, u.Failures, u.Error, u.FailingSince = daemon.Deleted, 10*(i+1), "exec: no such file", ago(time.Minute)
			for _, n := range s.Nodes {
				u.Embargoes = append(u.Embargoes, daemon.Embargo{Incarnation: n.Incarnation, Strikes: 1, Until: now.Add(20 * time.Second), Length: 30 * time.Second})
			}
		}
	},
	"different_timings": func(s *daemon.Snapshot) {
		for i, t := range []lease.Timing{lease.Fast(), lease.Default(), lease.Fast()} {
			s.Nodes[i].Timing = t.Shared()
		}
	},
	"failed_once":    func(s *daemon.Snapshot) { s.Units[0].Failures, s.Units[0].Error = 1, "hiccup" },
	"nowhere_to_run": nowhere,
	"taken_away": func(s *daemon.Snapshot) {
		for i, since := range []time.Duration{7 * time.Second, 4 * time.Minute} {
			s.Units = append(s.Units, daemon.Record{
				Unit: daemon.Unit{Daemon: "acme:gone", Index: i}, State: daemon.Unassigned, Since: ago(since), Reason: "host stopped",
			})
		}
	},
	"only_one_node": func(s *daemon.Snapshot) {
		s.Nodes = s.Nodes[1:2]
		s.Nodes[0].NoDaemons = true
		for i := range s.Units {
			s.Units[i].State = daemon.Deleted
		}
	},
	"declared_without_row": func(s *daemon.Snapshot) { s.Units = s.Units[:1] },
	"scaled_down":          func(s *daemon.Snapshot) { s.Units[1].State, s.Units[1].Retired = daemon.Deleted, true },
	"disagreement": func(s *daemon.Snapshot) {
		s.Adverts["b"] = &daemon.Advert{Kinds: []daemon.Kind{"acme:reports", "emit:sweeper"}, Specs: []daemon.Spec{{ID: "acme:reports", Instances: 1}, {ID: "emit:sweeper"}}}
		s.Nodes[0].Advert, s.Nodes[0].RegisteredAt = "b", ago(time.Minute)
	},
	"hostile_names": func(s *daemon.Snapshot) {
		s.Nodes[0].Name = "a\x1b[31m\nb"
		s.Units[0].Holder.Name = "a\x1b[31m\nb"
		s.Units[0].Failures, s.Units[0].Error = 2, "boom\x07\n\tsecond line"
	},
}

func neverLead(s *daemon.Snapshot) {
	for i := range s.Nodes {
		s.Nodes[i].NeverLead = true
	}
}

func failingAgent(s *daemon.Snapshot) {
	s.Units[0].Failures, s.Units[0].Error = 14, "connect: connection refused\ngoroutine 1"
	s.Units[0].FailingSince, s.Units[0].RetryAt = ago(3*time.Minute), now.Add(12*time.Second)
}

func nowhere(s *daemon.Snapshot) {
	gpu := daemon.Spec{ID: "acme:gpu-train", Instances: 2, Requires: map[string]string{"gpu": "yes"}}
	a := s.Adverts["a"]
	a.Specs, a.Kinds = append(a.Specs, gpu), append(a.Kinds, "acme:gpu-train")
	for i := range 2 {
		s.Units = append(s.Units, daemon.Record{
			Unit: daemon.Unit{Daemon: "acme:gpu-train", Index: i}, State: daemon.Unassigned, Since: ago(93 * time.Second),
		})
	}
}

// TestScenes compares tables and JSON of every scene with testdata.
func TestScenes(t *testing.T) {
	t.Parallel()
	for name, change := range scenes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := healthy()
			change(s)
			v := Of(s, reader)
			var b bytes.Buffer
			if err := v.Table(&b, true); err != nil {
				t.Fatal(err)
			}
			golden(t, name+".txt", b.Bytes())
		})
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (go test -update writes it)\ngot:\n%swant:\n%s", name, got, want)
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	s := healthy()
	nowhere(s)
	var b bytes.Buffer
	if err := JSON(&b, Of(s, reader)); err != nil {
		t.Fatal(err)
	}
	golden(t, "status.json", b.Bytes())
}

// TestFieldsAreAlwaysThere checks that every field is present even if it is empty, so that scripts need
// not handle missing ones.
func TestFieldsAreAlwaysThere(t *testing.T) {
	t.Parallel()
	fields := func(v any) map[string]any {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]any{}
		if err := json.Unmarshal(text, &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	for _, c := range []struct {
		what string
		v    any
		want string
	}{
		{"status", Of(&daemon.Snapshot{}, reader), "cluster leader nodes daemons attention"},
		{"leader", Leader{}, "node node_id term elected_at expires_at last_pass_at"},
		{"node", Node{}, "name id state version last_heartbeat_at load capacity labels"},
		{"unit", Unit{}, "daemon unit state node node_id generation since reason"},
		{"event", EventOf(daemon.Event{}), "seq at kind node daemon unit term generation reason"},
	} {
		got := fields(c.v)
		for name := range strings.FieldsSeq(c.want) {
			if _, ok := got[name]; !ok {
				t.Errorf("%s has no field %q", c.what, name)
			}
		}
	}
	status := fields(Of(&daemon.Snapshot{Now: now}, reader))
	for _, list := range []string{"nodes", "daemons", "attention"} {
		if _, ok := status[list].([]any); !ok {
			t.Errorf("%s is %v, want a list also when it is empty", list, status[list])
		}
	}
	if status["leader"] != nil {
		t.Errorf("leader is %v, want null", status["leader"])
	}
	n := Of(healthy(), reader).Nodes[0]
	n.RegisteredAt = Time{now.In(time.FixedZone("x", 3600))}
	if got := fields(n)["registered_at"]; got != "2026-11-20T09:25:05.3Z" {
		t.Errorf("registered_at is %v, want UTC", got)
	}
}

func TestExplained(t *testing.T) {
	t.Parallel()
	s := healthy()
	nowhere(s)
	failingAgent(s)
	differ := healthy()
	scenes["disagreement"](differ)
	differ.Adverts["c"] = &daemon.Advert{Specs: []daemon.Spec{{ID: "acme:reports", Revision: 7, Instances: 3}}}
	differ.Nodes[1].Advert, differ.Nodes[1].FirstRegisteredAt = "c", ago(time.Hour)
	snapshots := map[string]*daemon.Snapshot{"explain_declared": differ}
	for name, unit := range map[string]string{
		"explain_nowhere": "acme:gpu-train/1", "explain_active": "acme:reports/0", "explain_declared": "acme:reports/0",
	} {
		s := cmp.Or(snapshots[name], s)
		u, err := daemon.ParseUnit(unit)
		if err != nil {
			t.Fatal(err)
		}
		status := Of(s, reader)
		var b bytes.Buffer
		for _, v := range status.Daemons {
			if v.Unit == u {
				e := Explained{Unit: v, Plan: Explain(s, reader, u)}
				if err := e.Table(&b, status); err != nil {
					t.Fatal(err)
				}
				if rows := e.Only("emitd-1").Plan.Rows; len(rows) != 1 || len(e.Plan.Rows) != 3 {
					t.Errorf("only emitd-1: %v of %v", rows, e.Plan.Rows)
				}
			}
		}
		golden(t, name+".txt", b.Bytes())
	}
}

func TestAll(t *testing.T) {
	t.Parallel()
	s := healthy()
	s.Units[1].State, s.Units[1].Retired = daemon.Deleted, true
	s.Nodes[2].State, s.Nodes[2].EndReason = node.Removed, "shutdown"
	few, r := Of(s, reader), reader
	r.All = true
	all := Of(s, r)
	if len(few.Nodes) != 2 || len(all.Nodes) != 3 || all.Nodes[2].State != node.Removed || all.Nodes[2].Reason != "shutdown" {
		t.Errorf("nodes: %d, with all %+v", len(few.Nodes), all.Nodes)
	}
	if len(few.Daemons) != 2 || len(all.Daemons) != 3 || all.Daemons[1].State != daemon.Deleted {
		t.Errorf("units: %d, with all %+v", len(few.Daemons), all.Daemons)
	}
}

func TestReigns(t *testing.T) {
	t.Parallel()
	at := func(min, sec int) time.Time { return time.Date(2026, 11, 20, 9, min, sec, 0, time.UTC) }
	elected := func(at time.Time, ordinal int64, name string) daemon.Event {
		return daemon.Event{At: at, Kind: daemon.LeaderElected, Node: name, Term: 1000 + ordinal, TermOrdinal: ordinal}
	}
	lost := func(at time.Time, ordinal int64, why node.LossReason) daemon.Event {
		return daemon.Event{At: at, Kind: daemon.LeaderLost, Term: 1000 + ordinal, TermOrdinal: ordinal, Reason: string(why)}
	}
	expired := func(at time.Time, ordinal int64, end time.Time) daemon.Event {
		e := lost(at, ordinal, node.Expired)
		e.Detail = storage.NewLostDetail(node.Lease{ExpiresAt: end}, at)
		return e
	}
	events := []daemon.Event{
		lost(at(0, 0), 38, node.Resigned), // its election is no longer in the history
		elected(at(0, 1), 39, "emitd-0"), elected(at(1, 0), 40, "emitd-2"),
		expired(at(7, 46), 40, at(6, 58)), elected(at(7, 46), 41, "emitd-0"),
		{At: at(8, 0), Kind: daemon.NodeLate, Node: "x"},
		lost(at(14, 2), 41, node.Resigned), elected(at(14, 3), 42, "emitd-1"),
	}
	var b bytes.Buffer
	if err := TermTable(Terms(events, at(25, 5))).Write(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "history.txt", b.Bytes())
}

// TestNobodyServesQueues checks that a reader with an object store gets a notice if no node could open
// it.
func TestNobodyServesQueues(t *testing.T) {
	t.Parallel()
	reported := func(s *daemon.Snapshot, r Reader) bool {
		return slices.ContainsFunc(Of(s, r).Attention, func(n Notice) bool {
			return n.Subject == "queues" && n.Severity == failing && n.Action == "emitd doctor"
		})
	}
	wants := reader
	wants.Queues = true
	serving := healthy()
	serving.Adverts["a"].Kinds = append(serving.Adverts["a"].Kinds, queue.Kind)
	switch {
	case !reported(healthy(), wants):
		t.Error("nothing is said of the queues")
	case reported(healthy(), reader):
		t.Error("queues are missed where none are configured")
	case reported(serving, wants):
		t.Error("queues are missed though they are served")
	}
}

func TestDurations(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration][2]string{
		0:                                 {"0s", "0.0s"},
		41250 * time.Millisecond:          {"41s", "41.2s"},
		59999 * time.Millisecond:          {"59s", "59.9s"},
		time.Minute:                       {"1m00s", "1m00s"},
		11*time.Minute + 3*time.Second:    {"11m03s", "11m03s"},
		5*time.Hour + 7*time.Minute:       {"5h07m", "5h07m"},
		52*time.Hour + 59*time.Minute:     {"2d4h", "2d4h"},
		24*time.Hour - time.Nanosecond:    {"23h59m", "23h59m"},
		400*24*time.Hour + 90*time.Minute: {"400d1h", "400d1h"},
	} {
		if got := [2]string{Short(d), Exact(d)}; got != want {
			t.Errorf("%v: got %q, want %q", d, got, want)
		}
	}
}

func FuzzLine(f *testing.F) {
	f.Add("plain")
	f.Add("a\x1b]0;title\x07b\u202e\xff")
	f.Fuzz(func(t *testing.T, s string) {
		for _, r := range Line(s) {
			if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == '\u202e' || r == '\u200b' {
				t.Fatalf("Line(%q) lets %U through", s, r)
			}
		}
	})
}

// If more than half of the nodes look dead at once, the status says that the leader waits, and for how long.
func TestManyNodesSeemDead(t *testing.T) {
	t.Parallel()
	for dead, want := range map[int]bool{2: false, 3: true} {
		s := healthy()
		for i := range 2 {
			extra := s.Nodes[2]
			extra.Identity = who([]string{"emitd-3", "emitd-4"}[i])
			s.Nodes = append(s.Nodes, extra)
		}
		for i := range dead {
			s.Nodes[len(s.Nodes)-1-i].LeaderState = node.Late
		}
		got := slices.ContainsFunc(Of(s, reader).Attention, func(n Notice) bool {
			return n.Severity == failing && n.Text == "3 of 5 nodes look dead at once: the leader takes nothing from them for another 1m30s, unless their end is proven; emitd leader release ends the wait"
		})
		if got != want {
			t.Errorf("%d of 5 look dead: %v", dead, Of(s, reader).Attention)
		}
	}
}

// A sick node and a quarantined daemon are in the status, with the reason and what happens next.
// A paused unit is paused since the command, also if it had been without a node for longer.
func TestPausedSince(t *testing.T) {
	t.Parallel()
	s := healthy()
	for i := range s.Units[:2] {
		s.Units[i].State, s.Units[i].Holder = daemon.Deleted, node.Identity{}
	}
	s.Units[1].Since = ago(time.Second) // its run has drained since
	args := daemon.CommandArgs{Daemon: "acme:reports"}.Encode()
	s.Commands = []daemon.Command{{ID: "1", Kind: daemon.CommandPause, Args: args, CreatedAt: ago(3 * time.Second), Result: daemon.ResultInForce}}
	for i, u := range Of(s, reader).Daemons[:2] {
		if want := []time.Duration{3 * time.Second, time.Second}[i]; u.State != Paused || now.Sub(u.Since.Time) != want {
			t.Errorf("%s is %s since %v, want paused since %v", u.Unit, u.State, now.Sub(u.Since.Time), want)
		}
	}
}

func TestSickAndQuarantined(t *testing.T) {
	t.Parallel()
	s := healthy()
	failed := func(id daemon.ID, failures int, nodes ...string) {
		r := held(id, 0, "emitd-2", daemon.Active)
		r.Failures = failures
		for _, name := range nodes {
			r.Embargoes = append(r.Embargoes, daemon.Embargo{Incarnation: who(name).Incarnation, Node: name, Until: now, Length: time.Minute, Strikes: 2})
		}
		s.Units = append(s.Units, r)
	}
	failed("acme:a", 0, "emitd-0")
	failed("acme:b", 0, "emitd-0")
	failed("acme:c", 0, "emitd-0")
	failed("acme:d", 10, "emitd-0", "emitd-1")
	var got []string
	for _, n := range Of(s, reader).Attention {
		if strings.Contains(n.Text, "sick") || strings.Contains(n.Text, "quarantined") {
			got = append(got, n.Text)
		}
	}
	want := []string{
		"acme:d is quarantined: it failed on 2 nodes: emitd-0, emitd-1; one unit is tried again at " + now.Add(time.Minute).UTC().Format(time.RFC3339),
		"emitd-0 is sick: 3 daemons: acme:a, acme:b, acme:c failed there; it gets units only if no other node can take them",
	}
	if !slices.Equal(got, want) {
		t.Errorf("attention\n%q\nwant\n%q", got, want)
	}
	if n := Of(s, reader).NodeTable(false).Rows[0]; n[1] != "live, sick" {
		t.Errorf("node ls: %q", n)
	}
}

// TestDeadlines: a unit that is assigning or revoking has the deadline of its own spec, or else that of the cluster.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	timing := lease.Default()
	unit := func(rec daemon.Record) Unit {
		rec.Unit, rec.Since, rec.Holder = daemon.Unit{Daemon: "acme:x"}, now, node.Identity{Name: "a", Incarnation: "a"}
		return Of(&daemon.Snapshot{Now: now, Units: []daemon.Record{rec}}, Reader{Timing: timing}).Daemons[0]
	}
	for name, c := range map[string]struct {
		rec              daemon.Record
		deadline, forced time.Time
	}{
		"assigning":       {daemon.Record{State: daemon.Assigning}, now.Add(timing.AcknowledgeTimeout), time.Time{}},
		"assigning, spec": {daemon.Record{State: daemon.Assigning, AcknowledgeTimeout: time.Hour}, now.Add(time.Hour), time.Time{}},
		"revoking":        {daemon.Record{State: daemon.Revoking}, now.Add(timing.DrainTimeout), now.Add(timing.ForceAfter(timing.DrainTimeout))},
		"revoking, spec":  {daemon.Record{State: daemon.Revoking, DrainTimeout: time.Hour}, now.Add(time.Hour), now.Add(timing.ForceAfter(time.Hour))},
		"active":          {daemon.Record{State: daemon.Active, DrainTimeout: time.Hour}, time.Time{}, time.Time{}},
	} {
		if u := unit(c.rec); !u.Deadline.Equal(c.deadline) || !u.ForcedAt.Equal(c.forced) {
			t.Errorf("%s: %v and %v, want %v and %v", name, u.Deadline, u.ForcedAt, c.deadline, c.forced)
		}
	}
}
