package postgres_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/pgschema"
	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/postgres"
)

// Many nodes of one process watch through one connection, which ends with the last of them.
func TestManyWatchOneConnection(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	store := open(t, s.schema(t))
	const nodes = 40
	ctx, cancel := context.WithCancel(context.Background())
	heard := make([]chan storage.WakeUp, nodes)
	var wg sync.WaitGroup
	for i := range heard {
		heard[i] = make(chan storage.WakeUp, 1000)
		wg.Go(func() {
			err := store.Watch(ctx, func(w storage.WakeUp) { heard[i] <- w })
			if !errors.Is(err, context.Canceled) {
				t.Errorf("watch ended with %v", err)
			}
		})
	}
	for _, c := range heard {
		await(t, "the first wake-up", c)
	}
	listeners := func() int {
		return value[int](t, s, `select count(*)::int from pg_stat_activity
			where datname = current_database() and query ~ '^(un)?listen'`)
	}
	if n := listeners(); n != 1 {
		t.Errorf("%d connections listen for %d watchers, want 1", n, nodes)
	}
	for _, c := range heard {
		for len(c) > 0 {
			<-c
		}
	}
	join(t, store, "a").lead()
	_, err := store.Submit(ctx, storage.Command{ID: uuid.NewString(), Kind: daemon.CommandResign})
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range heard {
		if w := await(t, "a wake-up of the command", c); i == 0 && len(w.Nodes) == 0 && !w.Leader {
			t.Errorf("the wake-up says nothing: %+v", w)
		}
	}
	cancel()
	wg.Wait()
	eventually(t, "nobody listens", func() bool { return listeners() == 0 })
}

// Where notifications do not arrive, they are probed for again. Once they arrive, wake-ups come as if they always had.
func TestNotificationsThatArriveLater(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pooler := pgtest.NewPgBouncer(t, s.user)
	cfg := s.schema(t, func(c *postgres.Config) { c.Logger = slog.New(slog.DiscardHandler) })
	cfg.URL = pooler.URL
	store := open(t, cfg)
	store.ProbeOften()
	ctx, cancel := context.WithCancel(context.Background())
	heard := make(chan storage.WakeUp, 1000)
	watched := later(func() (struct{}, error) {
		return struct{}{}, store.Watch(ctx, func(w storage.WakeUp) { heard <- w })
	})
	eventually(t, "the store is without wake-ups", func() bool { return store.Capabilities().NoWakeUps })
	pooler.Restart(t, "pool_mode = session", "default_pool_size = 20")
	await(t, "a wake-up for everybody", heard)
	if store.Capabilities().NoWakeUps {
		t.Error("the store says that it has no wake-ups")
	}
	join(t, store, "a").lead()
	// Notifications come in the order of their transactions, so what comes after this one is not of the election.
	s.exec(t, "select pg_notify($1, '{\"Nodes\":[\"nobody\"]}')", pgschema.Channel("emitd."+cfg.Schema))
	for w := await(t, "a wake-up of nobody", heard); !slices.Contains(w.Nodes, "nobody"); {
		w = await(t, "a wake-up of nobody", heard)
	}
	if _, err := store.Submit(ctx, storage.Command{ID: "c", Kind: daemon.CommandResign}); err != nil {
		t.Fatal(err)
	}
	await(t, "a wake-up of the command", heard)
	cancel()
	await(t, "the end of the watch", watched)
}

// With the shortest timings, a notification may take longer than a call before the store does without wake-ups.
func TestNotificationsMayBeLate(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	store := open(t, s.schema(t, func(c *postgres.Config) { c.QueryTimeout = 150 * time.Millisecond }))
	if d := store.Arrival(); d < 5*time.Second {
		t.Errorf("a notification may take %v", d)
	}
}

// A notification that this version does not understand is a wake-up for everybody, never an error.
// Unknown fields beside known ones are skipped.
func TestHintsOfOtherVersions(t *testing.T) {
	t.Parallel()
	all := storage.WakeUp{Leader: true}
	for payload, want := range map[string]storage.WakeUp{
		"":                                      all,
		"resigned":                              all,
		`{"Leader":`:                            all,
		`{"Nodes":7}`:                           all,
		`["a"]`:                                 all,
		`{}`:                                    {},
		`{"Nodes":["a"],"Weather":{"rain":[]}}`: {Nodes: []node.Incarnation{"a"}},
		`{"Nodes":["a"],"Leader":true}`:         {Nodes: []node.Incarnation{"a"}, Leader: true},
	} {
		if got := postgres.ParseWake(payload); !slices.Equal(got.Nodes, want.Nodes) || got.Leader != want.Leader {
			t.Errorf("%q: %+v, want %+v", payload, got, want)
		}
	}
}
