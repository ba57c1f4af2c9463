package postgres_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/emitd/emitd/daemon"
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
