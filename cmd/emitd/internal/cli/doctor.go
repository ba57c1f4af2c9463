package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/cmd/emitd/internal/host"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/postgres"
)

// finding is the result of one check.
type finding struct {
	Check  string `json:"check"`
	Result result `json:"result"`
	Text   string `json:"text"`
	Do     string `json:"do"`
}

type result string

const (
	fine result = "ok"
	warn result = "warn"
	fail result = "fail"
)

// doctor runs checks in order. A check that cannot run because an earlier one failed is left out.
type doctor struct {
	cfg   *config.Loaded
	found []finding
}

func (d *doctor) add(check string, r result, do, format string, args ...any) {
	d.found = append(d.found, finding{check, r, fmt.Sprintf(format, args...), do})
}

// bad adds an error as a failed check.
func (d *doctor) bad(check string, err error) {
	for _, f := range fault.Of(backend.Fault(err)) {
		d.add(check, fail, f.Advice(), "%s: %s", f.Code, f.What)
	}
}

func (a *app) doctorCommand() *cobra.Command {
	return a.outputFlag(&cobra.Command{
		Use: "doctor", Short: "Check configuration, store, object store, outbox and cluster; writes and removes a lock and test objects",
		Long: "Check configuration, store and cluster; each node is called at the address that it advertises. To check that the store accepts writes, one lock is taken and\n" +
			"released; to check that the object store supports conditional writes, some objects below probe/ are written and\n" +
			"removed. The exit code is 1 if a check fails, and 6 if one warns and none fails.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.loadToRead()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
			defer cancel()
			d := &doctor{cfg: cfg}
			d.config()
			a.progress.Step("checking the store and the nodes")
			d.store(ctx, a)
			a.progress.Step("probing the object store")
			d.objects(ctx)
			a.progress.Step("checking the outbox")
			d.outbox(ctx, a)
			return a.printFindings(d.found)
		},
	})
}

func (a *app) printFindings(found []finding) error {
	err := a.print(list(found, func(f finding) string { return f.Check }, func(bool) *view.Table {
		t := &view.Table{Head: []string{"CHECK", "RESULT", "FOUND"}}
		for _, f := range found {
			text := f.Text
			if f.Do != "" && f.Result != fine {
				text += "    -> " + f.Do
			}
			t.Add(f.Check, string(f.Result), text)
		}
		return t
	}))
	if err != nil {
		return err
	}
	worst := fine
	var first finding
	for _, f := range found {
		if f.Result == fail && worst != fail || f.Result == warn && worst == fine {
			worst, first = f.Result, f
		}
	}
	switch worst {
	case fail:
		return fault.New(fault.DoctorFails, "check %s failed: %s", first.Check, first.Text)
	case warn:
		return fault.New(fault.DoctorWarns, "check %s warns: %s", first.Check, first.Text)
	}
	return nil
}

func (d *doctor) config() {
	d.add("config", fine, "", "%s, profile %s", cmp.Or(d.cfg.File, "no file"), d.cfg.Profile)
	for _, note := range d.cfg.Notes() {
		d.add("config", warn, "remove the key, or set the key that it needs", "%s", note)
	}
	if note := host.TokensReadable(d.cfg.API.TokensFile); note != "" {
		d.add("config", warn, "chmod o-r "+d.cfg.API.TokensFile, "%s", note)
	}
	t := d.cfg.Timing()
	beats := float64(t.LeaseDuration) / float64(t.HeartbeatInterval)
	d.add("timing", fine, "", "lease %v is %.1f heartbeats of %v; a dead leader is replaced within %v, a dead node within %v",
		t.LeaseDuration, beats, t.HeartbeatInterval, t.LeaseDuration, t.NodeRegistrationTTL)
}

// objects tests the object store, if there is one.
func (d *doctor) objects(ctx context.Context) {
	if d.cfg.Objects.URL == "" {
		return
	}
	begun := time.Now()
	if _, err := backend.Bucket(ctx, d.cfg.Objects.URL); err != nil {
		d.bad("objects", err)
		return
	}
	d.add("objects", fine, "", "%s supports conditional writes; probed in %s", config.RedactURL(d.cfg.Objects.URL), milliseconds(time.Since(begun)))
}

func (d *doctor) store(ctx context.Context, a *app) {
	begun := time.Now()
	if !d.schema(ctx, a) {
		return
	}
	s, err := a.open(ctx, d.cfg)
	if err != nil {
		d.bad("store", err)
		return
	}
	defer s.Close()
	d.add("store", fine, "", "%s at %s opened in %s", s.Kind, config.RedactURL(d.cfg.Store.URL), milliseconds(time.Since(begun)))
	if pid, stopped := s.Blocker(); stopped {
		d.add("writer", fail, fmt.Sprintf("continue it (kill -CONT %d) or end it", pid), "process %d is stopped inside a write transaction: no other process can write", pid)
	}
	d.writes(ctx, s)
	d.wakes(ctx, s)
	d.cluster(ctx, s)
}

