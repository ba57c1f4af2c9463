package operator_test

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/coordinator/operator"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/memory"
)

// virtual is the local clock of nodes in a bubble, whose time begins at the same moment in each.
func virtual() time.Duration {
	return time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) + time.Hour
}

// run runs a node that can run the daemons until ctx ends. Only node c has the label gpu.
func run(ctx context.Context, t *testing.T, store storage.Store, name string, specs ...daemon.Spec) <-chan error {
	t.Helper()
	cfg := coordinator.Config{Node: node.Identity{Name: name}, Profile: "fast", MaxMovesPerRound: -1, Logger: slog.New(slog.DiscardHandler), Clock: virtual}
	if name == "c" {
		cfg.Labels = map[string]string{"gpu": "yes"}
	}
	c, err := coordinator.New(store, cfg)
	if err != nil {
		t.Fatal(err)
	}
	agent := daemon.AgentFunc(func(ctx context.Context, a *daemon.Assignment) error {
		select {
		case <-a.Draining():
		case <-ctx.Done():
		}
		return nil
	})
	for _, spec := range append(specs, daemon.Spec{ID: "acme:reports", Instances: 3}) {
		if err := c.Register(spec, agent); err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	return ended
}

// cluster runs nodes a, b and c in virtual time until the test ends; a joins first and leads.
func cluster(t *testing.T, store storage.Store, specs ...daemon.Spec) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var ended []<-chan error
	for _, name := range []string{"a", "b", "c"} {
		ended = append(ended, run(ctx, t, store, name, specs...))
		time.Sleep(time.Second)
	}
	t.Cleanup(func() {
		cancel()
		for _, end := range ended {
			if err := <-end; err != nil {
				t.Error(err)
			}
		}
	})
	time.Sleep(time.Minute)
}

func active(t *testing.T, store storage.Store) map[string]int {
	t.Helper()
	snap, err := store.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	for _, r := range snap.Units {
		if r.State == daemon.Active {
			out[r.Holder.Name]++
		}
	}
	return out
}

// TestEvening: the leader's node is drained and given back, a unit is moved, and the term is handed over.
func TestEvening(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory.Open(memory.Config{})
		cluster(t, store)
		ops := operator.Client{Store: store, Actor: "alice"}
		do := func(c daemon.Command) daemon.Command {
			t.Helper()
			done, err := ops.Do(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			return done
		}
		drain := do(daemon.Command{Kind: daemon.CommandDrain, Args: daemon.CommandArgs{Node: "a"}.Encode()})
		var seen [][2]int
		drained, err := ops.Drained(t.Context(), drain, func(held, starting int) { seen = append(seen, [2]int{held, starting}) })
		if err != nil || drained.Result != daemon.ResultDrained {
			t.Fatal(drained, err)
		}
		snap, err := store.Snapshot(t.Context())
		if n := active(t, store); err != nil || n["a"] != 0 || n["b"]+n["c"] != 3 || snap.Term.Leader.Name == "a" {
			t.Fatalf("%v, %v, %+v", n, err, snap.Term)
		}
		if last := seen[len(seen)-1]; last != [2]int{} || !slices.Contains(seen, last) {
			t.Errorf("progress %v", seen)
		}
		again, err := ops.Do(t.Context(), drain)
		if err != nil || again.ID != drain.ID || again.Result != daemon.ResultDrained {
			t.Errorf("the same command again: %+v, %v", again, err)
		}
		do(daemon.Command{Kind: daemon.CommandUncordon, Args: daemon.CommandArgs{Node: "a"}.Encode()})
		index := 0
		to := daemon.CommandArgs{Daemon: "acme:reports", Index: &index, To: "a"}
		if moves, err := ops.Preview(t.Context(), daemon.Command{Kind: daemon.CommandMove, Args: to.Encode()}); err != nil || len(moves) != 1 || moves[0].To != "a" {
			t.Fatalf("%+v, %v", moves, err)
		}
		do(daemon.Command{Kind: daemon.CommandMove, Args: to.Encode()})
		if n := active(t, store); n["a"] != 1 {
			t.Errorf("%v", n)
		}
		to.Generation = 1
		_, err = ops.Do(t.Context(), daemon.Command{Kind: daemon.CommandMove, Args: to.Encode()})
		if refused := (*operator.RefusedError)(nil); !errors.As(err, &refused) || refused.Command.Outcome() != daemon.ResultConflict {
			t.Errorf("a move of another generation: %v", err)
		}
		do(daemon.Command{Kind: daemon.CommandResign, Args: daemon.CommandArgs{To: "a"}.Encode()})
		if snap, err := store.Snapshot(t.Context()); err != nil || snap.Term.Leader.Name != "a" {
			t.Errorf("%+v, %v", snap.Term, err)
		}
	})
}

