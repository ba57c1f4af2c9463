package operator_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
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

// cluster runs nodes a, b and c in virtual time until the test ends; a joins first and leads.
func cluster(t *testing.T, store storage.Store) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 3)
	for _, name := range []string{"a", "b", "c"} {
		c, err := coordinator.New(store, coordinator.Config{Node: node.Identity{Name: name}, Profile: "fast", MaxMovesPerRound: -1, Logger: slog.New(slog.DiscardHandler)})
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
		if err := c.Register(daemon.Spec{ID: "acme:reports", Instances: 3}, agent); err != nil {
			t.Fatal(err)
		}
		go func() { ended <- c.Run(ctx) }()
		time.Sleep(time.Second)
	}
	t.Cleanup(func() {
		cancel()
		for range 3 {
			if err := <-ended; err != nil {
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
		if err := ops.Drained(t.Context(), drain, func(held, starting int) { seen = append(seen, [2]int{held, starting}) }); err != nil {
			t.Fatal(err)
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