// schema compares the versions before opening, because a store with another schema does not open.
func (d *doctor) schema(ctx context.Context, a *app) bool {
	ms, err := backend.Status(ctx, backend.Options{Config: d.cfg.Config, Logger: a.commandLog(d.cfg)})
	if err != nil {
		d.bad("schema", err)
		return false
	}
	var missing []string
	for _, m := range ms {
		if m.AppliedAt.IsZero() {
			missing = append(missing, fmt.Sprintf("%d (%s)", m.Version, m.Name))
		}
	}
	if len(missing) > 0 {
		d.add("schema", fail, "emitd migrate up", "not applied: version %s", strings.Join(missing, ", "))
		return false
	}
	d.add("schema", fine, "", "version %d", len(ms))
	return true
}

// writes acquires and releases a lock, and measures the time.
func (d *doctor) writes(ctx context.Context, s *backend.Store) {
	locker, ok := s.Store.(storage.Locker)
	if !ok {
		return
	}
	begun := time.Now()
	if err := backend.Writable(ctx, locker); err != nil {
		d.bad("write", err)
		return
	}
	took := time.Since(begun) / 2 // two writes: it acquires a lock and releases it
	if limit := d.cfg.Timing().QueryTimeout / 2; took > limit {
		d.add("write", warn, "check the store's load and the network", "a write took %s, more than half of query_timeout %v", milliseconds(took), 2*limit)
		return
	}
	d.add("write", fine, "", "a write took %s", milliseconds(took))
}

// wakes tests whether the store's wake-ups arrive. Without them changes are noticed at the next
// heartbeat.
func (d *doctor) wakes(ctx context.Context, s *backend.Store) {
	known, err := s.CheckWakeUps(ctx)
	switch {
	case !known:
	case errors.Is(err, postgres.ErrNoNotifications):
		d.add("wake-ups", warn, "name the database itself in store.url, or set store.notify: poll to keep the pooler",
			"no wake-up arrived: a transaction pooler, such as PgBouncer, accepts LISTEN and drops it; nodes see changes only at their next heartbeat, after up to %v", d.cfg.Timing().HeartbeatInterval)
	case err != nil:
		d.bad("wake-ups", err)
	default:
		d.add("wake-ups", fine, "", "a notification arrived")
	}
}

// offsetLimit is how far wall clocks may differ before timestamps confuse people.
const offsetLimit = time.Second

func (d *doctor) cluster(ctx context.Context, s *backend.Store) {
	before := time.Now()
	snap, err := s.Snapshot(ctx)
	if err != nil {
		d.bad("read", err)
		return
	}
	after := time.Now()
	d.add("read", fine, "", "%d nodes and %d units in %s", len(snap.Nodes), len(snap.Units), milliseconds(after.Sub(before)))
	offset := snap.Now.Sub(before.Add(after.Sub(before) / 2))
	if offset.Abs() > offsetLimit {
		d.add("clock", warn, "set this host's clock (NTP); leases do not depend on it, logs and timestamps do",
			"the store's clock differs from this host's by %+.1fs", offset.Seconds())
	} else {
		d.add("clock", fine, "", "the store's clock differs from this host's by %+dms", offset.Milliseconds())
	}
	status := view.Of(snap, reader(d.cfg, s, false))
	d.versions(status)
	d.reach(ctx, snap)
	for _, n := range status.Attention {
		d.add("cluster", warn, n.Action, "%s", n.Text)
	}
	if len(status.Attention) == 0 {
		d.add("cluster", fine, "", "%s leads term %d, %d nodes, %d units", status.Leader.Node, status.Leader.TermOrdinal, len(status.Nodes), len(status.Daemons))
	}
}

func (d *doctor) versions(s view.Status) {
	seen := map[string][]string{}
	var order []string
	for _, n := range s.Nodes {
		if seen[n.Version] == nil {
			order = append(order, n.Version)
		}
		seen[n.Version] = append(seen[n.Version], n.Name)
	}
	if len(order) < 2 {
		return
	}
	var out []string
	for _, v := range order {
		out = append(out, fmt.Sprintf("%s on %s", cmp.Or(v, "unknown"), strings.Join(seen[v], ", ")))
	}
	d.add("versions", warn, "finish the upgrade", "nodes run different versions: %s", strings.Join(out, "; "))
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1fms", float64(d.Microseconds())/1000)
}