// TestLiftedDrain: a drain that somebody lifts while another one waits for it is not taken for one that has ended.
func TestLiftedDrain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory.Open(memory.Config{})
		cluster(t, store, daemon.Spec{ID: "acme:gpu", Requires: map[string]string{"gpu": "yes"}})
		ops := operator.Client{Store: store, Actor: "alice"}
		drain, err := ops.Do(t.Context(), daemon.Command{Kind: daemon.CommandDrain, Args: daemon.CommandArgs{Node: "c"}.Encode()})
		if err != nil {
			t.Fatal(err)
		}
		uncordoned := make(chan error, 1)
		go func() {
			time.Sleep(time.Minute) // the unit for a GPU can run nowhere else
			other := operator.Client{Store: store, Actor: "bob"}
			_, err := other.Do(t.Context(), daemon.Command{Kind: daemon.CommandUncordon, Args: daemon.CommandArgs{Node: "c"}.Encode()})
			uncordoned <- err
		}()
		lifted, err := ops.Drained(t.Context(), drain, func(int, int) {})
		if err != nil || lifted.Outcome() != daemon.ResultLifted || !strings.Contains(lifted.Result, "by bob") {
			t.Errorf("%+v, %v, want one that bob has lifted", lifted, err)
		}
		if err := <-uncordoned; err != nil {
			t.Error(err)
		}
	})
}

// TestPending: without a leader a command waits, and the error says so.
func TestPending(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory.Open(memory.Config{})
		ops := operator.Client{Store: store}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := ops.Do(ctx, daemon.Command{ID: "x", Kind: daemon.CommandCordon, Args: daemon.CommandArgs{Node: "a"}.Encode()})
		pending := (*operator.PendingError)(nil)
		if !errors.As(err, &pending) || pending.Err != nil {
			t.Errorf("%v", err)
		}
	})
}

// TestBadInput: what cannot be carried out is refused with the reason, and nothing is changed: no unit, no command in
// force, no event.
func TestBadInput(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory.Open(memory.Config{})
		cluster(t, store, daemon.Spec{ID: "acme:gpu", Requires: map[string]string{"gpu": "yes"}})
		short, stop := context.WithCancel(t.Context())
		gone := run(short, t, store, "gone")
		time.Sleep(5 * time.Second)
		stop()
		if err := <-gone; err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		ops := operator.Client{Store: store, Actor: "alice"}
		zero, nine := 0, 9
		pinned := daemon.Command{Kind: daemon.CommandPin, Args: daemon.CommandArgs{Daemon: "acme:reports", Index: &zero, To: "a"}.Encode()}
		if _, err := ops.Do(t.Context(), pinned); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		before, err := store.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []struct {
			kind daemon.CommandKind
			args daemon.CommandArgs
			term int64
			want string
		}{
			{daemon.CommandDrain, daemon.CommandArgs{Node: "nobody"}, 0, `no node is named "nobody"`},
			{daemon.CommandCordon, daemon.CommandArgs{}, 0, `no node is named ""`},
			{daemon.CommandUncordon, daemon.CommandArgs{Node: "a"}, 0, "a is not cordoned"},
			{daemon.CommandForget, daemon.CommandArgs{Node: "b"}, 0, "b is live: stop it, or wait until it was removed"},
			{daemon.CommandPause, daemon.CommandArgs{Daemon: "acme:nothing"}, 0, `no node advertises a daemon "acme:nothing"`},
			{daemon.CommandPause, daemon.CommandArgs{Daemon: "acme:reports", Index: &nine}, 0, "there is no unit acme:reports/9"},
			{daemon.CommandResume, daemon.CommandArgs{Daemon: "acme:reports"}, 0, "acme:reports is not paused"},
			{daemon.CommandMove, daemon.CommandArgs{Daemon: "acme:gpu", Index: &zero, To: "a"}, 0, "a cannot take acme:gpu/0: lacks gpu=yes"},
			{daemon.CommandMove, daemon.CommandArgs{Daemon: "acme:reports", Index: &zero, To: "nobody"}, 0, "acme:reports/0 is pinned to a: unpin it first"},
			{daemon.CommandMove, daemon.CommandArgs{Daemon: "acme:reports", Index: &nine, To: "a"}, 0, "there is no unit acme:reports/9"},
			{daemon.CommandMove, daemon.CommandArgs{Daemon: "acme:reports", Index: &zero, To: "b"}, 0, "acme:reports/0 is pinned to a: unpin it first"},
			{daemon.CommandPin, daemon.CommandArgs{Daemon: "acme:reports", Index: &zero, To: "b"}, 0, "is in force already"},
			{daemon.CommandPin, daemon.CommandArgs{Daemon: "acme:gpu", Index: &zero, To: "gone"}, 0, "gone is removed"},
			{daemon.CommandUnpin, daemon.CommandArgs{Daemon: "acme:gpu", Index: &zero}, 0, "acme:gpu/0 is not pinned"},
			{daemon.CommandRestart, daemon.CommandArgs{Daemon: "acme:reports", Index: &zero, Generation: 1}, 0, "expected generation 1 of acme:reports/0"},
			{daemon.CommandResign, daemon.CommandArgs{To: "nobody"}, 0, `no node is named "nobody"`},
			{daemon.CommandCordon, daemon.CommandArgs{Node: "b"}, 1, "expected term 1"},
		} {
			_, err := ops.Do(t.Context(), daemon.Command{Kind: bad.kind, Args: bad.args.Encode(), Term: bad.term})
			if refused := (*operator.RefusedError)(nil); !errors.As(err, &refused) || !strings.Contains(err.Error(), bad.want) {
				t.Errorf("%s %s: %v, want %q", bad.kind, bad.args.Encode(), err, bad.want)
			}
		}
		time.Sleep(5 * time.Second)
		after, err := store.Snapshot(t.Context())
		if err != nil || after.Head != before.Head || !reflect.DeepEqual(after.Units, before.Units) || len(after.Commands) != 1 {
			t.Errorf("something was changed: %v, event %d and then %d, commands %v", err, before.Head, after.Head, after.Commands)
		}
	})
}

// TestConflictingCommands: of two commands that want a unit on different nodes at the same moment, one is carried out and
// the other is refused.
func TestConflictingCommands(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory.Open(memory.Config{})
		cluster(t, store)
		snap, err := store.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		row := snap.Units[0]
		var targets []string
		for _, name := range []string{"a", "b", "c"} {
			if name != row.Holder.Name {
				targets = append(targets, name)
			}
		}
		results := make(chan error, 2)
		for _, to := range targets {
			go func() {
				args := daemon.CommandArgs{Daemon: row.Unit.Daemon, Index: &row.Unit.Index, Generation: row.Generation, To: to}
				ops := operator.Client{Store: store, Actor: "alice"}
				_, err := ops.Do(t.Context(), daemon.Command{ID: "to-" + to, Kind: daemon.CommandMove, Args: args.Encode()})
				results <- err
			}()
		}
		done, refused := 0, 0
		for range targets {
			switch err := <-results; {
			case err == nil:
				done++
			case errors.As(err, new(*operator.RefusedError)):
				refused++
			default:
				t.Error(err)
			}
		}
		page, err := store.Events(t.Context(), snap.Head, 1000)
		if err != nil {
			t.Fatal(err)
		}
		moves := 0
		for _, e := range page.Events {
			if e.Kind == daemon.AssignmentRevoking && e.Unit == row.Unit {
				moves++
			}
		}
		if done != 1 || refused != 1 || moves != 1 {
			t.Errorf("%d commands were carried out, %d refused, and the unit moved %d times", done, refused, moves)
		}
	})
}
